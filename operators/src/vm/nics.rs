//! NICs that are plugged into a running instance and unplugged as its VM's template has it.
//!
//! A NIC comes when the template has it, and is unplugged when its state there is `absent`. Once the guest has released it, it leaves
//! the instance and the template. A NIC that the instance was started with goes with its next start.

use vireo_api::spec::NetworkAttachment;
use vireo_api::v1::{Interface, Network, VirtualMachineInstance, VirtualMachineInstanceSpec};

/// How the NICs of an instance change.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NicChange {
    /// Names of interfaces and their states.
    states: Vec<(String, String)>,
    added: Vec<(Interface, Network)>,
    /// Those that are unplugged.
    removed: Vec<String>,
}

impl NicChange {
    pub(super) fn of(
        template: &VirtualMachineInstanceSpec,
        instance: &VirtualMachineInstance,
        started_with: Option<&VirtualMachineInstanceSpec>,
    ) -> Self {
        Self {
            states: states(template, &instance.spec, started_with),
            added: added(template, instance),
            removed: removed(template, instance),
        }
    }

    pub(super) fn removes_any(&self) -> bool {
        !self.removed.is_empty()
    }

    /// Makes the change of an instance.
    pub(super) fn apply(&self, spec: &mut VirtualMachineInstanceSpec) {
        self.remove(spec);
        for interface in &mut spec.domain.devices.interfaces {
            if let Some((_, state)) = self.states.iter().find(|(name, _)| *name == interface.name) {
                interface.state.clone_from(state);
            }
        }
        for (interface, network) in &self.added {
            if find(spec, &interface.name).is_none() {
                spec.domain.devices.interfaces.push(interface.clone());
                spec.networks.push(network.clone());
            }
        }
    }

    /// Removes what is unplugged from a spec.
    pub(super) fn remove(&self, spec: &mut VirtualMachineInstanceSpec) {
        let is_gone = |nic: &Interface| nic.is_absent() && self.removed.contains(&nic.name);
        retain(spec, |nic, _| !is_gone(nic));
    }
}

/// Keeps some NICs, with their networks.
pub(super) fn retain(
    spec: &mut VirtualMachineInstanceSpec,
    keep: impl Fn(&Interface, &VirtualMachineInstanceSpec) -> bool,
) {
    let left = spec.domain.devices.interfaces.iter().filter(|nic| !keep(nic, spec));
    let left: Vec<String> = left.map(|nic| nic.name.clone()).collect();
    spec.domain.devices.interfaces.retain(|nic| !left.contains(&nic.name));
    spec.networks.retain(|network| !left.contains(&network.name));
}

/// Whether a NIC of a template gets into an instance that runs: one of virtio on a bridge to a secondary network, whose place in the
/// guest the template does not choose.
pub(super) fn is_hotpluggable(nic: &Interface, template: &VirtualMachineInstanceSpec) -> bool {
    let is_virtio = ["", "virtio"].contains(&nic.model.as_str());
    let is_placed = nic.boot_order.is_some() || !nic.pci_address.is_empty();
    let is_off = template.domain.devices.disable_hotplug == Some(true);
    nic.bridge.is_some() && is_on_secondary(template, &nic.name) && is_virtio && !is_placed && !is_off
}

fn is_on_secondary(spec: &VirtualMachineInstanceSpec, nic: &str) -> bool {
    let multus = network(spec, nic).and_then(|network| network.multus.as_ref());
    multus.and_then(NetworkAttachment::read).is_some_and(|attachment| !attachment.is_default())
}

/// Whether an instance has a NIC on a secondary network that its template no longer has, or has otherwise: with another MAC
/// address, say.
pub(super) fn needs_restart(
    template: &VirtualMachineInstanceSpec,
    instance: &VirtualMachineInstance,
) -> bool {
    let nics = instance.spec.domain.devices.interfaces.iter();
    let mut secondary = nics.filter(|nic| !nic.is_absent() && is_on_secondary(&instance.spec, &nic.name));
    secondary.any(|nic| {
        find(template, &nic.name).is_none_or(|wanted| {
            !wanted.is_absent() && placed(wanted, template) != placed(nic, &instance.spec)
        })
    })
}

