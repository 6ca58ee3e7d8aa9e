//! A second node, which has KVM: a nested host.

use std::time::Duration;

use serde_json::{Value, json};
use vireo_tests::HostError;
use vireo_tests::cluster::Cluster;
use vireo_tests::eventually::eventually;
use vireo_tests::installed::Login;

use super::{LAUNCHER, LIMIT, STEP, Vireo, guest, installation, machine};
use crate::scenarios::probes::condition;

const NODE: &str = "node-2";
/// A resource of the node.
const DEVICE: &str = "vireo.io/spare";
/// Until firmware there has a kernel started.
const FIRMWARE: Duration = Duration::from_secs(300);
const HANDLER: &str = "pods -n kubevirt -l kubevirt.io=virt-handler --field-selector spec.nodeName=node-2";

/// A VM that waits for KVM starts on a node that joins with it. A guest runs there on the native monitor and is used through
/// the cluster's API, outlives its node agent, and is given up when its node is lost.
pub(super) fn guests_on_a_node_that_joins(
    vireo: &Vireo<'_>,
    cluster: &Cluster,
) -> Result<(), HostError> {
    vireo.step("no node has KVM");
    vireo.feed("create -f -", &machine::bare("Always", "None"));
    let vmi = vireo.becomes("vmi bare", "waits for a node", |vmi| {
        condition(vmi, "PodScheduled")["reason"] == "Unschedulable"
    })?;
    let why = &condition(&vmi, "PodScheduled")["message"];
    assert!(why.as_str().is_some_and(|why| why.contains("devices.kubevirt.io/kvm")), "{why}");

    vireo.step("a node with KVM joins");
    // The emulated node runs nothing but node agents and guests.
    let first =
        r#"{"spec": {"infra": {"nodePlacement": {"nodeSelector": {"kubernetes.io/hostname": "node-1"}}}}}"#;
    installation::configure(vireo, first)?;
    cluster.add_kvm_node()?;
    vireo.step("it has a node agent");
    let node = vireo.becomes("node node-2", "offers KVM", |node| {
        node["metadata"]["labels"]["kubevirt.io/schedulable"] == "true"
            && node["status"]["allocatable"]["devices.kubevirt.io/kvm"]
                .as_str()
                .is_some_and(|count| count != "0")
    })?;
    vireo.step("its labels tell what guests can have");
    has_labels_of_its_cpus(&node);
    vireo.step("the VM that waited starts there");
    let vmi = vireo.phase("bare", "Running")?;
    assert_eq!(vmi["status"]["nodeName"], NODE, "{:#}", vmi["status"]);
    vireo.ok(&format!("delete vm bare {LIMIT}"));
    vireo.gone("bare")?;

    has_a_device_of_its_node(vireo)?;

    vireo.step("launchers come without QEMU");
    let without_qemu = format!("{LAUNCHER}{}-native", env!("CARGO_PKG_VERSION"));
    let flag =
        json!({"spec": {"customizeComponents": {"flags": {"controller": {"launcher-image": without_qemu}}}}});
    installation::configure(vireo, &flag.to_string())?;
    vireo.step("a guest starts there");
    vireo.feed("apply -f -", &guest::logged());
    let vmi = vireo.phase("demo", "Running")?;
    assert_eq!(vmi["status"]["nodeName"], NODE, "{:#}", vmi["status"]);
    let pod = vireo.pod("demo")?;
    assert_eq!(pod["spec"]["containers"][0]["image"], without_qemu.as_str(), "{:#}", pod["spec"]);
    runs_on_native(vireo, &vmi)?;
    let mut guest = guest::console(vireo)?;
    let shown = guest.log_in()?;
    assert!(shown.contains("user-data: hello from demo"), "{shown}");
    vireo.step("it has a login on its console");
    assert_eq!(guest.run("echo $((6 * 7))")?.trim(), "42");
    guest::is_logged(vireo)?;
    guest::is_paused(vireo)?;
    outlives_its_agent(vireo, guest)?;
    is_given_up_with_its_node(vireo, cluster)
}

/// The guest of an instance has the spare PCI device of the node, when the KubeVirt object permits it.
fn has_a_device_of_its_node(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("a device of the node is not permitted");
    let devices = "    devices:\n";
    let manifest = guest::logged();
    assert!(manifest.contains(devices));
    let device = format!("{devices}      hostDevices: [{{name: spare, deviceName: {DEVICE}}}]\n");
    let manifest = manifest.replace(devices, &device);
    let refused = vireo.fails("apply -f -", &manifest)?;
    let why = format!("HostDevice {DEVICE} is not permitted in permittedHostDevices configuration");
    assert!(
        refused.contains("spec.domain.devices.hostDevices[0].deviceName") && refused.contains(&why),
        "{refused}"
    );

    vireo.step("it is permitted");
    let permitted = format!(
        r#"{{"spec": {{"configuration": {{"permittedHostDevices": {{"pciHostDevices": [
            {{"pciVendorSelector": "1234:11E8", "resourceName": "{DEVICE}"}}]}}}}}}}}"#
    );
    let warned = installation::configure(vireo, &permitted)?;
    assert!(!warned.contains("permittedHostDevices"), "it has an effect: {warned}");
    let allocatable = |node: &Value| node["status"]["allocatable"][DEVICE].clone();
    vireo.becomes("node node-2", "offers the device", |node| allocatable(node) == "1")?;
    vireo.step("a guest with it starts");
    vireo.feed("apply -f -", &manifest);
    let vmi = vireo.phase("demo", "Running")?;
    assert_eq!(vmi["status"]["nodeName"], NODE, "{:#}", vmi["status"]);
    let pod = vireo.pod("demo")?;
    let compute = &pod["spec"]["containers"][0]["resources"];
    assert_eq!((&compute["limits"][DEVICE], &compute["requests"][DEVICE]), (&"1".into(), &"1".into()));
    // QEMU's guests may take minutes here until they have a login.
    let mut console = vireo.console_process("demo")?;
    console.wait_for("Booting `Vireo guest'", FIRMWARE)?;
    let mut guest = Login::over(console);
    guest.log_in()?;
    let devices = guest.run("cat /sys/bus/pci/devices/*/uevent")?;
    assert!(devices.lines().any(|line| line == "PCI_ID=1234:11E8"), "{devices}");
    drop(guest);
    vireo.step("its guest has the device");
    vireo.ok(&format!("delete vmi demo {LIMIT}"));
    vireo.gone("demo")?;
    vireo.step("it is not permitted any more");
    installation::configure(vireo, r#"{"spec": {"configuration": {"permittedHostDevices": null}}}"#)?;
    vireo.becomes("node node-2", "does not offer it", |node| {
        ["0", ""].contains(&allocatable(node).as_str().unwrap_or_default())
    })?;
    Ok(())
}

