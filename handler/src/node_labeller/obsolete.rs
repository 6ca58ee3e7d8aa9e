//! CPU models that no guest should have, although nodes can run them: the settings `obsoleteCPUModels` and `minCPUModel`.

use std::collections::{BTreeMap, BTreeSet};

use super::catalog::{Catalog, Model};

/// KubeVirt's; each also as version 1.
const DEFAULT: [&str; 17] = [
    "486",
    "Conroe",
    "Opteron_G1",
    "Opteron_G2",
    "athlon",
    "core2duo",
    "coreduo",
    "kvm32",
    "kvm64",
    "n270",
    "pentium",
    "pentium2",
    "pentium3",
    "pentiumpro",
    "phenom",
    "qemu32",
    "qemu64",
];

/// Features that vendors have removed from later CPUs: a model without them is not older.
const REMOVED: [&str; 8] = ["3dnow", "3dnowext", "fma4", "hle", "mpx", "rtm", "tbm", "xop"];

/// CPU models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObsoleteModels {
    names: BTreeSet<String>,
    /// The model whose features others of its vendor must have.
    minimum: Option<String>,
}

impl Default for ObsoleteModels {
    fn default() -> Self {
        let names = DEFAULT.iter().flat_map(|name| [(*name).to_owned(), format!("{name}-v1")]).collect();
        Self { names, minimum: None }
    }
}

/// Those of a catalog.
pub(super) struct Obsolete<'a> {
    models: &'a ObsoleteModels,
    minimum: Option<&'a Model>,
}

impl Obsolete<'_> {
    pub(super) fn contains(&self, model: &Model) -> bool {
        let lacks = |minimum: &Model| {
            let mut needed = minimum.features.iter().filter(|name| !REMOVED.contains(name));
            model.vendor == minimum.vendor && !needed.all(|name| model.features.contains(name))
        };
        self.models.names.contains(model.name) || self.minimum.is_some_and(lacks)
    }
}

impl ObsoleteModels {
    /// The default with the models that are set to true, and without those that are set to false.
    pub fn configured(models: &BTreeMap<String, bool>) -> Self {
        let mut obsolete = Self::default();
        for (name, is_obsolete) in models {
            match is_obsolete {
                true => drop(obsolete.names.insert(name.clone())),
                false => drop(obsolete.names.remove(name)),
            }
        }
        obsolete
    }

    /// The same with the models that are older than one. A name that this release does not know has no effect.
    #[must_use]
    pub fn at_least(self, minimum: &str) -> Self {
        Self { minimum: Some(minimum.to_owned()).filter(|name| !name.is_empty()), ..self }
    }

    pub(super) fn of<'a>(&'a self, catalog: &'a Catalog) -> Obsolete<'a> {
        let minimum = self.minimum.as_deref();
        let minimum = minimum.and_then(|name| catalog.models.iter().find(|model| model.name == name));
        if let (Some(name), None) = (&self.minimum, minimum) {
            tracing::warn!(model = name, "minCPUModel is none of QEMU's CPU models: it has no effect");
        }
        Obsolete { models: self, minimum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_adds_to_the_default_and_takes_from_it() {
        let models = [("Nehalem", true), ("kvm64", false)];
        let models = models.map(|(name, is_obsolete)| (name.to_owned(), is_obsolete));
        let changed = ObsoleteModels::configured(&models.into());
        let has = |name: &str| changed.names.contains(name);
        assert!(has("Nehalem") && !has("kvm64") && has("kvm64-v1") && has("qemu64"));
        assert_eq!(ObsoleteModels::configured(&BTreeMap::new()), ObsoleteModels::default());
    }
}
