//! The panics of guests' kernels.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use vireo_proto::launcher::Panic;

use crate::manifests::Key;

/// KubeVirt's value where there is no code.
const UNKNOWN: &str = "unknown";
/// Codes of one VMI that have a time series of their own: a guest may report a new one each time.
const CODES: usize = 16;
/// The value for all others.
const OTHER: &str = "other";

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PanicLabels {
    namespace: String,
    name: String,
    r#type: String,
    bugcheck_code: String,
}

/// How many there were; those of VMIs that are gone stay, as a VM starts another one of its name.
#[derive(Debug, Default)]
pub(super) struct Panics {
    counts: Family<PanicLabels, Counter>,
    codes: Mutex<BTreeMap<Key, BTreeSet<u64>>>,
}

impl Panics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Panics of the kernels of guests";
        registry.register("kubevirt_vmi_guest_os_panic", help, self.counts.clone());
    }

    pub(super) fn count(&self, vmi: &Key, panic: &Panic) {
        let bugcheck_code = match panic.bugcheck_code {
            0 => UNKNOWN.to_owned(),
            code if self.has_its_own(vmi, code) => format!("{code:#x}"),
            _ => OTHER.to_owned(),
        };
        let labels = PanicLabels {
            namespace: vmi.namespace.clone(),
            name: vmi.name.clone(),
            r#type: panic.r#type.clone(),
            bugcheck_code,
        };
        self.counts.get_or_create(&labels).inc();
    }

    /// Whether a code is one of the first of a VMI.
    fn has_its_own(&self, vmi: &Key, code: u64) -> bool {
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let known = codes.entry(vmi.clone()).or_default();
        known.contains(&code) || known.len() < CODES && known.insert(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_counted_by_what_reported_them() {
        let (panics, mut registry, mut text) = (Panics::default(), Registry::default(), String::new());
        panics.register(&mut registry);
        let key = Key::new("default", "web");
        for bugcheck_code in [0, 0x7e, 0] {
            panics.count(&key, &Panic { r#type: "hyper-v".to_owned(), bugcheck_code });
        }
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for (code, count) in [("unknown", 2), ("0x7e", 1)] {
            let labels =
                format!("namespace=\"default\",name=\"web\",type=\"hyper-v\",bugcheck_code=\"{code}\"");
            let line = format!("kubevirt_vmi_guest_os_panic_total{{{labels}}} {count}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
    }

    #[test]
    fn a_guest_cannot_make_series_without_end() {
        let (panics, mut registry, mut text) = (Panics::default(), Registry::default(), String::new());
        panics.register(&mut registry);
        for bugcheck_code in 1..=1000 {
            panics.count(&Key::new("default", "web"), &Panic { r#type: "hyper-v".to_owned(), bugcheck_code });
        }
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let series = text.lines().filter(|line| line.starts_with("kubevirt_vmi_guest_os_panic_total{"));
        assert_eq!(series.count(), CODES + 1, "{text}");
        assert!(text.contains("bugcheck_code=\"other\"} 984\n"), "{text}");
    }
}
