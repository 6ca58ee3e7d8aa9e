//! The panics of guests' kernels.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use vireo_proto::launcher::Panic;

use crate::manifests::Key;

/// KubeVirt's value where there is no code.
const UNKNOWN: &str = "unknown";

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PanicLabels {
    namespace: String,
    name: String,
    r#type: String,
    bugcheck_code: String,
}

/// How many there were; those of VMIs that are gone stay, as a VM starts another one of its name.
#[derive(Debug, Default)]
pub(super) struct Panics(Family<PanicLabels, Counter>);

impl Panics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Panics of the kernels of guests";
        registry.register("kubevirt_vmi_guest_os_panic", help, self.0.clone());
    }

    pub(super) fn count(&self, vmi: &Key, panic: &Panic) {
        let bugcheck_code = match panic.bugcheck_code {
            0 => UNKNOWN.to_owned(),
            code => format!("{code:#x}"),
        };
        let labels = PanicLabels {
            namespace: vmi.namespace.clone(),
            name: vmi.name.clone(),
            r#type: panic.r#type.clone(),
            bugcheck_code,
        };
        self.0.get_or_create(&labels).inc();
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
}
