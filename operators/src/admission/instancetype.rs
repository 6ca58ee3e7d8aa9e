//! Instance types and preferences in admission.

use serde::de::DeserializeOwned;
use serde_json::Value;
use vireo_api::decode;
use vireo_api::spec::Bytes;
use vireo_api::v1::{
    CpuPreferences, Shape, VirtualMachineClusterInstancetype, VirtualMachineClusterPreference,
    VirtualMachineInstancetype, VirtualMachineInstancetypeSpec, VirtualMachinePreference,
    VirtualMachinePreferenceSpec,
};

use super::vm::{mistyped, unknown};
use crate::Problem;

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

/// Validates an instance type.
pub fn instancetype(new: &Value) -> Vec<Problem> {
    read::<VirtualMachineInstancetype>(new)
        .map_or_else(|problems| problems, |(one, odd)| validate_instancetype(&one.spec, odd))
}

/// Validates an instance type of the cluster.
pub fn cluster_instancetype(new: &Value) -> Vec<Problem> {
    read::<VirtualMachineClusterInstancetype>(new)
        .map_or_else(|problems| problems, |(one, odd)| validate_instancetype(&one.spec, odd))
}

/// Validates a preference.
pub fn preference(new: &Value) -> Vec<Problem> {
    read::<VirtualMachinePreference>(new)
        .map_or_else(|problems| problems, |(one, odd)| validate_preference(&one.spec, odd))
}

/// Validates a preference of the cluster.
pub fn cluster_preference(new: &Value) -> Vec<Problem> {
    read::<VirtualMachineClusterPreference>(new)
        .map_or_else(|problems| problems, |(one, odd)| validate_preference(&one.spec, odd))
}

/// An object and what is unknown in it; else what has a wrong type.
fn read<T: Shape + DeserializeOwned + Default>(value: &Value) -> Result<(T, Vec<Problem>), Vec<Problem>> {
    let decoded = decode::object::<T>(value.clone());
    let mistyped = mistyped(decoded.mistyped());
    if !mistyped.is_empty() {
        return Err(mistyped);
    }
    let mut unknown_fields = Vec::new();
    decoded.object.unknown_fields("", &mut unknown_fields);
    // There is no template in it: everything is its own.
    let odd = unknown(&unknown_fields, "status");
    Ok((decoded.object, odd))
}

fn validate_instancetype(spec: &VirtualMachineInstancetypeSpec, mut problems: Vec<Problem>) -> Vec<Problem> {
    match spec.cpu.as_ref().and_then(|cpu| cpu.guest) {
        None => problems.push(Problem::required("spec.cpu.guest", "is needed: the number of vCPUs")),
        Some(1..=512) => {}
        Some(_) => problems.push(Problem::invalid("spec.cpu.guest", "must be from 1 to 512")),
    }
    let memory = spec.memory.as_ref();
    match memory.and_then(|memory| memory.guest.as_ref()) {
        None => problems.push(Problem::required("spec.memory.guest", "is needed: the guest's memory")),
        Some(guest) => match Bytes::try_from(guest) {
            Ok(bytes) if bytes.get() > 0 => {}
            Ok(_) => problems.push(Problem::invalid("spec.memory.guest", "must be more than nothing")),
            Err(error) => problems.push(Problem::invalid("spec.memory.guest", error.to_string())),
        },
    }
    if let Some(percent) = memory.and_then(|memory| memory.overcommit_percent) {
        let field = "spec.memory.overcommitPercent";
        if !(0..=100).contains(&percent) {
            problems.push(Problem::invalid(field, "should be between 0 and 100."));
        } else if percent > 0 && memory.is_some_and(|memory| memory.hugepages.is_some()) {
            problems.push(Problem::invalid(field, "excludes spec.memory.hugepages"));
        }
    }
    problems
}

fn validate_preference(spec: &VirtualMachinePreferenceSpec, mut problems: Vec<Problem>) -> Vec<Problem> {
    let one_of = |given: Option<&String>, field: &str, known: &[&str]| {
        let odd = given.filter(|given| !known.contains(&given.as_str()))?;
        Some(Problem::invalid(field, format!("{odd:?} is none of {}", known.join(", "))))
    };
    if let Some(cpu) = &spec.cpu {
        let topology = cpu.preferred_cpu_topology.as_ref();
        problems.extend(one_of(topology, "spec.cpu.preferredCPUTopology", &TOPOLOGIES));
        if let Some(options) = &cpu.spread_options {
            problems.extend(one_of(options.across.as_ref(), "spec.cpu.spreadOptions.across", &ACROSS));
            if options.ratio.is_some_and(|ratio| ratio < 1) {
                problems.push(Problem::invalid("spec.cpu.spreadOptions.ratio", "must be at least 1"));
            }
        }
        problems.extend(spread_ratio(spec, cpu));
    }
    if let Some(requirements) = &spec.requirements {
        let memory = requirements.memory.as_ref().and_then(|memory| memory.guest.as_ref());
        if let Some(Err(error)) = memory.map(Bytes::try_from) {
            problems.push(Problem::invalid("spec.requirements.memory.guest", error.to_string()));
        }
        if requirements.cpu.as_ref().is_some_and(|cpu| cpu.guest < 1) {
            problems.push(Problem::invalid("spec.requirements.cpu.guest", "must be at least 1"));
        }
    }
    problems
}

