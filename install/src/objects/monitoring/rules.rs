//! The rules of Prometheus, with KubeVirt's names.

use serde_json::{Value, json};
use vireo_api::names::KVM_RESOURCE;

use crate::objects::NAMESPACE;

/// The components, whose Pods are called after them.
const COMPONENTS: [&str; 4] = ["virt-api", "virt-controller", "virt-handler", "virt-operator"];
/// Those of which one replica leads.
const LEADING: [&str; 2] = ["virt-controller", "virt-operator"];

/// The name of requests of versions of KubeVirt's API that are deprecated.
const DEPRECATED_REQUESTS: &str = "cluster:kubevirt_api_request_deprecated_total:sum";
/// The name of the memory that components use beyond what they request.
const MEMORY_DELTA: &str = "container:kubevirt_memory_delta_from_requested_bytes:max";

fn record(name: impl Into<String>, expr: impl Into<String>) -> Value {
    json!({"record": name.into(), "expr": expr.into()})
}

/// A component in the name of a metric.
fn plain(component: &str) -> String {
    component.replace('-', "_")
}

/// KubeVirt's, by what kube-state-metrics and the kubelets know of nodes and Pods, and what components say. Those whose
/// names have colons are its present ones; the others, which it has replaced by them, stay for dashboards that ask for them.
pub(super) fn records() -> Vec<Value> {
    // Arbiters keep quorum and run no Pods of users.
    let without_pods = "cluster:kubevirt_non_schedulable_nodes:sum";
    let nodes = format!("count(count by (node) (kube_node_status_allocatable)) - {without_pods}");
    let with_kvm = format!("count({} != 0) or vector(0)", allocatable_kvm());
    let transitions = ["error", "migrating", "non_running", "running", "starting"]
        .map(|group| format!("kubevirt_vm_{group}_status_last_transition_timestamp_seconds"));
    let vms = format!("sum by (namespace) (count by (name, namespace) ({}))", transitions.join(" + "));
    let deprecated = "sum by (group, version, resource, subresource, verb) (apiserver_request_total) \
                      and on(group, version, resource, subresource) \
                      apiserver_requested_deprecated_apis{group=\"kubevirt.io\"}";
    let orphaned = "kube_persistentvolumeclaim_resource_requests_storage_bytes \
                    unless on(namespace, persistentvolumeclaim) \
                    (kube_pod_spec_volumes_persistentvolumeclaims_info or kubevirt_vm_disk_allocated_size_bytes)";
    let mut records = vec![
        record(without_pods, "count(count by (node) (kube_node_role{role=\"arbiter\"})) or vector(0)"),
        record("cluster:kubevirt_nodes_allocatable:count", &*nodes),
        record("kubevirt_allocatable_nodes", nodes),
        record("cluster:kubevirt_nodes_with_kvm:count", &*with_kvm),
        record("kubevirt_nodes_with_kvm", with_kvm),
        record("namespace:kubevirt_vm:sum", &*vms),
        record("kubevirt_number_of_vms", vms),
        record("kubevirt_vm_created_total", "sum by (namespace) (kubevirt_vm_created_by_pod_total)"),
        record(DEPRECATED_REQUESTS, deprecated),
        record("kubevirt_api_request_deprecated_total", DEPRECATED_REQUESTS),
        record("pvc:kubevirt_suspected_orphaned_storage_bytes:info", orphaned),
    ];
    records.extend(COMPONENTS.into_iter().flat_map(of_component));
    records.extend(of_vmis());
    records.extend(["rss", "working_set_bytes"].into_iter().flat_map(memory_margin));
    records.extend(["rss", "working_set_bytes"].map(memory_delta));
    records.push(record("kubevirt_memory_delta_from_requested_bytes", MEMORY_DELTA));
    records
}

/// What kube-state-metrics knows of the nodes' KVM.
fn allocatable_kvm() -> String {
    let kvm = KVM_RESOURCE.replace(['.', '/'], "_");
    format!("kube_node_status_allocatable{{resource=\"{kvm}\"}}")
}

