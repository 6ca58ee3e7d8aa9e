//! What a user names on the command line.

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TargetError {
    #[error("{0:?} is neither vm nor vmi")]
    Kind(String),
    #[error("invalid target {0:?}: must be KIND/NAME[/NAMESPACE], such as vmi/web or vm/web/prod")]
    Form(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Vm,
    Vmi,
}

impl Kind {
    /// Reads it as `kubectl` does: short or long, one or many, in capitals or not.
    pub(super) fn parse(word: &str) -> Result<Self, TargetError> {
        match word.to_lowercase().as_str() {
            "vm" | "vms" | "virtualmachine" | "virtualmachines" => Ok(Self::Vm),
            "vmi" | "vmis" | "virtualmachineinstance" | "virtualmachineinstances" => Ok(Self::Vmi),
            _ => Err(TargetError::Kind(word.to_owned())),
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::Vmi => "vmi",
        }
    }
}

/// A VM or VMI, with its namespace if that is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) namespace: Option<String>,
}

impl Target {
    /// Reads `KIND/NAME[/NAMESPACE]`. `KIND/NAME.NAMESPACE` is the older spelling: names may have dots, so it counts only
    /// where no namespace is `given` otherwise.
    pub(super) fn parse(text: &str, given: Option<&str>) -> Result<Self, TargetError> {
        let form = || TargetError::Form(text.to_owned());
        let (kind, rest) = text.split_once('/').ok_or_else(form)?;
        let kind = Kind::parse(kind)?;
        let (name, namespace) = match (rest.split_once('/'), rest.rsplit_once('.')) {
            (Some((name, namespace)), _) => (name, Some(namespace)),
            (None, Some((name, namespace))) if given.is_none() => (name, Some(namespace)),
            (None, _) => (rest, None),
        };
        let odd = |part: &str| part.is_empty() || part.contains('/');
        if odd(name) || namespace.is_some_and(odd) {
            return Err(form());
        }
        Ok(Self { kind, name: name.to_owned(), namespace: namespace.map(str::to_owned) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_name_and_namespace_are_parsed() {
        let parsed = |text, given| {
            let target = Target::parse(text, given)?;
            Ok::<_, TargetError>((target.kind, target.name, target.namespace.unwrap_or_default()))
        };
        let is = |kind, name: &str, namespace: &str| Ok((kind, name.to_owned(), namespace.to_owned()));
        assert_eq!(parsed("vmi/web", None), is(Kind::Vmi, "web", ""));
        assert_eq!(parsed("VM/web/prod", None), is(Kind::Vm, "web", "prod"));
        assert_eq!(parsed("virtualmachines/web.prod", None), is(Kind::Vm, "web", "prod"));
        assert_eq!(parsed("vm/web.prod", Some("test")), is(Kind::Vm, "web.prod", ""));
        assert_eq!(parsed("vm/web.a/prod", None), is(Kind::Vm, "web.a", "prod"));
        for odd in ["web", "vm/", "vm/web/", "vm//prod", "vm/a/b/c", "vm/.prod"] {
            assert_eq!(parsed(odd, None), Err(TargetError::Form(odd.to_owned())));
        }
        assert_eq!(parsed("pod/web", None), Err(TargetError::Kind("pod".to_owned())));
    }
}
