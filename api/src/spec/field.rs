use std::fmt;

/// A path into a manifest, as KubeVirt writes it: `spec.domain.devices.disks[0].bootOrder`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Field(String);

impl Field {
    /// A path from its text.
    pub fn new(path: impl Into<String>) -> Self {
        Self(path.into())
    }

    /// The field `name` of the object here.
    #[must_use]
    pub fn at(&self, name: &str) -> Self {
        if self.0.is_empty() { Self::new(name) } else { Self(format!("{}.{name}", self.0)) }
    }

    /// The element `index` of the list here, counted from 0.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is `other` or inside it.
    pub fn is_within(&self, other: &Field) -> bool {
        self.0
            .strip_prefix(&other.0)
            .is_some_and(|rest| other.0.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']))
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_contains_itself_and_what_is_below_it() {
        let disks = Field::new("spec").at("disks");
        for (path, inside) in [
            ("spec.disks", true),
            ("spec.disks[0].name", true),
            ("spec.disks.x", true),
            ("spec.disksX", false),
            ("spec", false),
        ] {
            assert_eq!(Field::new(path).is_within(&disks), inside, "{path}");
        }
    }
}