/// How many Pods of a component there are, by what they are doing.
fn of_component(component: &str) -> Vec<Value> {
    let name = plain(component);
    let pods = format!("namespace=\"{NAMESPACE}\", pod=~\"{component}-.*\"");
    let up = format!("sum(up{{{pods}}}) or vector(0)");
    let running = format!("count(kube_pod_status_phase{{{pods}, phase=\"Running\"}} == 1) or vector(0)");
    let status =
        |what: &str| format!("sum(kubevirt_{name}_{what}_status{{namespace=\"{NAMESPACE}\"}}) or vector(0)");
    let mut records = vec![
        record(format!("cluster:kubevirt_{name}_up:sum"), &*up),
        record(format!("kubevirt_{name}_up"), up),
        record(format!("cluster:kubevirt_{name}_pods_running:count"), running),
        record(format!("cluster:kubevirt_{name}_ready:sum"), status("ready")),
    ];
    if LEADING.contains(&component) {
        records.extend([
            record(format!("kubevirt_{name}_ready"), status("ready")),
            record(format!("cluster:kubevirt_{name}_leading:sum"), status("leading")),
            record(format!("kubevirt_{name}_leading"), status("leading")),
        ]);
    }
    records
}

/// What the guests of VMIs use, and how many VMIs there are.
fn of_vmis() -> Vec<Value> {
    let sum = |metric: &str| format!("sum by (name, namespace) ({metric})");
    let available = sum("kubevirt_vmi_memory_available_bytes");
    let usable = sum("kubevirt_vmi_memory_usable_bytes");
    let faults = |time: &str| sum(&format!("rate(kubevirt_vmi_memory_pgmajfault_total[{time}])"));
    // What was swapped is a gauge that only grows.
    let swapped = |time: &str| {
        let rate = |way: &str| sum(&format!("rate(kubevirt_vmi_memory_swap_{way}_traffic_bytes[{time}])"));
        format!("{} + {}", rate("in"), rate("out"))
    };
    let vcpus = "count by (name, namespace) (kubevirt_vmi_vcpu_seconds_total)";
    let queue = format!("clamp_min({} - {vcpus}, 0)", sum("kubevirt_vmi_guest_load_1m"));
    let sorts = "node, phase, os, workload, flavor, instance_type, preference, guest_os_kernel_release, \
                 guest_os_machine, guest_os_arch, guest_os_name, guest_os_version_id";
    vec![
        record("node:kubevirt_vmi_phase:sum", format!("sum by ({sorts}) (kubevirt_vmi_info)")),
        record("vmi:kubevirt_vmi_vcpu:count", vcpus),
        record("vmi:kubevirt_vmi_guest_queue_length:sum", &*queue),
        record("kubevirt_vmi_guest_vcpu_queue", queue),
        record("vmi:kubevirt_vmi_memory_available_bytes:sum", &*available),
        record("vmi:kubevirt_vmi_memory_headroom_ratio:sum", format!("{usable} / ({available} > 0)")),
        record("vmi:kubevirt_vmi_memory_used_bytes:sum", format!("{available} - {usable}")),
        record(
            "kubevirt_vmi_memory_used_bytes",
            "kubevirt_vmi_memory_available_bytes - kubevirt_vmi_memory_usable_bytes",
        ),
        record("vmi:kubevirt_vmi_pgmajfaults:rate5m", faults("5m")),
        record("vmi:kubevirt_vmi_pgmajfaults:rate30m", faults("30m")),
        record("vmi:kubevirt_vmi_swap_traffic_bytes:rate5m", swapped("5m")),
        record("vmi:kubevirt_vmi_swap_traffic_bytes:rate30m", swapped("30m")),
    ]
}

