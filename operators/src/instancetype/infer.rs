use std::collections::BTreeMap;

use vireo_api::v1::{Matcher, Volume};

use super::Choice;

/// The failure policy that goes on without what cannot be inferred; the other one refuses.
const IGNORE: &str = "Ignore";
const REJECT: &str = "Reject";

/// Why nothing can be inferred from a volume, in KubeVirt's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotInfer {
    /// No volume has the name.
    #[error("unable to find volume {0} to infer defaults")]
    NoVolume(String),
    /// It is not a claim.
    #[error("unable to infer defaults from volume {0} as type is not supported")]
    NotAClaim(String),
    /// The claim does not exist.
    #[error("persistentvolumeclaims {0:?} not found")]
    NoClaim(String),
    /// The claim has no such labels.
    #[error("unable to find required {0} label on the volume")]
    NoLabel(String),
}

impl CannotInfer {
    /// Whether a matcher goes on without: what is not there at all is a mistake under every policy.
    pub fn is_ignored_by(&self, matcher: &Matcher) -> bool {
        ignores(matcher) && matches!(self, Self::NotAClaim(_) | Self::NoLabel(_))
    }
}

/// Whether an inference may fail without an error.
pub fn ignores(matcher: &Matcher) -> bool {
    matcher.infer_from_volume_failure_policy.as_deref() == Some(IGNORE)
}

/// What the labels of a volume's claim choose: name and kind, which is empty where only the name is set. `labels` are
/// those of the claim of a name.
///
/// # Errors
/// When the volume has no such labels.
pub fn infer(
    choice: Choice,
    from: &str,
    volumes: &[Volume],
    labels: impl FnOnce(&str) -> Option<BTreeMap<String, String>>,
) -> Result<(String, String), CannotInfer> {
    let volume = volumes.iter().find(|volume| volume.name == from);
    let volume = volume.ok_or_else(|| CannotInfer::NoVolume(from.to_owned()))?;
    let claim = volume.claim().ok_or_else(|| CannotInfer::NotAClaim(from.to_owned()))?.name;
    let mut labels = labels(claim).ok_or_else(|| CannotInfer::NoClaim(claim.to_owned()))?;
    let label = format!("instancetype.kubevirt.io/default-{}", choice.field());
    let kind = labels.remove(&format!("{label}-kind")).unwrap_or_default();
    let name = labels.remove(&label).ok_or(CannotInfer::NoLabel(label))?;
    Ok((name, kind))
}

/// What is wrong with a matcher itself: fields below it, empty for the whole, each with the reason.
pub fn flaws(choice: Choice, matcher: &Matcher) -> Vec<(&'static str, String)> {
    let what = choice.field();
    let mut flaws = Vec::new();
    if matcher.infer_from_volume.is_empty() {
        if matcher.name.is_empty() {
            let message =
                format!("Either Name or InferFromVolume should be provided within the {what} matcher");
            flaws.push(("", message));
        }
    } else {
        for (field, word, given) in [("name", "Name", &matcher.name), ("kind", "Kind", &matcher.kind)] {
            if !given.is_empty() {
                let message = format!(
                    "{word} should not be provided when InferFromVolume is used within the {what} matcher"
                );
                flaws.push((field, message));
            }
        }
    }
    let policy = matcher.infer_from_volume_failure_policy.as_deref();
    if let Some(policy) = policy.filter(|policy| ![IGNORE, REJECT].contains(policy)) {
        let message = format!("Invalid value '{policy}' for InferFromVolumeFailurePolicy");
        flaws.push(("inferFromVolumeFailurePolicy", message));
    }
    flaws
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volumes() -> Vec<Volume> {
        serde_json::from_value(json!([
            {"name": "root", "persistentVolumeClaim": {"claimName": "debian"}},
            {"name": "filled", "dataVolume": {"name": "debian"}},
            {"name": "plain", "persistentVolumeClaim": {"claimName": "plain"}},
            {"name": "gone", "persistentVolumeClaim": {"claimName": "gone"}},
            {"name": "image", "containerDisk": {"image": "oci:/x"}},
        ]))
        .unwrap()
    }

    fn labels(claim: &str) -> Option<BTreeMap<String, String>> {
        let label = |end: &str| format!("instancetype.kubevirt.io/default-{end}");
        let of_debian = [("instancetype", "small"), ("preference", "linux"), ("preference-kind", "Mine")];
        match claim {
            "debian" => Some(of_debian.map(|(end, value)| (label(end), value.to_owned())).into()),
            "plain" => Some([("a".to_owned(), "b".to_owned())].into()),
            _ => None,
        }
    }

    fn matcher(fields: Value) -> Matcher {
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn claims_name_instance_type_and_preference() {
        let inferred = |choice, from: &str| infer(choice, from, &volumes(), labels);
        let pair = |name: &str, kind: &str| Ok((name.to_owned(), kind.to_owned()));
        assert_eq!(inferred(Choice::Instancetype, "root"), pair("small", ""));
        assert_eq!(inferred(Choice::Preference, "root"), pair("linux", "Mine"));
        assert_eq!(inferred(Choice::Instancetype, "filled"), pair("small", ""));
        let ignoring = matcher(json!({"inferFromVolumeFailurePolicy": "Ignore"}));
        let rejecting = matcher(json!({"inferFromVolumeFailurePolicy": "Reject"}));
        for (from, reported, ignored) in [
            ("absent", "unable to find volume absent to infer defaults", false),
            ("gone", "persistentvolumeclaims \"gone\" not found", false),
            ("image", "unable to infer defaults from volume image as type is not supported", true),
            (
                "plain",
                "unable to find required instancetype.kubevirt.io/default-instancetype label on the volume",
                true,
            ),
        ] {
            let error = inferred(Choice::Instancetype, from).unwrap_err();
            assert_eq!((error.to_string().as_str(), error.is_ignored_by(&ignoring)), (reported, ignored));
            assert!(!error.is_ignored_by(&rejecting) && !error.is_ignored_by(&Matcher::default()));
        }
    }

    #[test]
    fn matchers_have_one_source() {
        for (fields, expected) in [
            (json!({"name": "small"}), vec![]),
            (json!({"inferFromVolume": "root", "inferFromVolumeFailurePolicy": "Ignore"}), vec![]),
            (json!({}), vec![""]),
            (json!({"name": "small", "kind": "x", "inferFromVolume": "root"}), vec!["name", "kind"]),
            (
                json!({"name": "small", "inferFromVolumeFailurePolicy": "Hope"}),
                vec!["inferFromVolumeFailurePolicy"],
            ),
        ] {
            let reported = flaws(Choice::Preference, &matcher(fields.clone()));
            let reported: Vec<&str> = reported.into_iter().map(|(field, _)| field).collect();
            assert_eq!(reported, expected, "{fields}");
        }
    }
}
