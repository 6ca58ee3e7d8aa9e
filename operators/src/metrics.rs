//! Metrics of virt-controller, with KubeVirt's names.

mod resources;

use std::collections::BTreeMap;

use jiff::Timestamp;
use vireo_api::v1::VirtualMachine;
use vireo_client::metrics::{Labels, Metric, MetricSet, NONE, Value, gauge, vnics};

use crate::data_volume::Storage;
use crate::vmi::LauncherPod;

/// Whether it can lead, and whether it leads.
pub const LEADERSHIP: [Metric; 2] = [
    gauge("kubevirt_virt_controller_ready_status", "Whether this virt-controller can lead."),
    gauge("kubevirt_virt_controller_leading_status", "Whether this virt-controller leads."),
];
pub(crate) const OUTDATED: Metric = gauge(
    "kubevirt_vmi_number_of_outdated",
    "How many running VMIs have a launcher of another release than the components.",
);
pub(crate) const EMULATION: Metric = gauge(
    "kubevirt_configuration_emulation_enabled",
    "Whether VMIs run on nodes without KVM, where they are emulated.",
);
const VM_INFO: Metric = gauge("kubevirt_vm_info", "A VM and what it is.");
const VM_LABELS: Metric = gauge("kubevirt_vm_labels", "The labels of a VM.");
const OVERHEAD: Metric = gauge(
    "kubevirt_vmi_launcher_memory_overhead_bytes",
    "The memory that a launcher Pod requests beside that of its guest.",
);
const VNIC_INFO: Metric = gauge("kubevirt_vm_vnic_info", "A NIC of a VM, and what it is.");
const VM_CREATED: Metric = gauge("kubevirt_vm_create_date_timestamp_seconds", "When a VM was created.");
const TRANSITION_HELP: &str =
    "When the status of a VM changed the last time, in seconds since 1970; 0 for a VM in another status.";
/// Groups of statuses, their metrics, and the statuses.
const GROUPS: [(&str, Metric, &[&str]); 5] = [
    (
        "starting",
        gauge("kubevirt_vm_starting_status_last_transition_timestamp_seconds", TRANSITION_HELP),
        &["Provisioning", "Starting", "WaitingForVolumeBinding"],
    ),
    (
        "running",
        gauge("kubevirt_vm_running_status_last_transition_timestamp_seconds", TRANSITION_HELP),
        &["Running"],
    ),
    (
        "migrating",
        gauge("kubevirt_vm_migrating_status_last_transition_timestamp_seconds", TRANSITION_HELP),
        &["Migrating"],
    ),
    (
        "non_running",
        gauge("kubevirt_vm_non_running_status_last_transition_timestamp_seconds", TRANSITION_HELP),
        &["Stopped", "Paused", "Stopping", "Terminating"],
    ),
    // And all others.
    ("error", gauge("kubevirt_vm_error_status_last_transition_timestamp_seconds", TRANSITION_HELP), &[]),
];
/// The conditions that change with the status.
const CONDITIONS: [&str; 3] = ["Ready", "Failure", "Paused"];

/// Adds the metrics of the launcher Pod of a VMI.
pub(crate) fn add_launcher(set: &mut MetricSet, namespace: &str, vmi: &str, pod: &LauncherPod) {
    let labels = vec![("namespace".into(), namespace.to_owned()), ("name".into(), vmi.to_owned())];
    set.add(&OVERHEAD, labels, pod.overhead().map(Value::from));
}

/// The labels of a VM under names that Prometheus accepts, where there are any. Of those that have the same name then, the
/// first one counts.
fn add_labels(set: &mut MetricSet, vm: &VirtualMachine) {
    let mut own = BTreeMap::new();
    for (name, value) in &vm.metadata.labels {
        let plain: String =
            name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect();
        own.entry(format!("label_{plain}")).or_insert_with(|| value.clone());
    }
    if !own.is_empty() {
        let own = own.into_iter().map(|(name, value)| (name.into(), value));
        set.add(&VM_LABELS, labels(vm).into_iter().chain(own).collect(), Some(1.into()));
    }
}