/// A node whose CPUs emulate SVM: KVM offers Hyper-V enlightenments in software.
fn has_labels_of_its_cpus(node: &Value) {
    let labels = &node["metadata"]["labels"];
    let of_kvm =
        ["base", "time", "vpindex", "tlbflush", "ipi", "synic", "synic2", "reset", "runtime", "synictimer"];
    let of_kvm = of_kvm.map(|name| format!("hyperv.node.kubevirt.io/{name}"));
    let expected = [
        "cpu-vendor.node.kubevirt.io/AMD",
        "machine-type.node.kubevirt.io/q35",
        "cpu-model.node.kubevirt.io/Nehalem",
        "cpu-model-migration.node.kubevirt.io/Nehalem",
        "cpu-feature.node.kubevirt.io/sse4.1",
        "cpu-feature.node.kubevirt.io/lahf_lm",
    ];
    for label in expected.into_iter().chain(of_kvm.iter().map(String::as_str)) {
        assert_eq!(labels[label], "true", "{label}: {labels:#}");
    }
    let begins = |prefix: &str| {
        labels.as_object().is_some_and(|all| all.keys().any(|label| label.starts_with(prefix)))
    };
    assert!(begins("host-model-cpu.node.kubevirt.io/"), "{labels:#}");
    for absent in
        ["cpu-model.node.kubevirt.io/qemu64", "cpu-model.node.kubevirt.io/EPYC-Genoa", "kubevirt.io/realtime"]
    {
        assert_eq!(labels[absent], Value::Null, "{absent}: {labels:#}");
    }
}

fn runs_on_native(vireo: &Vireo<'_>, vmi: &Value) -> Result<(), HostError> {
    let mut chosen = Value::Null;
    eventually("an event says which hypervisor runs the guest", STEP, || {
        let events = vireo.items("events")?;
        let of_vmi = |event: &&Value| {
            event["reason"] == "HypervisorChosen" && event["involvedObject"]["uid"] == vmi["metadata"]["uid"]
        };
        chosen = events.iter().find(of_vmi).cloned().unwrap_or_default();
        Ok(!chosen.is_null())
    })?;
    assert!(chosen["message"].as_str().is_some_and(|text| text.contains("native")), "{chosen:#}");
    Ok(())
}

/// The node agent is replaced: the guest goes on.
fn outlives_its_agent(vireo: &Vireo<'_>, mut guest: Login<'_>) -> Result<(), HostError> {
    vireo.step("its node agent is replaced");
    guest.run(guest::KEEP)?;
    let boot = guest.run(guest::BOOT_ID)?;
    let pod = vireo.pod("demo")?["metadata"]["uid"].clone();
    let agents = vireo.items(HANDLER)?;
    let agent = agents.first().map(|agent| agent["metadata"].clone()).unwrap_or_default();
    vireo.ok(&format!("-n kubevirt delete pod {} {LIMIT}", agent["name"].as_str().unwrap_or_default()));
    eventually("another one is ready", STEP, || {
        let another = |pod: &Value| {
            pod["metadata"]["uid"] != agent["uid"] && condition(pod, "Ready")["status"] == "True"
        };
        Ok(vireo.items(HANDLER)?.iter().any(another))
    })?;
    drop(guest);
    guest::is_the_same(vireo, &pod, &boot)
}

/// The node is off and its object is deleted, as an administrator does: the VMI has failed.
fn is_given_up_with_its_node(vireo: &Vireo<'_>, cluster: &Cluster) -> Result<(), HostError> {
    vireo.step("its node is lost");
    cluster.lose_kvm_node()?;
    vireo.ok(&format!("delete node {NODE} {LIMIT}"));
    vireo.phase("demo", "Failed")?;
    let events = vireo.items("events")?;
    let failed = events.iter().filter(|event| event["reason"] == "NodeUnresponsive").count();
    assert_eq!(failed, 1, "{events:#?}");
    vireo.ok(&format!("delete vmi demo {LIMIT}"));
    vireo.gone("demo")?;
    installation::configure(
        vireo,
        r#"{"spec": {"infra": {"nodePlacement": null}, "customizeComponents": null}}"#,
    )?;
    Ok(())
}