/// What launcher Pods request and do not use of their memory, by a metric of the kubelets.
fn memory_margin(used: &str) -> [Value; 2] {
    let of_launchers = "pod=~\"virt-launcher-.*\", container=\"compute\"";
    let by = "sum by (pod, container, namespace)";
    let expr = format!(
        "{by} (kube_pod_container_resource_requests{{{of_launchers}, resource=\"memory\"}}) - on(pod, container, namespace) \
         {by} (container_memory_{used}{{{of_launchers}}})"
    );
    let what = used.trim_end_matches("_bytes");
    [
        record(format!("pod_container:kubevirt_vm_memory_request_margin_based_on_{what}_bytes:sum"), &*expr),
        record(format!("kubevirt_vm_container_memory_request_margin_based_on_{what}_bytes"), expr),
    ]
}

/// The Pod of each component, and of the launchers, that uses the most memory beyond what it requests, by a metric of the
/// kubelets.
fn memory_delta(used: &str) -> Value {
    let containers = format!("container=~\"{}|compute\"", COMPONENTS.join("|"));
    let requests = format!("kube_pod_container_resource_requests{{{containers}, resource=\"memory\"}}");
    let expr = format!(
        "topk by (container) (1, max by (container, namespace, node, pod) \
         (container_memory_{used}{{{containers}, pod=~\"virt-.*\"}} \
         - on(pod, container, namespace) group_left(node) {requests}))"
    );
    let reason = format!("memory_{}_delta_from_request", used.trim_end_matches("_bytes"));
    json!({"record": MEMORY_DELTA, "expr": expr, "labels": {"reason": reason}})
}

const CRITICAL: (u32, &str, &str) = (10, "critical", "critical");
const WARNING: (u32, &str, &str) = (10, "warning", "warning");

/// Alerts of a component by how many of its Pods answer and are ready. `low` is the name of that which says that some are
/// not.
fn of_readiness(component: &str, called: &str, low: &str) -> [Value; 3] {
    let metric = |what: &str| format!("cluster:kubevirt_{}_{what}", plain(component));
    [
        alert(
            &format!("{called}Down"),
            format!("{} == 0", metric("up:sum")),
            CRITICAL,
            &format!("No {component} answers."),
        ),
        alert(
            &format!("NoReady{called}"),
            format!("{} == 0", metric("ready:sum")),
            CRITICAL,
            &format!("No {component} is ready."),
        ),
        alert(
            low,
            format!("{} < {}", metric("ready:sum"), metric("pods_running:count")),
            WARNING,
            &format!("Some running Pods of {component} are not ready."),
        ),
    ]
}

/// None of the replicas of a component leads.
fn no_leader(component: &str, called: &str) -> Value {
    let expr = format!("cluster:kubevirt_{}_leading:sum == 0", plain(component));
    alert(&format!("NoLeading{called}"), expr, CRITICAL, &format!("No {component} leads."))
}

/// An alert, how many minutes it waits, how severe it is, and how it affects the operator's health.
fn alert(name: &str, expr: String, (minutes, severity, impact): (u32, &str, &str), summary: &str) -> Value {
    json!({
        "alert": name, "expr": expr, "for": format!("{minutes}m"), "annotations": {"summary": summary},
        "labels": {"severity": severity, "operator_health_impact": impact,
            "kubernetes_operator_part_of": "kubevirt", "kubernetes_operator_component": "kubevirt"},
    })
}

/// Of the requests of a component, many fail: most of them now, or some for long.
fn rest_errors(component: &str, called: &str) -> [Value; 2] {
    let rate = |codes: &str, time: &str| {
        let requests = format!("namespace=\"{NAMESPACE}\", pod=~\"{component}-.*\"{codes}");
        format!("sum(rate(kubevirt_rest_client_requests_total{{{requests}}}[{time}]))")
    };
    let share = |time: &str| format!("{} / {}", rate(", code=~\"(4|5)[0-9][0-9]\"", time), rate("", time));
    let summary = |share: &str, time: &str| {
        format!("More than {share} of the requests of {component} to the API server have failed for {time}.")
    };
    [
        alert(
            &format!("{called}RESTErrorsBurst"),
            format!("{} >= 0.8", share("5m")),
            (5, "critical", "critical"),
            &summary("80%", "5 minutes"),
        ),
        alert(
            &format!("{called}RESTErrorsHigh"),
            format!("{} >= 0.05", share("60m")),
            (5, "warning", "warning"),
            &summary("5%", "an hour"),
        ),
    ]
}

