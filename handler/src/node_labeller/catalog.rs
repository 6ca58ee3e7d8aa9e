//! CPU features and models that QEMU knows: guests with a named model run on it.

use std::collections::BTreeSet;

const FEATURES: &str = vireo_api::cpu::FEATURES;
const MODELS: &str = vireo_api::cpu::MODELS;

/// What is known of QEMU.
#[derive(Debug)]
pub(super) struct Catalog {
    pub(super) features: Vec<Feature>,
    /// Names of the features that QEMU can emulate.
    pub(super) emulated: BTreeSet<&'static str>,
    pub(super) models: Vec<Model>,
}

/// A CPU feature.
#[derive(Debug)]
pub(super) struct Feature {
    pub(super) location: Location,
    /// KubeVirt's name.
    pub(super) name: &'static str,
    /// Other names that QEMU accepts.
    pub(super) aliases: Vec<&'static str>,
}

/// Where a CPU reports a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    Cpuid {
        leaf: u32,
        subleaf: u32,
        register: Register,
        bit: u32,
    },
    /// A model-specific register.
    Msr {
        index: u32,
        bit: u32,
    },
}

/// A register of the result of CPUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Register {
    Eax,
    Ebx,
    Ecx,
    Edx,
}

/// A CPU model.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) name: &'static str,
    /// As KubeVirt spells it.
    pub(super) vendor: &'static str,
    /// Names of its features.
    pub(super) features: BTreeSet<&'static str>,
    /// Whether the name stands for a version of the model.
    pub(super) is_alias: bool,
}

impl Location {
    /// Whether it is in a leaf of CPUID.
    pub(super) fn is_in_leaf(self, number: u32) -> bool {
        matches!(self, Self::Cpuid { leaf, .. } if leaf == number)
    }
}

impl Catalog {
    /// Reads the tables of this release.
    pub(super) fn read() -> Self {
        let mut catalog = Self {
            features: lines(FEATURES).filter_map(feature).collect(),
            emulated: BTreeSet::new(),
            models: Vec::new(),
        };
        for line in lines(MODELS) {
            match line.strip_prefix("emulated:") {
                Some(names) => catalog.emulated = names.split_whitespace().collect(),
                None => catalog.models.extend(model(line, &catalog.models)),
            }
        }
        catalog
    }
}

/// Without comments.
fn lines(table: &'static str) -> impl Iterator<Item = &'static str> {
    table.lines().filter(|line| !line.starts_with('#'))
}

fn feature(line: &'static str) -> Option<Feature> {
    let mut words = line.split_whitespace();
    let number = |words: &mut std::str::SplitWhitespace<'_>| {
        let word = words.next()?;
        match word.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => word.parse().ok(),
        }
    };
    let location = match words.next()? {
        "cpuid" => Location::Cpuid {
            leaf: number(&mut words)?,
            subleaf: number(&mut words)?,
            register: match words.next()? {
                "eax" => Register::Eax,
                "ebx" => Register::Ebx,
                "ecx" => Register::Ecx,
                "edx" => Register::Edx,
                _ => return None,
            },
            bit: number(&mut words)?,
        },
        "msr" => Location::Msr { index: number(&mut words)?, bit: number(&mut words)? },
        _ => return None,
    };
    Some(Feature { location, name: words.next()?, aliases: words.collect() })
}

/// One of the models, of which some are described by `others` that come before.
fn model(line: &'static str, others: &[Model]) -> Option<Model> {
    let of_name = |name: &str| others.iter().find(|model| model.name == name).cloned();
    if let Some((name, of)) = line.split_once(" = ") {
        return Some(Model { name, is_alias: true, ..of_name(of)? });
    }
    let (head, listed) = line.split_once(':')?;
    let mut head = head.split(' ');
    let (name, vendor) = (head.next()?, head.next()?);
    let mut features = match head.next() {
        Some(other) => of_name(other)?.features,
        None => BTreeSet::new(),
    };
    for word in listed.split_whitespace() {
        match word.strip_prefix('-') {
            Some(absent) => features.remove(absent),
            None => features.insert(word.strip_prefix('+').unwrap_or(word)),
        };
    }
    Some(Model { name, vendor, features, is_alias: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_tables_is_read() {
        let catalog = Catalog::read();
        assert_eq!(catalog.features.len(), lines(FEATURES).count());
        assert_eq!(catalog.models.len() + 1, lines(MODELS).count(), "and what is emulated");
        let known: BTreeSet<&str> = catalog.features.iter().map(|feature| feature.name).collect();
        assert_eq!(known.len(), catalog.features.len(), "no name is there twice");
        for model in &catalog.models {
            assert!(model.features.is_subset(&known), "{model:?}");
        }
        assert!(catalog.emulated.is_subset(&known));
    }

    #[test]
    fn features_and_models_are_those_of_qemu() {
        let catalog = Catalog::read();
        let feature = |name: &str| catalog.features.iter().find(|feature| feature.name == name).unwrap();
        let pclmuldq = feature("pclmuldq");
        let bit_1 = Location::Cpuid { leaf: 1, subleaf: 0, register: Register::Ecx, bit: 1 };
        assert_eq!((pclmuldq.location, pclmuldq.aliases.as_slice()), (bit_1, ["pclmulqdq"].as_slice()));
        let rdctl_no = Location::Msr { index: 0x10a, bit: 0 };
        assert_eq!(feature("rdctl-no").location, rdctl_no);
        let model = |name: &str| catalog.models.iter().find(|model| model.name == name).unwrap();
        let has = |name, feature| model(name).features.contains(feature);
        assert_eq!((model("Haswell-v2").vendor, model("EPYC").vendor), ("Intel", "AMD"));
        assert!(has("Haswell", "rtm") && !has("Haswell-noTSX", "rtm"), "a version differs from another");
        assert_eq!(model("Haswell-noTSX").features, model("Haswell-v2").features);
    }
}
