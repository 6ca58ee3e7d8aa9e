//! The annotations of a claim that an upload fills, as in CDI.

use std::collections::BTreeMap;

/// Marks a claim that an upload fills.
pub const TARGET: &str = "cdi.kubevirt.io/storage.upload.target";
/// Phase of the upload's server.
pub const PHASE: &str = "cdi.kubevirt.io/storage.pod.phase";
/// Whether it is ready.
pub const READY: &str = "cdi.kubevirt.io/storage.pod.ready";
/// Condition of the upload.
pub const RUNNING: &str = "cdi.kubevirt.io/storage.condition.running";

type Annotations = BTreeMap<String, String>;

/// The annotations that a bound claim gets so that clients upload its image; empty when it waits for none, or has them
/// already.
pub fn offer(annotations: &Annotations) -> Annotations {
    if !annotations.contains_key(TARGET) || annotations.contains_key(PHASE) {
        return Annotations::new();
    }
    let reason = format!("{RUNNING}.reason");
    let all = [(PHASE, "Running"), (READY, "true"), (RUNNING, "true"), (reason.as_str(), "Pod is running")];
    all.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Whether a claim is for an image that has not been uploaded.
pub fn waits(annotations: &Annotations) -> bool {
    annotations.contains_key(TARGET) && annotations.get(PHASE).is_none_or(|phase| phase != "Succeeded")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(all: &[(&str, &str)]) -> Annotations {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn an_offer_is_made_once() {
        let mut claim = annotations(&[(TARGET, "")]);
        let offered = offer(&claim);
        assert_eq!((offered[PHASE].as_str(), offered[READY].as_str()), ("Running", "true"));
        claim.extend(offered);
        assert!(offer(&claim).is_empty() && waits(&claim));
        assert!(offer(&annotations(&[])).is_empty());
    }

    #[test]
    fn a_claim_waits_until_its_image_has_come() {
        assert!(waits(&annotations(&[(TARGET, "")])));
        assert!(!waits(&annotations(&[(TARGET, ""), (PHASE, "Succeeded")])));
        assert!(!waits(&annotations(&[(PHASE, "Running")])));
    }
}
