use std::fmt;

use super::report::Findings;
use super::syntax::{DNS_LABEL, DNS_SUBDOMAIN, is_dns_label, is_dns_subdomain};
use super::{Field, VmiUid};
use crate::v1;

/// The annotation that chooses a hypervisor for one VM: `auto`, `native` or `qemu`.
pub const HYPERVISOR_ANNOTATION: &str = "vireo.io/hypervisor";

/// The condition with the hypervisor that runs the guest (its reason) and why it was chosen (its message).
pub const HYPERVISOR_CONDITION: &str = "vireo.io/hypervisor";
/// What our own monitor is called in [`HYPERVISOR_ANNOTATION`] and [`HYPERVISOR_CONDITION`].
pub const NATIVE: &str = "native";

/// The annotation by which a guest's memory balloon gives no free pages back: `true`.
const KEEP_FREE_PAGES_ANNOTATION: &str = "kubevirt.io/free-page-reporting-disabled";

/// Annotations of KubeVirt that change a VM and that nothing here acts on.
const REFUSED_ANNOTATIONS: [(&str, &str); 2] =
    [("hooks.kubevirt.io/hookSidecars", "a hook sidecar"), ("kubevirt.io/ignitiondata", "Ignition data")];

/// The identity of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    namespace: String,
    name: String,
    uid: VmiUid,
}

impl Identity {
    /// A DNS label.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A DNS subdomain.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Unique in time and space.
    pub fn uid(&self) -> &VmiUid {
        &self.uid
    }
}

/// `namespace/name`.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The requested hypervisor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HypervisorChoice {
    /// Whichever can run it.
    #[default]
    Auto,
    /// Vireo's own monitor, or none.
    Native,
    /// QEMU.
    Qemu,
}

pub(super) fn kind(vmi: &v1::VirtualMachineInstance, found: &mut Findings) {
    if !matches!(vmi.api_version.as_str(), v1::API_VERSION | "kubevirt.io/v1alpha3") {
        found.unsupported_value(&Field::new("apiVersion"), &vmi.api_version, &[v1::API_VERSION]);
    }
    if vmi.kind != v1::VMI_KIND {
        found.unsupported_value(&Field::new("kind"), &vmi.kind, &[v1::VMI_KIND]);
    }
}

pub(super) fn read(meta: &v1::ObjectMeta, found: &mut Findings) -> Option<Identity> {
    let at = Field::new("metadata");
    let before = found.problems.len();
    let name = at.at("name");
    if meta.name.is_empty() {
        found.required_value(&name, "a VMI needs a name");
    } else if !is_dns_subdomain(&meta.name) {
        found.invalid_value(&name, &meta.name, DNS_SUBDOMAIN);
    }
    let namespace = if meta.namespace.is_empty() { "default" } else { &meta.namespace };
    if !is_dns_label(namespace) {
        found.invalid_value(&at.at("namespace"), namespace, DNS_LABEL);
    }
    let uid = at.at("uid");
    let parsed: Option<VmiUid> = meta.uid.parse().ok();
    if meta.uid.is_empty() {
        found.required_value(&uid, "the server that accepts the VMI sets it");
    } else if parsed.is_none() {
        found.invalid_value(&uid, &meta.uid, "must be a UUID");
    }
    for (annotation, what) in REFUSED_ANNOTATIONS {
        found.refuse_if(
            meta.annotations.contains_key(annotation),
            &at.at(&format!("annotations[{annotation}]")),
            what,
        );
    }
    if found.problems.len() > before {
        return None;
    }
    Some(Identity { namespace: namespace.to_owned(), name: meta.name.clone(), uid: parsed? })
}

pub(super) fn hypervisor(meta: &v1::ObjectMeta, found: &mut Findings) -> HypervisorChoice {
    match meta.annotations.get(HYPERVISOR_ANNOTATION).map(String::as_str) {
        None | Some("auto") => HypervisorChoice::Auto,
        Some(NATIVE) => HypervisorChoice::Native,
        Some("qemu") => HypervisorChoice::Qemu,
        Some(other) => {
            let field = Field::new(format!("metadata.annotations[{HYPERVISOR_ANNOTATION}]"));
            found.invalid_value(&field, other, "must be auto, native or qemu");
            HypervisorChoice::Auto
        }
    }
}

/// Whether the guest keeps its free pages by request.
pub(super) fn keeps_free_pages(meta: &v1::ObjectMeta) -> bool {
    meta.annotations.get(KEEP_FREE_PAGES_ANNOTATION).is_some_and(|value| value == "true")
}

/// The guest's host name: as given, or the VM's name up to its first dot and a label's length.
pub(super) fn hostname(spec: &v1::VirtualMachineInstanceSpec, name: &str, found: &mut Findings) -> String {
    if spec.hostname.is_empty() {
        let label = name.split('.').next().unwrap_or(name);
        let mut end = label.len().min(63);
        while !label.is_char_boundary(end) {
            end -= 1;
        }
        return label.get(..end).unwrap_or_default().trim_end_matches('-').to_owned();
    }
    if !is_dns_label(&spec.hostname) {
        found.invalid_value(&Field::new("spec.hostname"), &spec.hostname, DNS_LABEL);
    }
    spec.hostname.clone()
}
