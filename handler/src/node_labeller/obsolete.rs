//! CPU models that no guest should have, although nodes can run them: the setting `obsoleteCPUModels`.

use std::collections::{BTreeMap, BTreeSet};

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

/// Names of CPU models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObsoleteModels(BTreeSet<String>);

impl Default for ObsoleteModels {
    fn default() -> Self {
        Self(DEFAULT.iter().flat_map(|name| [(*name).to_owned(), format!("{name}-v1")]).collect())
    }
}

impl ObsoleteModels {
    /// The default with the models that are set to true, and without those that are set to false.
    pub fn configured(models: &BTreeMap<String, bool>) -> Self {
        let mut obsolete = Self::default();
        for (name, is_obsolete) in models {
            match is_obsolete {
                true => drop(obsolete.0.insert(name.clone())),
                false => drop(obsolete.0.remove(name)),
            }
        }
        obsolete
    }

    pub(super) fn contains(&self, model: &str) -> bool {
        self.0.contains(model)
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
        let has = |name| changed.contains(name);
        assert!(has("Nehalem") && !has("kvm64") && has("kvm64-v1") && has("qemu64"));
        assert_eq!(ObsoleteModels::configured(&BTreeMap::new()), ObsoleteModels::default());
    }
}