/// What guests say of themselves.
fn of_guests() -> Vec<Value> {
    // What is full by nature, or no disk.
    let kinds = "iso9660|CDFS|udf|squashfs|cramfs|erofs|tmpfs|devtmpfs|ramfs|rootfs|overlay|proc|sysfs|cgroup.*|fuse.*";
    let disks = format!("file_system_type!~\"{kinds}\", mount_point!=\"System Reserved\"");
    let used = format!(
        "kubevirt_vmi_filesystem_used_bytes{{{disks}}} / (kubevirt_vmi_filesystem_capacity_bytes{{{disks}}} > 0)"
    );
    let full = |share: &str| {
        format!(
            "More than {share} of {{{{ $labels.mount_point }}}} in the guest of \
             {{{{ $labels.namespace }}}}/{{{{ $labels.name }}}} is used."
        )
    };
    let queued = |than: u32| {
        format!(
            "More than {than} processes in the guest of {{{{ $labels.namespace }}}}/{{{{ $labels.name }}}} wait for its vCPUs."
        )
    };
    let queue = "vmi:kubevirt_vmi_guest_queue_length:sum";
    let headroom = "vmi:kubevirt_vmi_memory_headroom_ratio:sum";
    vec![
        alert(
            "GuestFilesystemAlmostOutOfSpace",
            format!("{used} >= 0.85 and {used} < 0.95"),
            (10, "warning", "none"),
            &full("85%"),
        ),
        alert(
            "GuestFilesystemAlmostOutOfSpace",
            format!("{used} >= 0.95"),
            (0, "critical", "none"),
            &full("95%"),
        ),
        alert("GuestVCPUQueueHighWarning", format!("{queue} > 10"), (0, "warning", "none"), &queued(10)),
        alert("GuestVCPUQueueHighCritical", format!("{queue} > 20"), (0, "critical", "none"), &queued(20)),
        alert(
            "KubeVirtVMGuestMemoryPressure",
            format!(
                "{headroom} < 0.05 and (vmi:kubevirt_vmi_pgmajfaults:rate5m > 5 \
                 or vmi:kubevirt_vmi_swap_traffic_bytes:rate5m > 1048576)"
            ),
            (5, "warning", "none"),
            "The guest of {{ $labels.namespace }}/{{ $labels.name }} has too little memory: it swaps or reads programs again.",
        ),
        alert(
            "KubeVirtVMGuestMemoryAvailableLow",
            format!(
                "{headroom} < 0.03 and vmi:kubevirt_vmi_pgmajfaults:rate30m < 1 \
                 and vmi:kubevirt_vmi_swap_traffic_bytes:rate30m < 2048"
            ),
            (30, "info", "none"),
            "The guest of {{ $labels.namespace }}/{{ $labels.name }} has almost no memory left, and does not swap.",
        ),
        alert(
            "VMNonRecoverableOSPanic",
            "sum by (name, namespace) (increase(kubevirt_vmi_guest_os_panic_total[24h])) > 5".to_owned(),
            (1, "critical", "none"),
            "The kernel of the guest of {{ $labels.namespace }}/{{ $labels.name }} has panicked more than 5 times in a day.",
        ),
    ]
}

/// VMIs whose nodes have no node agent that is ready.
fn orphaned() -> Value {
    let handlers = format!("namespace=\"{NAMESPACE}\", pod=~\"virt-handler-.*\"");
    let ready = format!(
        "count by (node) (kube_pod_info{{{handlers}}} and on(pod, namespace) \
         kube_pod_status_ready{{{handlers}, condition=\"true\"}} == 1)"
    );
    let running = "kube_pod_info{pod=~\"virt-launcher-.*\", node!=\"\"} and on(pod, namespace) \
                   kube_pod_status_phase{phase=\"Running\"} == 1";
    alert(
        "OrphanedVirtualMachineInstances",
        format!("count by (node) ({running}) unless on(node) {ready}"),
        WARNING,
        "VMIs run on {{ $labels.node }}, where no node agent is ready.",
    )
}

