use std::collections::BTreeMap;

use serde_json::Value;
use vireo_api::spec::{Bytes, HYPERVISOR_ANNOTATION, HYPERVISOR_CONDITION, MilliCpus, NATIVE};
use vireo_api::v1::Quantity;

/// What QEMU and its launcher take beside the guest's memory: some 80 MiB and 6 MiB are measured, without a screen.
const QEMU: u64 = 120 << 20;
/// What a launcher with our own monitor takes: some 6 MiB are measured.
const MONITOR: u64 = 12 << 20;
/// Thousandths of a processor for one of a guest's: ten share one, as KubeVirt's `cpuAllocationRatio` has it.
const SHARED: u64 = 100;
/// And for one that is the guest's alone.
const WHOLE: u64 = 1000;

/// Memory and processors: what there is, or what is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// In bytes.
    pub memory: u64,
    /// In thousandths.
    pub cpu: u64,
}

impl Room {
    /// What a node has for instances. What it does not say is no limit.
    pub(super) fn of(allocatable: &BTreeMap<String, Quantity>) -> Self {
        let memory = allocatable.get("memory").and_then(|has| Bytes::try_from(has).ok());
        let cpu = allocatable.get("cpu").and_then(|has| MilliCpus::try_from(has).ok());
        Self { memory: memory.map_or(u64::MAX, Bytes::get), cpu: cpu.map_or(u64::MAX, MilliCpus::get) }
    }

    /// What an instance, as it is stored, takes of a node: what it requests, else what its guest sees; and what is beside
    /// the guest.
    pub fn asked(instance: &Value) -> Self {
        let domain = |path: &str| instance.pointer(&format!("/spec/domain{path}"));
        let resource = |name: &str| {
            let given = |list: &str| domain(&format!("/resources/{list}/{name}"));
            quantity(given("requests").or_else(|| given("limits")))
        };
        let bytes = |given: Option<Quantity>| Some(Bytes::try_from(&given?).ok()?.get());
        let guest = bytes(resource("memory")).or_else(|| bytes(quantity(domain("/memory/guest"))));
        let overcommits = domain("/resources/overcommitGuestOverhead") == Some(&Value::Bool(true));
        let overhead = if overcommits { 0 } else { overhead(instance) };
        let count =
            |field: &str| domain(&format!("/cpu/{field}")).and_then(Value::as_u64).unwrap_or(1).max(1);
        let processors = ["sockets", "cores", "threads"].into_iter().map(count).fold(1, u64::saturating_mul);
        let alone = domain("/cpu/dedicatedCpuPlacement") == Some(&Value::Bool(true));
        let share = processors.saturating_mul(if alone { WHOLE } else { SHARED });
        let requested = resource("cpu").and_then(|given| MilliCpus::try_from(&given).ok());
        Self {
            memory: guest.unwrap_or_default().saturating_add(overhead),
            cpu: requested.map_or(share, MilliCpus::get),
        }
    }

    /// What is left of it.
    #[must_use]
    pub(super) fn without(self, taken: Self) -> Self {
        Self { memory: self.memory.saturating_sub(taken.memory), cpu: self.cpu.saturating_sub(taken.cpu) }
    }

    /// What of it is not enough for somebody, in the words of kube-scheduler.
    pub(super) fn lacks(self, asked: Self) -> Vec<&'static str> {
        let words =
            [(self.cpu < asked.cpu, "Insufficient cpu"), (self.memory < asked.memory, "Insufficient memory")];
        words.into_iter().filter(|(lacks, _)| *lacks).map(|(_, word)| word).collect()
    }
}

fn quantity(value: Option<&Value>) -> Option<Quantity> {
    serde_json::from_value(value?.clone()).ok()
}

/// Where it is not known who runs the guest, it may be QEMU.
fn overhead(instance: &Value) -> u64 {
    let conditions = instance.pointer("/status/conditions").and_then(Value::as_array);
    let chosen = conditions
        .into_iter()
        .flatten()
        .find(|one| one.get("type").and_then(Value::as_str) == Some(HYPERVISOR_CONDITION));
    let wanted =
        instance.get("metadata").and_then(|metadata| metadata.get("annotations")?.get(HYPERVISOR_ANNOTATION));
    let says = chosen.and_then(|one| one.get("reason")).or(wanted).and_then(Value::as_str);
    if says.is_some_and(|says| says.eq_ignore_ascii_case(NATIVE)) { MONITOR } else { QEMU }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MI: u64 = 1 << 20;

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
            (json!({"cpu": {"cores": u64::MAX, "sockets": u64::MAX}}), QEMU, u64::MAX),
            (json!({"memory": {"guest": "18446744073709551615"}}), u64::MAX, 100),
        ] {
            let asked = Room::asked(&json!({"spec": {"domain": domain}}));
            assert_eq!(asked, Room { memory, cpu }, "{domain}");
        }
    }

    #[test]
    fn our_own_monitor_takes_less() {
        let mut instance =
            json!({"metadata": {"annotations": {HYPERVISOR_ANNOTATION: "native"}}, "spec": {}});
        assert_eq!(Room::asked(&instance).memory, MONITOR);
        instance["status"]["conditions"] = json!([{"type": HYPERVISOR_CONDITION, "reason": "Qemu"}]);
        assert_eq!(Room::asked(&instance).memory, QEMU, "what runs counts");
    }

    #[test]
    fn a_node_has_what_it_says() {
        let said = [("memory", "1Gi"), ("cpu", "2")];
        let said = said.map(|(name, text)| (name.to_owned(), Quantity(text.to_owned()))).into();
        let room = Room::of(&said);
        assert_eq!(room, Room { memory: 1024 * MI, cpu: 2000 });
        assert_eq!(Room::of(&BTreeMap::new()), Room { memory: u64::MAX, cpu: u64::MAX });
        let left = room.without(Room { memory: 1000 * MI, cpu: 5000 });
        assert_eq!(left, Room { memory: 24 * MI, cpu: 0 });
        assert_eq!(left.lacks(Room { memory: 24 * MI, cpu: 0 }), Vec::<&str>::new());
        assert_eq!(left.lacks(Room { memory: 25 * MI, cpu: 1 }), ["Insufficient cpu", "Insufficient memory"]);
    }
}