/// Cores and threads spread by two threads to a core, and in no other ratio.
fn spread_ratio(spec: &VirtualMachinePreferenceSpec, cpu: &CpuPreferences) -> Option<Problem> {
    let spreads =
        cpu.preferred_cpu_topology.as_deref().is_some_and(|one| ["spread", "preferSpread"].contains(&one));
    let options = cpu.spread_options.as_ref()?;
    let deprecated = spec.prefer_spread_socket_to_core_ratio.filter(|ratio| *ratio > 0).map(i64::from);
    let ratio = options.ratio.or(deprecated)?;
    let wrong = spreads && options.across.as_deref() == Some("CoresThreads") && ratio != 2;
    let message =
        "only a ratio of 2 (1 core 2 threads) is allowed when spreading vCPUs over cores and threads";
    wrong.then(|| Problem::invalid("spec.cpu.spreadOptions.ratio", message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(admit: fn(&Value) -> Vec<Problem>, spec: Value) -> Vec<String> {
        let value = json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "x",
            "metadata": {"name": "x"}, "spec": spec});
        admit(&value).into_iter().map(|problem| problem.field).collect()
    }

    #[test]
    fn instance_types_are_validated() {
        let found = |spec| fields(instancetype, spec);
        assert!(
            found(json!({"cpu": {"guest": 1}, "memory": {"guest": "1Gi", "overcommitPercent": 50}}))
                .is_empty()
        );
        assert_eq!(found(json!({})), ["spec.cpu.guest", "spec.memory.guest"]);
        assert_eq!(
            found(json!({"cpu": {"guest": 0}, "memory": {"guest": "much", "overcommitPercent": 101}})),
            ["spec.cpu.guest", "spec.memory.guest", "spec.memory.overcommitPercent"]
        );
        let large = json!({"guest": "1Gi", "overcommitPercent": 5, "hugepages": {"pageSize": "2Mi"}});
        assert_eq!(found(json!({"cpu": {"guest": 1}, "memory": large})), ["spec.memory.overcommitPercent"]);
        assert_eq!(found(json!({"cpu": {"guest": "many"}})), ["spec.cpu.guest"]);
        let misspelt =
            json!({"cpu": {"guest": 1, "dedicatedCpuPlacement": true}, "memory": {"guest": "1Gi"}});
        assert_eq!(fields(cluster_instancetype, misspelt), ["spec.cpu.dedicatedCpuPlacement"]);
    }

    #[test]
    fn preferences_are_validated() {
        let found = |spec| fields(preference, spec);
        assert!(found(json!({"cpu": {"preferredCPUTopology": "preferCores"}, "devices": {"preferredDiskBus": "sata"}})).is_empty());
        assert_eq!(
            found(
                json!({"cpu": {"preferredCPUTopology": "heap", "spreadOptions": {"across": "All", "ratio": 0}}})
            ),
            [
                "spec.cpu.preferredCPUTopology",
                "spec.cpu.spreadOptions.across",
                "spec.cpu.spreadOptions.ratio"
            ]
        );
        assert_eq!(
            found(json!({"devices": {"preferredDiskbus": "sata"}})),
            ["spec.devices.preferredDiskbus"]
        );
        let spread = |ratio: i64, across: &str, topology: &str| {
            let options = json!({"across": across, "ratio": ratio});
            found(json!({"cpu": {"preferredCPUTopology": topology, "spreadOptions": options}}))
        };
        assert_eq!(spread(4, "CoresThreads", "spread"), ["spec.cpu.spreadOptions.ratio"]);
        assert_eq!(spread(4, "CoresThreads", "preferSpread"), ["spec.cpu.spreadOptions.ratio"]);
        assert!(spread(2, "CoresThreads", "spread").is_empty());
        assert!(spread(4, "SocketsCores", "spread").is_empty());
        assert!(spread(4, "CoresThreads", "sockets").is_empty(), "without effect");
        let deprecated = json!({"preferSpreadSocketToCoreRatio": 3,
            "cpu": {"preferredCPUTopology": "spread", "spreadOptions": {"across": "CoresThreads"}}});
        assert_eq!(found(deprecated), ["spec.cpu.spreadOptions.ratio"]);
        let all = json!({
            "clock": {"preferredClockOffset": {"timezone": "UTC"}},
            "devices": {"preferredVideoType": "virtio"},
            "preferredLaunchSecurity": {"sev": {}},
            "preferSpreadSocketToCoreRatio": 4,
        });
        assert!(found(all).is_empty());
        let odd = json!({"clock": {"preferredClockOffset": {"utc": {"offset": 1}}}});
        assert_eq!(found(odd), ["spec.clock.preferredClockOffset.utc.offset"]);
        let requirements = json!({"requirements": {"cpu": {"guest": 0}, "memory": {"guest": "much"}}});
        assert_eq!(
            fields(cluster_preference, requirements),
            ["spec.requirements.memory.guest", "spec.requirements.cpu.guest"]
        );
    }
}
