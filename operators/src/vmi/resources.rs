//! What the container `compute` requests of its node.

use vireo_api::spec::{Bytes, HYPERVISOR_ANNOTATION, MilliCpus, NATIVE};
use vireo_api::v1::{Cpu, Quantity, VirtualMachineInstance};

/// What QEMU and its launcher take beside the guest's memory: some 80 MiB and 6 MiB are measured, without a display.
const QEMU: u64 = 120 << 20;
/// What a launcher with our own monitor takes: some 6 MiB are measured.
const MONITOR: u64 = 12 << 20;
/// Thousandths of a CPU for a vCPU: ten share one, as KubeVirt's `cpuAllocationRatio` has it.
const SHARED: u64 = 100;
/// And for a vCPU with a CPU of its own.
const DEDICATED: u64 = 1000;

/// Memory and CPU that an instance takes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Requests {
    /// In bytes, the overhead included.
    pub(super) memory: u64,
    /// Of the memory, what is beside the guest, in bytes.
    pub(super) overhead: u64,
    /// In thousandths of a CPU.
    pub(super) cpu: u64,
}

impl Requests {
    /// What an instance requests, else what its guest sees; and what is beside the guest. `native` is whether our own
    /// monitor runs instances that do not say who is to run them.
    pub(super) fn of(vmi: &VirtualMachineInstance, native: bool) -> Self {
        let domain = &vmi.spec.domain;
        let resource = |name: &str| {
            let resources = &domain.resources;
            resources.requests.get(name).or_else(|| resources.limits.get(name))
        };
        let bytes = |given: Option<&Quantity>| Some(Bytes::try_from(given?).ok()?.get());
        let visible = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
        let guest = bytes(resource("memory")).or_else(|| bytes(visible)).unwrap_or_default();
        let overcommits = domain.resources.overcommit_guest_overhead == Some(true);
        let overhead = if overcommits { 0 } else { overhead(vmi, native) };
        let cpu = domain.cpu.as_deref();
        let dedicated = cpu.is_some_and(|cpu| cpu.dedicated_cpu_placement == Some(true));
        let share = vcpus(cpu).saturating_mul(if dedicated { DEDICATED } else { SHARED });
        let requested = resource("cpu").and_then(|given| MilliCpus::try_from(given).ok());
        Self {
            memory: guest.saturating_add(overhead),
            overhead,
            cpu: requested.map_or(share, MilliCpus::get),
        }
    }
}

fn vcpus(cpu: Option<&Cpu>) -> u64 {
    let Some(cpu) = cpu else { return 1 };
    let counts = [cpu.sockets, cpu.cores, cpu.threads];
    counts.into_iter().map(|count| u64::from(count.unwrap_or(1).max(1))).fold(1, u64::saturating_mul)
}

/// Where it is not known who runs the guest, it may be QEMU.
fn overhead(vmi: &VirtualMachineInstance, native: bool) -> u64 {
    let wanted = vmi.metadata.annotations.get(HYPERVISOR_ANNOTATION);
    if wanted.map_or(native, |wanted| wanted.eq_ignore_ascii_case(NATIVE)) { MONITOR } else { QEMU }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MI: u64 = 1 << 20;

    fn vmi(domain: Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({"spec": {"domain": domain}})).unwrap()
    }

    #[test]
    fn an_instance_takes_what_it_requests_or_what_its_guest_sees() {
        let guest = json!({"guest": "64Mi"});
        for (domain, memory, cpu) in [
            (json!({"memory": guest}), 64 * MI + QEMU, 100),
            (json!({"memory": guest, "cpu": {"cores": 2, "sockets": 3, "threads": 0}}), 64 * MI + QEMU, 600),
            (
                json!({"memory": guest, "cpu": {"cores": 2, "dedicatedCpuPlacement": true}}),
                64 * MI + QEMU,
                2000,
            ),
            (
                json!({"memory": guest, "resources": {"requests": {"memory": "32Mi", "cpu": "10m"}}}),
                32 * MI + QEMU,
                10,
            ),
            (json!({"resources": {"limits": {"memory": "1Gi", "cpu": 2}}}), 1024 * MI + QEMU, 2000),
            (json!({"memory": guest, "resources": {"overcommitGuestOverhead": true}}), 64 * MI, 100),
            (json!({"cpu": {"cores": u32::MAX, "sockets": u32::MAX, "threads": u32::MAX}}), QEMU, u64::MAX),
            (json!({"memory": {"guest": "18446744073709551615"}}), u64::MAX, 100),
        ] {
            let Requests { memory: has, cpu: vcpus, .. } = Requests::of(&vmi(domain.clone()), false);
            assert_eq!((has, vcpus), (memory, cpu), "{domain}");
        }
    }

    #[test]
    fn our_own_monitor_takes_less() {
        let mut vmi = vmi(json!({}));
        assert_eq!(Requests::of(&vmi, true).overhead, MONITOR);
        vmi.metadata.annotations.insert(HYPERVISOR_ANNOTATION.to_owned(), "native".to_owned());
        assert_eq!(Requests::of(&vmi, false).overhead, MONITOR);
        vmi.metadata.annotations.insert(HYPERVISOR_ANNOTATION.to_owned(), "qemu".to_owned());
        assert_eq!(Requests::of(&vmi, true).overhead, QEMU, "what is asked for counts");
    }
}