/// No node runs VMs: none has KVM and emulation is off, or none takes Pods and has a node agent that is ready. Where
/// kube-state-metrics does not show the label of the node agents, only the first is known.
fn no_nodes() -> Value {
    let label = |value: &str| format!("kube_node_labels{{label_kubevirt_io_schedulable{value}}}");
    let sum = |metric: &str| format!("(sum({metric}) or vector(0)) == 0");
    let hypervisors =
        format!("{} and {}", sum(&allocatable_kvm()), sum("kubevirt_configuration_emulation_enabled"));
    let schedulable = format!("{} unless on(node) kube_node_spec_unschedulable == 1", label("=\"true\""));
    let agents = format!("(count({schedulable}) or vector(0)) == 0 and count({}) > 0", label("=~\".+\""));
    alert(
        "KubeVirtNoAvailableNodesToRunVMs",
        format!("({hypervisors}) or ({agents})"),
        (5, "warning", "critical"),
        "No node of the cluster can run VMs.",
    )
}

/// Requests of deprecated versions, other than lists and watches, which garbage collectors and clients of all kinds make.
fn deprecated_requests() -> Value {
    let requests = format!("{DEPRECATED_REQUESTS}{{verb!~\"LIST|WATCH\"}}");
    // A counter that has just appeared has not increased.
    let (increase, new) = (
        format!("round(increase({requests}[10m])) > 0"),
        format!("{requests} > 0 unless {requests} offset 10m"),
    );
    alert(
        "KubeVirtDeprecatedAPIRequested",
        format!("sum by (resource, group, version) (({increase}) or ({new}))"),
        (0, "info", "none"),
        "{{ $labels.resource }}.{{ $labels.group }}/{{ $labels.version }}, which is deprecated, was requested in the last \
         10 minutes.",
    )
}

