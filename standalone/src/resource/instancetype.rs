//! Instance types and preferences before they are stored.

use serde::de::DeserializeOwned;
use serde_json::Value;
use vireo_api::decode;
use vireo_api::spec::Bytes;
use vireo_api::v1::{
    CpuPreferences, Shape, VirtualMachineClusterInstancetype, VirtualMachineClusterPreference,
    VirtualMachineInstancetype, VirtualMachineInstancetypeSpec, VirtualMachinePreference,
    VirtualMachinePreferenceSpec,
};
use vireo_apiserver::resource::Cause;

use super::machine::{cause, unknown};

const TOPOLOGIES: [&str; 10] = [
    "sockets",
    "cores",
    "threads",
    "spread",
    "any",
    "preferSockets",
    "preferCores",
    "preferThreads",
    "preferSpread",
    "preferAny",
];
const ACROSS: [&str; 3] = ["SocketsCoresThreads", "SocketsCores", "CoresThreads"];

pub(super) fn instancetype(new: &mut Value, _: Option<&Value>) -> Vec<Cause> {
    read::<VirtualMachineInstancetype>(new)
        .map_or_else(|causes| causes, |(one, odd)| resources(&one.spec, odd))
}

pub(super) fn cluster_instancetype(new: &mut Value, _: Option<&Value>) -> Vec<Cause> {
    read::<VirtualMachineClusterInstancetype>(new)
        .map_or_else(|causes| causes, |(one, odd)| resources(&one.spec, odd))
}

pub(super) fn preference(new: &mut Value, _: Option<&Value>) -> Vec<Cause> {
    read::<VirtualMachinePreference>(new).map_or_else(|causes| causes, |(one, odd)| wishes(&one.spec, odd))
}

pub(super) fn cluster_preference(new: &mut Value, _: Option<&Value>) -> Vec<Cause> {
    read::<VirtualMachineClusterPreference>(new)
        .map_or_else(|causes| causes, |(one, odd)| wishes(&one.spec, odd))
}

/// An object and what is unknown in it; else what has a wrong type.
fn read<T: Shape + DeserializeOwned + Default>(value: &Value) -> Result<(T, Vec<Cause>), Vec<Cause>> {
    let decoded = decode::object::<T>(value.clone());
    let mistyped: Vec<Cause> = decoded.mistyped().iter().map(|problem| cause(problem, "")).collect();
    if !mistyped.is_empty() {
        return Err(mistyped);
    }
    let mut strangers = Vec::new();
    decoded.object.strangers("", &mut strangers);
    // There is no template in it: everything is its own.
    let odd = unknown(&strangers, "status");
    Ok((decoded.object, odd))
}

fn resources(spec: &VirtualMachineInstancetypeSpec, mut causes: Vec<Cause>) -> Vec<Cause> {
    match spec.cpu.as_ref().and_then(|cpu| cpu.guest) {
        None => causes.push(Cause::required("spec.cpu.guest", "is needed: the number of processors")),
        Some(1..=512) => {}
        Some(_) => causes.push(Cause::invalid("spec.cpu.guest", "must be from 1 to 512")),
    }
    let memory = spec.memory.as_ref();
    match memory.and_then(|memory| memory.guest.as_ref()) {
        None => causes.push(Cause::required("spec.memory.guest", "is needed: the guest's memory")),
        Some(guest) => match Bytes::try_from(guest) {
            Ok(bytes) if bytes.get() > 0 => {}
            Ok(_) => causes.push(Cause::invalid("spec.memory.guest", "must be more than nothing")),
            Err(error) => causes.push(Cause::invalid("spec.memory.guest", error.to_string())),
        },
    }
    if let Some(percent) = memory.and_then(|memory| memory.overcommit_percent) {
        let field = "spec.memory.overcommitPercent";
        if !(0..=100).contains(&percent) {
            causes.push(Cause::invalid(field, "should be between 0 and 100."));
        } else if percent > 0 && memory.is_some_and(|memory| memory.hugepages.is_some()) {
            causes.push(Cause::invalid(field, "excludes spec.memory.hugepages"));
        }
    }
    causes
}

fn wishes(spec: &VirtualMachinePreferenceSpec, mut causes: Vec<Cause>) -> Vec<Cause> {
    let one_of = |given: Option<&String>, field: &str, known: &[&str]| {
        let odd = given.filter(|given| !known.contains(&given.as_str()))?;
        Some(Cause::invalid(field, format!("{odd:?} is none of {}", known.join(", "))))
    };
    if let Some(cpu) = &spec.cpu {
        let topology = cpu.preferred_cpu_topology.as_ref();
        causes.extend(one_of(topology, "spec.cpu.preferredCPUTopology", &TOPOLOGIES));
        if let Some(options) = &cpu.spread_options {
            causes.extend(one_of(options.across.as_ref(), "spec.cpu.spreadOptions.across", &ACROSS));
            if options.ratio.is_some_and(|ratio| ratio < 1) {
                causes.push(Cause::invalid("spec.cpu.spreadOptions.ratio", "must be at least 1"));
            }
        }
        causes.extend(spread_ratio(spec, cpu));
    }
    if let Some(requirements) = &spec.requirements {
        let memory = requirements.memory.as_ref().and_then(|memory| memory.guest.as_ref());
        if let Some(Err(error)) = memory.map(Bytes::try_from) {
            causes.push(Cause::invalid("spec.requirements.memory.guest", error.to_string()));
        }
        if requirements.cpu.as_ref().is_some_and(|cpu| cpu.guest < 1) {
            causes.push(Cause::invalid("spec.requirements.cpu.guest", "must be at least 1"));
        }
    }
    causes
}