/// What of a NIC and its network does not change while it is in a guest.
fn placed(nic: &Interface, spec: &VirtualMachineInstanceSpec) -> (Interface, Option<Network>) {
    let model = if nic.model.is_empty() { "virtio" } else { &nic.model };
    let fixed = Interface { state: String::new(), model: model.to_owned(), ..nic.clone() };
    (fixed, network(spec, &nic.name).cloned())
}

/// Removes the NICs that came to a template since the start, or left it, from both: an instance gets and loses them while it runs.
pub(super) fn forget_hotplugged(then: &mut VirtualMachineInstanceSpec, now: &mut VirtualMachineInstanceSpec) {
    retain(then, |nic, _| !nic.is_absent());
    let before = then.clone();
    retain(then, |nic, then| !is_hotpluggable(nic, then) || find(now, &nic.name).is_some());
    retain(now, |nic, now| !is_hotpluggable(nic, now) || find(&before, &nic.name).is_some());
}

fn find<'s>(spec: &'s VirtualMachineInstanceSpec, name: &str) -> Option<&'s Interface> {
    spec.domain.devices.interfaces.iter().find(|nic| nic.name == name)
}

fn network<'s>(spec: &'s VirtualMachineInstanceSpec, name: &str) -> Option<&'s Network> {
    spec.networks.iter().find(|network| network.name == name)
}

/// The NICs of an instance that are to be unplugged, or whose links have to be switched.
fn states(
    template: &VirtualMachineInstanceSpec,
    instance: &VirtualMachineInstanceSpec,
    started_with: Option<&VirtualMachineInstanceSpec>,
) -> Vec<(String, String)> {
    let is_down = |nic: &Interface| nic.state == "down";
    let was_plugged =
        |name: &str| started_with.is_some_and(|then| find(then, name).is_none_or(Interface::is_absent));
    let nics = instance.domain.devices.interfaces.iter().filter(|nic| !nic.is_absent());
    let state = |has: &Interface| {
        let wanted = find(template, &has.name)?;
        match wanted.is_absent() {
            true => was_plugged(&has.name).then_some(Interface::ABSENT),
            false if is_down(wanted) == is_down(has) => None,
            false => Some(if is_down(wanted) { "down" } else { "up" }),
        }
    };
    nics.filter_map(|nic| Some((nic.name.clone(), state(nic)?.to_owned()))).collect()
}

/// The NICs of a template that an instance is to get.
fn added(
    template: &VirtualMachineInstanceSpec,
    instance: &VirtualMachineInstance,
) -> Vec<(Interface, Network)> {
    // One that starts has the interfaces in its Pod that it was created with.
    if instance.status.phase != "Running" {
        return Vec::new();
    }
    let wanted = template.domain.devices.interfaces.iter();
    let new = wanted.filter(|nic| {
        !nic.is_absent() && is_hotpluggable(nic, template) && find(&instance.spec, &nic.name).is_none()
    });
    new.filter_map(|nic| Some((nic.clone(), network(template, &nic.name)?.clone()))).collect()
}

/// The NICs that are absent and that the guest does not have, or no longer.
fn removed(template: &VirtualMachineInstanceSpec, instance: &VirtualMachineInstance) -> Vec<String> {
    let is_shown = |name: &str| instance.status.interfaces.iter().any(|nic| nic.name == name);
    let has = |name: &str| find(&instance.spec, name);
    let absent = [template, &instance.spec].into_iter().flat_map(|spec| &spec.domain.devices.interfaces);
    let absent = absent.filter(|nic| nic.is_absent());
    let gone = absent.filter(|nic| has(&nic.name).is_none_or(|has| has.is_absent() && !is_shown(&has.name)));
    let mut names: Vec<String> = gone.map(|nic| nic.name.clone()).collect();
    names.sort();
    names.dedup();
    names
}