/// Those with KubeVirt's names mean what KubeVirt's mean; the others are about node agents and launchers.
pub(super) fn alerts() -> Vec<Value> {
    let several = |what: &str| format!("(cluster:kubevirt_nodes_allocatable:count > 1) and ({what} < 2)");
    let daemons = |what: &str| {
        format!("kube_daemonset_status_{what}{{namespace=\"{NAMESPACE}\", daemonset=\"virt-handler\"}}")
    };
    let mut alerts = Vec::new();
    for (component, called, low) in [
        ("virt-api", "VirtAPI", "LowReadyVirtAPICount"),
        ("virt-controller", "VirtController", "LowReadyVirtControllersCount"),
        ("virt-handler", "VirtHandler", "LowReadyVirtHandlerCount"),
        ("virt-operator", "VirtOperator", "LowReadyVirtOperatorsCount"),
    ] {
        alerts.extend(of_readiness(component, called, low));
        // As KubeVirt spells it.
        alerts.extend(rest_errors(component, &called.replace("API", "Api")));
        alerts.extend(LEADING.contains(&component).then(|| no_leader(component, called)));
    }
    alerts.extend(of_guests());
    alerts.extend([
        orphaned(),
        no_nodes(),
        deprecated_requests(),
        alert(
            "VirtHandlerDaemonSetRolloutFailing",
            format!("{} != {}", daemons("number_ready"), daemons("desired_number_scheduled")),
            (15, "warning", "warning"),
            "Some Pods of virt-handler are missing or not ready.",
        ),
        alert(
            "VirtLauncherPodsStuckFailed",
            "sum by (namespace) (kube_pod_status_phase{phase=\"Failed\", pod=~\"virt-launcher-.*\"}) >= 200".to_owned(),
            CRITICAL,
            "At least 200 launcher Pods in the namespace {{ $labels.namespace }} have failed and are still there.",
        ),
        alert(
            "VirtualMachineStuckOnNode",
            "sum by (name, namespace, status, node) ((kubevirt_vm_info{status=~\"starting|stopping|terminating\"} == 1 \
             or kubevirt_vm_info{status_group=\"error\"} == 1) * on(name, namespace) group_left(node) \
             topk by (name, namespace) (1, kubevirt_vmi_info{phase=~\"scheduled|running\"}))"
                .to_owned(),
            (5, "warning", "none"),
            "The VM {{ $labels.namespace }}/{{ $labels.name }} is {{ $labels.status }} on {{ $labels.node }}.",
        ),
    ]);
    alerts.extend([
        alert(
            "LowVirtAPICount",
            several("cluster:kubevirt_virt_api_up:sum"),
            (60, "warning", "warning"),
            "In a cluster of several nodes, at least two replicas of virt-api are to run.",
        ),
        alert(
            "LowVirtControllersCount",
            several("cluster:kubevirt_virt_controller_ready:sum"),
            (10, "warning", "warning"),
            "In a cluster of several nodes, at least two replicas of virt-controller are to be ready.",
        ),
        alert(
            "LowVirtOperatorCount",
            several("cluster:kubevirt_virt_operator_up:sum"),
            (60, "warning", "warning"),
            "In a cluster of several nodes, at least two replicas of virt-operator are to run.",
        ),
        alert(
            "OutdatedVirtualMachineInstanceWorkloads",
            "kubevirt_vmi_number_of_outdated != 0".to_owned(),
            (1440, "warning", "none"),
            "Some running VMIs have had a launcher of an earlier release for a day.",
        ),
        alert(
            "VirtualMachineStuckInUnhealthyState",
            "sum by (name, namespace, status) (kubevirt_vm_info{status=~\"provisioning|starting|terminating\"} == 1 \
             or kubevirt_vm_info{status_group=\"error\"} == 1) unless on(name, namespace) kubevirt_vmi_info"
                .to_owned(),
            (10, "warning", "none"),
            "The VM {{ $labels.namespace }}/{{ $labels.name }} is {{ $labels.status }}, and has no VMI on a node.",
        ),
        alert(
            "LowKVMNodesCount",
            several("cluster:kubevirt_nodes_with_kvm:count"),
            (5, "warning", "warning"),
            "At least two nodes with KVM are needed to replace one of them.",
        ),
        alert(
            "VMCannotBeEvicted",
            "kubevirt_vmi_non_evictable > 0".to_owned(),
            (1, "warning", "none"),
            "The VMI {{ $labels.namespace }}/{{ $labels.name }} keeps its node from being drained.",
        ),
        alert(
            "VireoNodeAgentDown",
            format!("up{{namespace=\"{NAMESPACE}\", pod=~\"virt-handler-.*\"}} == 0"),
            (5, "critical", "critical"),
            "The node agent {{ $labels.pod }} does not answer; its guests run on.",
        ),
        alert(
            "VireoLauncherSilent",
            "vireo_metrics_vmis_missing > 0".to_owned(),
            (5, "warning", "warning"),
            "Launchers on {{ $labels.node }} do not answer the node agent.",
        ),
    ]);
    alerts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;

    /// `promtool check rules` finds no fault in them.
    #[test]
    fn rules_have_names_of_their_own_and_say_how_bad_it_is() {
        let all = [records(), alerts()].concat();
        // An alert may have one name for two severities, and a record for two reasons, as KubeVirt's have.
        let name = |rule: &Value| {
            let name = rule["alert"].as_str().or(rule["record"].as_str()).unwrap();
            format!("{name} {} {}", rule["labels"]["severity"], rule["labels"]["reason"])
        };
        let mut names: Vec<String> = all.iter().map(name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
        for alert in all.iter().filter(|rule| rule["alert"].is_string()) {
            assert!(
                ["info", "warning", "critical"].contains(&alert["labels"]["severity"].as_str().unwrap()),
                "{alert}"
            );
        }
        let kvm = all.iter().find(|rule| rule["record"] == "cluster:kubevirt_nodes_with_kvm:count");
        let kvm = &kvm.unwrap()["expr"];
        assert!(kvm.as_str().unwrap().contains("resource=\"devices_kubevirt_io_kvm\""), "{kvm}");
    }

    /// What the components serve of what rules ask for.
    const SERVED: [&str; 30] = [
        "kubevirt_configuration_emulation_enabled",
        "kubevirt_rest_client_requests_total",
        "kubevirt_virt_api_ready_status",
        "kubevirt_virt_controller_leading_status",
        "kubevirt_virt_controller_ready_status",
        "kubevirt_virt_handler_ready_status",
        "kubevirt_virt_operator_leading_status",
        "kubevirt_virt_operator_ready_status",
        "kubevirt_vm_created_by_pod_total",
        "kubevirt_vm_disk_allocated_size_bytes",
        "kubevirt_vm_error_status_last_transition_timestamp_seconds",
        "kubevirt_vm_info",
        "kubevirt_vm_migrating_status_last_transition_timestamp_seconds",
        "kubevirt_vm_non_running_status_last_transition_timestamp_seconds",
        "kubevirt_vm_running_status_last_transition_timestamp_seconds",
        "kubevirt_vm_starting_status_last_transition_timestamp_seconds",
        "kubevirt_vmi_filesystem_capacity_bytes",
        "kubevirt_vmi_filesystem_used_bytes",
        "kubevirt_vmi_guest_load_1m",
        "kubevirt_vmi_guest_os_panic_total",
        "kubevirt_vmi_info",
        "kubevirt_vmi_memory_available_bytes",
        "kubevirt_vmi_memory_pgmajfault_total",
        "kubevirt_vmi_memory_swap_in_traffic_bytes",
        "kubevirt_vmi_memory_swap_out_traffic_bytes",
        "kubevirt_vmi_memory_usable_bytes",
        "kubevirt_vmi_non_evictable",
        "kubevirt_vmi_number_of_outdated",
        "kubevirt_vmi_vcpu_seconds_total",
        "vireo_metrics_vmis_missing",
    ];

    /// Rust files below a directory, except this one.
    fn sources(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let read = |path: PathBuf| match path.extension() {
            None => sources(&path),
            Some(extension) if extension == "rs" && !path.ends_with("monitoring/rules.rs") => {
                vec![std::fs::read_to_string(&path).unwrap()]
            }
            Some(_) => Vec::new(),
        };
        entries.flat_map(read).collect()
    }

    /// By their names in the components' code. Counters may be written without the suffix that the encoder adds.
    #[test]
    fn components_serve_the_metrics_that_rules_ask_for() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let components = ["client", "handler", "install", "operators"];
        let text: String =
            components.iter().flat_map(|name| sources(&workspace.join(name).join("src"))).collect();
        let is_there = |name: &str| text.contains(&format!("\"{name}\""));
        for metric in SERVED {
            assert!(is_there(metric) || metric.strip_suffix("_total").is_some_and(is_there), "{metric}");
        }
    }

    #[test]
    fn nodes_are_missing_only_where_it_is_known() {
        let alert = no_nodes();
        let expr = alert["expr"].as_str().unwrap();
        assert!(expr.contains("resource=\"devices_kubevirt_io_kvm\""), "{expr}");
        assert!(
            expr.contains("count(kube_node_labels{label_kubevirt_io_schedulable=~\".+\"}) > 0"),
            "{expr}"
        );
    }

    #[test]
    fn rules_ask_for_metrics_that_there_are() {
        let (records, mut asked) = (records(), BTreeSet::new());
        let recorded: BTreeSet<&str> = records.iter().map(|rule| rule["record"].as_str().unwrap()).collect();
        for rule in [records.clone(), alerts()].concat() {
            let expr = rule["expr"].as_str().unwrap();
            let words =
                expr.split(|letter: char| !letter.is_ascii_alphanumeric() && !['_', ':'].contains(&letter));
            let names = words.filter(|word| word.contains("kubevirt_") || word.starts_with("vireo_"));
            let foreign = |word: &str| {
                word.contains("devices_") || word.starts_with("kube_") || word.starts_with("label_")
            };
            let names = names.filter(|word| !foreign(word));
            asked.extend(names.filter(|name| !recorded.contains(name)).map(str::to_owned));
        }
        assert_eq!(asked.iter().map(String::as_str).collect::<Vec<_>>(), SERVED);
    }
}