/// Cores and threads spread by two threads to a core, and in no other ratio.
fn spread_ratio(spec: &VirtualMachinePreferenceSpec, cpu: &CpuPreferences) -> Option<Cause> {
    let spreads =
        cpu.preferred_cpu_topology.as_deref().is_some_and(|one| ["spread", "preferSpread"].contains(&one));
    let options = cpu.spread_options.as_ref()?;
    let deprecated = spec.prefer_spread_socket_to_core_ratio.filter(|ratio| *ratio > 0).map(i64::from);
    let ratio = options.ratio.or(deprecated)?;
    let wrong = spreads && options.across.as_deref() == Some("CoresThreads") && ratio != 2;
    let message =
        "only a ratio of 2 (1 core 2 threads) is allowed when spreading vCPUs over cores and threads";
    wrong.then(|| Cause::invalid("spec.cpu.spreadOptions.ratio", message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(admit: fn(&mut Value, Option<&Value>) -> Vec<Cause>, spec: Value) -> Vec<String> {
        let mut value = json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "x",
            "metadata": {"name": "x"}, "spec": spec});
        admit(&mut value, None).into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn an_instance_type_says_how_much_of_what() {
        let told = |spec| fields(instancetype, spec);
        assert!(
            told(json!({"cpu": {"guest": 1}, "memory": {"guest": "1Gi", "overcommitPercent": 50}}))
                .is_empty()
        );
        assert_eq!(told(json!({})), ["spec.cpu.guest", "spec.memory.guest"]);
        assert_eq!(
            told(json!({"cpu": {"guest": 0}, "memory": {"guest": "much", "overcommitPercent": 101}})),
            ["spec.cpu.guest", "spec.memory.guest", "spec.memory.overcommitPercent"]
        );
        let large = json!({"guest": "1Gi", "overcommitPercent": 5, "hugepages": {"pageSize": "2Mi"}});
        assert_eq!(told(json!({"cpu": {"guest": 1}, "memory": large})), ["spec.memory.overcommitPercent"]);
        assert_eq!(told(json!({"cpu": {"guest": "many"}})), ["spec.cpu.guest"]);
        let misspelt =
            json!({"cpu": {"guest": 1, "dedicatedCpuPlacement": true}, "memory": {"guest": "1Gi"}});
        assert_eq!(fields(cluster_instancetype, misspelt), ["spec.cpu.dedicatedCpuPlacement"]);
    }

    #[test]
    fn a_preference_says_what_there_is() {
        let told = |spec| fields(preference, spec);
        assert!(told(json!({"cpu": {"preferredCPUTopology": "preferCores"}, "devices": {"preferredDiskBus": "sata"}})).is_empty());
        assert_eq!(
            told(
                json!({"cpu": {"preferredCPUTopology": "heap", "spreadOptions": {"across": "All", "ratio": 0}}})
            ),
            [
                "spec.cpu.preferredCPUTopology",
                "spec.cpu.spreadOptions.across",
                "spec.cpu.spreadOptions.ratio"
            ]
        );
        assert_eq!(told(json!({"devices": {"preferredDiskbus": "sata"}})), ["spec.devices.preferredDiskbus"]);
        let spread = |ratio: i64, across: &str, topology: &str| {
            let options = json!({"across": across, "ratio": ratio});
            told(json!({"cpu": {"preferredCPUTopology": topology, "spreadOptions": options}}))
        };
        assert_eq!(spread(4, "CoresThreads", "spread"), ["spec.cpu.spreadOptions.ratio"]);
        assert_eq!(spread(4, "CoresThreads", "preferSpread"), ["spec.cpu.spreadOptions.ratio"]);
        assert!(spread(2, "CoresThreads", "spread").is_empty());
        assert!(spread(4, "SocketsCores", "spread").is_empty());
        assert!(spread(4, "CoresThreads", "sockets").is_empty(), "without effect");
        let deprecated = json!({"preferSpreadSocketToCoreRatio": 3,
            "cpu": {"preferredCPUTopology": "spread", "spreadOptions": {"across": "CoresThreads"}}});
        assert_eq!(told(deprecated), ["spec.cpu.spreadOptions.ratio"]);
        let all = json!({
            "clock": {"preferredClockOffset": {"timezone": "UTC"}},
            "devices": {"preferredVideoType": "virtio"},
            "preferredLaunchSecurity": {"sev": {}},
            "preferSpreadSocketToCoreRatio": 4,
        });
        assert!(told(all).is_empty());
        let odd = json!({"clock": {"preferredClockOffset": {"utc": {"offset": 1}}}});
        assert_eq!(told(odd), ["spec.clock.preferredClockOffset.utc.offset"]);
        let demands = json!({"requirements": {"cpu": {"guest": 0}, "memory": {"guest": "much"}}});
        assert_eq!(
            fields(cluster_preference, demands),
            ["spec.requirements.memory.guest", "spec.requirements.cpu.guest"]
        );
    }
}