/// Adds the metrics of a VM.
pub(crate) fn add_vm(set: &mut MetricSet, vm: &VirtualMachine, storage: &dyn Storage) {
    resources::add(set, vm, storage);
    add_labels(set, vm);
    for vnic in vm.spec.template.iter().flat_map(|template| vnics(&template.spec)) {
        set.add(&VNIC_INFO, labels(vm).into_iter().chain(vnic).collect(), Some(1.into()));
    }
    let status = vm.status.printable_status.as_str();
    let group = GROUPS.iter().position(|(.., statuses)| statuses.contains(&status));
    let group = group.unwrap_or(GROUPS.len() - 1);
    for (index, (_, metric, _)) in GROUPS.iter().enumerate() {
        let at = if index == group { last_transition(vm) } else { 0 };
        set.add(metric, labels(vm), Some(at.into()));
    }
    let created = vm.metadata.creation_timestamp.as_deref().and_then(seconds);
    set.add(&VM_CREATED, labels(vm), created.map(Value::from));
    // A VM that no controller has seen yet has no status.
    if status.is_empty() {
        return;
    }
    let template = vm.spec.template.as_ref();
    let known = |value: Option<&str>| value.filter(|text| !text.is_empty()).unwrap_or(NONE).to_owned();
    let annotation = |name: &str| {
        let found = template.and_then(|template| template.metadata.annotations.get(name));
        known(found.map(String::as_str))
    };
    let machine = template.and_then(|template| template.spec.domain.machine.as_ref());
    let mut info = labels(vm);
    info.extend([
        ("os".into(), annotation("vm.kubevirt.io/os")),
        ("workload".into(), annotation("vm.kubevirt.io/workload")),
        ("flavor".into(), annotation("vm.kubevirt.io/flavor")),
        ("machine_type".into(), known(machine.map(|machine| machine.r#type.as_str()))),
        ("instance_type".into(), known(vm.spec.instancetype.as_ref().map(|one| one.name.as_str()))),
        ("preference".into(), known(vm.spec.preference.as_ref().map(|one| one.name.as_str()))),
        ("status".into(), status.to_lowercase()),
        ("status_group".into(), GROUPS[group].0.to_owned()),
    ]);
    set.add(&VM_INFO, info, Some(1.into()));
}

fn labels(vm: &VirtualMachine) -> Labels {
    let vireo_api::v1::ObjectMeta { name, namespace, .. } = &vm.metadata;
    vec![("name".into(), name.clone()), ("namespace".into(), namespace.clone())]
}

/// When its status changed the last time, in seconds since 1970; 0 where that is not known.
fn last_transition(vm: &VirtualMachine) -> u64 {
    let conditions = vm.status.conditions.iter().filter(|one| CONDITIONS.contains(&one.r#type.as_str()));
    conditions.filter_map(|one| seconds(one.last_transition_time.as_deref()?)).max().unwrap_or_default()
}

fn seconds(time: &str) -> Option<u64> {
    u64::try_from(time.parse::<Timestamp>().ok()?.as_second()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use vireo_client::ObjectKey;
    use vireo_client::metrics::encode;

    use super::*;
    use crate::claim::ClaimState;
    use crate::data_volume::DataVolume;

    /// One claim.
    struct Claims;

    impl Storage for Claims {
        fn claim(&self, key: &ObjectKey) -> Option<ClaimState> {
            let claim = json!({"metadata": {}, "spec": {"volumeMode": "Block"}, "status": {"capacity": {"storage": "1Gi"}}});
            (key.name == "data").then(|| ClaimState::read(claim).unwrap())
        }

        fn data_volume(&self, _: &ObjectKey) -> Option<DataVolume> {
            None
        }

        fn serves_data_volumes(&self) -> bool {
            false
        }
    }

    fn lines(vm: Value) -> Vec<String> {
        let mut set = MetricSet::default();
        add_vm(&mut set, &serde_json::from_value(vm).unwrap(), &Claims);
        let text = encode(set, &[]).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn a_vm_has_the_metrics_of_kubevirt() {
        let condition = |kind: &str, second: u32| json!({"type": kind, "status": "True", "lastTransitionTime": format!("1970-01-01T00:00:{second}Z")});
        let vm = lines(json!({
            "metadata": {"name": "a", "namespace": "n", "creationTimestamp": "1970-01-01T00:00:10Z",
                "labels": {"app.kubernetes.io/name": "web", "app-kubernetes-io/name": "other"}},
            "spec": {"instancetype": {"name": "small"}, "template": {
                "metadata": {"annotations": {"vm.kubevirt.io/os": "debian"}},
                "spec": {"domain": {"machine": {"type": "q35"}}}}},
            "status": {"printableStatus": "Running", "conditions": [
                condition("Ready", 20), condition("Paused", 15), condition("LiveMigratable", 30)]},
        }));
        let at = |group: &str, seconds: u32| {
            format!(
                r#"kubevirt_vm_{group}_status_last_transition_timestamp_seconds{{name="a",namespace="n"}} {seconds}"#
            )
        };
        let cpu = |unit: &str| {
            format!(
                r#"kubevirt_vm_resource_requests{{name="a",namespace="n",resource="cpu",unit="{unit}",source="default"}} 1"#
            )
        };
        assert_eq!(
            vm,
            [
                r#"kubevirt_vm_create_date_timestamp_seconds{name="a",namespace="n"} 10"#.to_owned(),
                at("error", 0),
                concat!(
                    r#"kubevirt_vm_info{name="a",namespace="n",os="debian",workload="<none>",flavor="<none>","#,
                    r#"machine_type="q35",instance_type="small",preference="<none>",status="running","#,
                    r#"status_group="running"} 1"#
                )
                .to_owned(),
                r#"kubevirt_vm_labels{name="a",namespace="n",label_app_kubernetes_io_name="other"} 1"#.to_owned(),
                at("migrating", 0),
                at("non_running", 0),
                cpu("cores"),
                cpu("threads"),
                cpu("sockets"),
                at("running", 20),
                at("starting", 0),
            ]
        );
    }

    #[test]
    fn the_overhead_of_a_launcher_is_what_its_pod_says() {
        let text = |annotations: Value| {
            let pod = json!({"metadata": {"name": "p", "annotations": annotations}});
            let mut set = MetricSet::default();
            add_launcher(&mut set, "n", "a", &LauncherPod::read(pod).unwrap());
            encode(set, &[]).unwrap()
        };
        let with = text(json!({"kubevirt.io/memory-overhead-bytes": "125829120"}));
        let line = r#"kubevirt_vmi_launcher_memory_overhead_bytes{namespace="n",name="a"} 125829120"#;
        assert!(with.contains(line), "{with}");
        assert!(!text(json!({})).contains("overhead"), "that of an earlier release is not known");
    }

    #[test]
    fn a_vm_has_its_resources_disks_and_nics() {
        let all = lines(json!({
            "metadata": {"name": "a", "namespace": "n"},
            "spec": {"template": {"spec": {
                "domain": {
                    "cpu": {"cores": 2, "sockets": 3}, "memory": {"guest": "1Gi"},
                    "resources": {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"cpu": "1", "memory": "3Gi"}},
                    "devices": {"interfaces": [
                        {"name": "default", "masquerade": {}, "model": "e1000e"}, {"name": "lan", "bridge": {}}]},
                },
                "networks": [{"name": "default", "pod": {}}, {"name": "lan", "multus": {"networkName": "x/lan"}}],
                "volumes": [
                    {"name": "disk", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "none", "persistentVolumeClaim": {"claimName": "absent"}}],
            }}},
        }));
        let own = r#"name="a",namespace="n""#;
        let request = |resource: &str, unit: &str, source: &str, value: &str| {
            format!(
                r#"kubevirt_vm_resource_requests{{{own},resource="{resource}",unit="{unit}",source="{source}"}} {value}"#
            )
        };
        let nic = |name: &str, binding: &str, network: &str, model: &str| {
            format!(
                r#"kubevirt_vm_vnic_info{{{own},vnic_name="{name}",binding_type="core",network="{network}",binding_name="{binding}",model="{model}"}} 1"#
            )
        };
        for line in [
            request("memory", "bytes", "guest", "1073741824"),
            request("memory", "bytes", "domain", "2147483648"),
            request("cpu", "cores", "requests", "0.5"),
            request("cpu", "cores", "domain", "2"),
            request("cpu", "sockets", "domain", "3"),
            request("cpu", "threads", "domain", "1"),
            format!(r#"kubevirt_vm_resource_limits{{{own},resource="memory",unit="bytes"}} 3221225472"#),
            format!(r#"kubevirt_vm_resource_limits{{{own},resource="cpu",unit="cores"}} 1"#),
            format!(
                r#"kubevirt_vm_disk_allocated_size_bytes{{{own},persistentvolumeclaim="data",volume_mode="Block",device="disk"}} 1073741824"#
            ),
            nic("default", "masquerade", "pod networking", "e1000e"),
            nic("lan", "bridge", "x/lan", "<none>"),
        ] {
            assert!(all.contains(&line), "{line} is missing in {all:#?}");
        }
        assert!(!all.iter().any(|line| line.contains("absent")), "{all:#?}");
    }

    #[test]
    fn statuses_are_grouped_and_unknown_ones_are_errors() {
        for (status, group) in [
            ("Stopped", "non_running"),
            ("WaitingForVolumeBinding", "starting"),
            ("Migrating", "migrating"),
            ("CrashLoopBackOff", "error"),
            ("SomethingElse", "error"),
        ] {
            let all = lines(json!({"metadata": {"name": "a"}, "status": {"printableStatus": status}}));
            let expected = format!(r#"status="{}",status_group="{group}"}} 1"#, status.to_lowercase());
            assert!(all.iter().any(|line| line.ends_with(&expected)), "{status}: {all:#?}");
        }
        let new = lines(json!({"metadata": {"name": "a"}}));
        assert!(!new.iter().any(|line| line.contains("kubevirt_vm_info")), "{new:#?}");
    }
}
