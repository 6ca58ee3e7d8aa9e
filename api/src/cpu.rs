//! Names of CPU models and features: QEMU's, in tables of QEMU 10, which node agents also make labels of nodes from.

/// CPU features that nodes have labels for, and where a CPU reports them.
pub const FEATURES: &str = include_str!("cpu/features.txt");
/// CPU models, with their features.
pub const MODELS: &str = include_str!("cpu/models.txt");
/// Further CPU features of guests.
const UNLABELLED: &str = include_str!("cpu/unlabelled.txt");
/// Models that are not by name.
const OF_HOST: [&str; 2] = ["host-model", "host-passthrough"];

/// A name this similar is taken for a slip (Jaro-Winkler, 0 to 1).
const SIMILAR_ENOUGH: f64 = 0.85;

/// A CPU feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Nodes that have it are labelled with this name, whichever of its names a manifest has.
    Labelled(&'static str),
    /// No label of nodes tells whether they have it.
    Unlabelled,
}

/// The feature of a name, if there is one. `-` and `_` are the same, as they are to QEMU.
pub fn feature(name: &str) -> Option<Feature> {
    let is_it = |known: &&str| is_same(name, known);
    let of_label = labelled().find_map(|mut names| {
        let first = names.next()?;
        std::iter::once(first).chain(names).find(is_it).map(|_| Feature::Labelled(first))
    });
    of_label.or_else(|| lines(UNLABELLED).find(is_it).map(|_| Feature::Unlabelled))
}

/// Whether there is a model of this name. Letter case counts.
pub fn is_named_model(name: &str) -> bool {
    named_models().any(|known| known == name)
}

/// Whether guests can have this model: one by name, `host-model` or `host-passthrough`.
pub fn is_model(name: &str) -> bool {
    OF_HOST.contains(&name) || is_named_model(name)
}

/// The model whose name is most like another one, if it is like it enough to be a slip.
pub fn similar_model(name: &str) -> Option<&'static str> {
    similar(name, named_models().chain(OF_HOST))
}

/// The feature whose name is most like another one, as of [`similar_model`].
pub fn similar_feature(name: &str) -> Option<&'static str> {
    similar(name, labelled().flatten().chain(lines(UNLABELLED)))
}

/// Without comments.
fn lines(table: &'static str) -> impl Iterator<Item = &'static str> {
    table.lines().filter(|line| !line.starts_with('#'))
}

/// The names of each feature with a label: that of the label first.
fn labelled() -> impl Iterator<Item = impl Iterator<Item = &'static str>> {
    lines(FEATURES).map(|line| {
        let columns = if line.starts_with("msr ") { 3 } else { 5 };
        line.split(' ').skip(columns)
    })
}

fn named_models() -> impl Iterator<Item = &'static str> {
    lines(MODELS).filter(|line| !line.starts_with("emulated:")).filter_map(|line| line.split(' ').next())
}

fn is_same(name: &str, known: &str) -> bool {
    let plain = |byte: u8| if byte == b'_' { b'-' } else { byte };
    name.bytes().map(plain).eq(known.bytes().map(plain))
}

fn similar(name: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let lower = name.to_lowercase();
    known
        .map(|candidate| (strsim::jaro_winkler(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(score, _)| *score >= SIMILAR_ENOUGH)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_have_the_names_of_qemu_and_libvirt() {
        for (name, expected) in [
            ("avx2", Some(Feature::Labelled("avx2"))),
            ("lahf_lm", Some(Feature::Labelled("lahf_lm"))),
            ("lahf-lm", Some(Feature::Labelled("lahf_lm"))),
            ("tsc_deadline", Some(Feature::Labelled("tsc-deadline"))),
            ("sse4_1", Some(Feature::Labelled("sse4.1"))),
            ("xd", Some(Feature::Labelled("nx"))),
            ("rdctl-no", Some(Feature::Labelled("rdctl-no"))),
            ("kvm_pv_unhalt", Some(Feature::Unlabelled)),
            ("vmx-ept", Some(Feature::Unlabelled)),
            ("AVX2", None),
            ("avx3", None),
            ("0x1", None),
            ("ecx", None),
            ("", None),
            ("#", None),
        ] {
            assert_eq!(feature(name), expected, "{name}");
        }
    }

    #[test]
    fn models_have_the_names_of_qemu() {
        for name in
            ["Haswell", "Haswell-noTSX-IBRS", "EPYC-Milan-v2", "qemu64", "host-model", "host-passthrough"]
        {
            assert!(is_model(name), "{name}");
        }
        for name in ["haswell", "Haswell-v9", "host", "max", "emulated:", "#", "", "Intel"] {
            assert!(!is_model(name), "{name}");
        }
        assert!(!is_named_model("host-model"));
    }

    #[test]
    fn a_slip_is_recognized() {
        assert_eq!(similar_model("haswell"), Some("Haswell"));
        assert_eq!(similar_model("EPYC-Millan"), Some("EPYC-Milan"));
        assert_eq!(similar_model("hostpassthrough"), Some("host-passthrough"));
        assert_eq!(similar_model("Z80"), None);
        assert_eq!(similar_feature("AVX2"), Some("avx2"));
        assert_eq!(similar_feature("tscdeadline"), Some("tsc-deadline"));
        assert_eq!(similar_feature("warp-drive"), None);
    }

    #[test]
    fn no_feature_is_in_both_tables() {
        for name in lines(UNLABELLED) {
            assert_eq!(feature(name), Some(Feature::Unlabelled), "{name}");
        }
        assert!(labelled().all(|mut names| names.next().is_some()), "each line has a name");
    }
}
