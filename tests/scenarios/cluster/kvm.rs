//! A second node, which has KVM: a nested host.

use std::time::Duration;

use serde_json::{Value, json};
use vireo_tests::HostError;
use vireo_tests::cluster::Cluster;
use vireo_tests::eventually::eventually;
use vireo_tests::installed::Login;

use super::{LAUNCHER, LIMIT, STEP, Vireo, guest, installation, machine, networks};
use crate::scenarios::probes::condition;

const NODE: &str = "node-2";
/// Resources of the node.
const DEVICE: &str = "vireo.io/spare";
const USB_DISK: &str = "vireo.io/usb-disk";
const FUNCTION: &str = "vireo.io/function";
/// Where the node's virtual function is: the first one of the NIC behind its only PCI port.
const FUNCTION_ADDRESS: &str = "0000:01:10.0";
/// The claims of the node's SCSI disks: the second is plugged in.
const LUNS: [(&str, &str); 2] = [("lun", "/dev/sda"), ("plugged", "/dev/sdb")];
/// Vendor, model and the length of what can be read, a line for each SCSI disk.
const SCSI_DISKS: &str = "for d in /sys/class/scsi_device/*/device; do echo $(cat $d/vendor $d/model) $(head -c 512 /dev/$(ls $d/block) | wc -c); done";
/// How large the disk with the serial `PLUGGED` is, in sectors, once it was written to.
const PLUGGED_SECTORS: &str = "disk=$(dirname $(grep -l PLUGGED /sys/block/*/serial)); dd if=/dev/zero of=/dev/${disk##*/} bs=64k count=4 conv=fsync 2>/dev/null && cat $disk/size";
/// The interface of the launcher Pod on the network `functions`.
const POD_INTERFACE: &str = "podef7d009c7e8";
/// Until firmware there has a kernel started.
const FIRMWARE: Duration = Duration::from_secs(300);
const HANDLER: &str = "pods -n kubevirt -l kubevirt.io=virt-handler --field-selector spec.nodeName=node-2";

/// A VM that waits for KVM starts on a node that joins with it. A guest runs there on the native monitor and is used through
/// the cluster's API, outlives its node agent, and is given up when its node is lost. Before, one on QEMU has devices of the node.
pub(super) fn guests_on_a_node_that_joins(vireo: &Vireo<'_>, cluster: &Cluster) -> Result<(), HostError> {
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

    has_devices_of_its_node(vireo)?;

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
    vireo.step("a block device of the node is plugged in");
    is_plugged(vireo, "--bus=virtio --serial=PLUGGED")?;
    assert_eq!(guest.run(PLUGGED_SECTORS)?.trim(), "16384");
    has_a_nic(vireo, &mut guest)?;
    guest::is_paused(vireo)?;
    outlives_its_agent(vireo, guest)?;
    is_given_up_with_its_node(vireo, cluster)
}

/// A manifest of a guest with the devices.
fn with_devices() -> String {
    let manifest = guest::logged();
    let (devices, interfaces, networks) = ("    devices:\n", "      interfaces:\n", "  networks:\n");
    let (disks, volumes) = ("      disks:\n", "  volumes:\n");
    let mut added = manifest.clone();
    for (list, element) in [
        (
            devices,
            format!(
                "      hostDevices: [{{name: spare, deviceName: {DEVICE}}}, {{name: usb-disk, deviceName: {USB_DISK}}}]\n"
            ),
        ),
        (disks, "      - {name: lun, lun: {bus: scsi}}\n".to_owned()),
        (volumes, "  - {name: lun, persistentVolumeClaim: {claimName: lun}}\n".to_owned()),
        (interfaces, "      - {name: functions, sriov: {}}\n".to_owned()),
        (networks, "  - {name: functions, multus: {networkName: functions}}\n".to_owned()),
    ] {
        assert!(added.contains(list), "{added}");
        added = added.replace(list, &format!("{list}{element}"));
    }
    added
}

/// A SCSI disk of the node, and the claim that is bound to it.
fn scsi_disk(name: &str, device: &str) -> String {
    let mode = format!("accessModes: [ReadWriteOnce], storageClassName: {name}, volumeMode: Block");
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec: {{{mode}, capacity: {{storage: 8Mi}}, local: {{path: {device}}}, nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [{NODE}]}}]}}]}}}}}}\n---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}}}\nspec: {{{mode}, volumeName: {name}, resources: {{requests: {{storage: 8Mi}}}}}}\n"
    )
}

/// The guest of an instance has the spare PCI device of the node, when the KubeVirt object permits it, the virtual function of a
/// network, and SCSI disks. QEMU has the USB disk of the node for it, for which its kernel has no driver.
fn has_devices_of_its_node(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("a device of the node is not permitted");
    let manifest = with_devices();
    let refused = vireo.fails("apply -f -", &manifest)?;
    let why = format!("HostDevice {DEVICE} is not permitted in permittedHostDevices configuration");
    assert!(
        refused.contains("spec.domain.devices.hostDevices[0].deviceName") && refused.contains(&why),
        "{refused}"
    );

    vireo.step("devices of the node are permitted");
    let permitted = format!(
        r#"{{"spec": {{"configuration": {{"permittedHostDevices": {{"pciHostDevices": [
            {{"pciVendorSelector": "1234:11E8", "resourceName": "{DEVICE}"}},
            {{"pciVendorSelector": "8086:10CA", "resourceName": "{FUNCTION}"}}], "usb": [
            {{"resourceName": "{USB_DISK}", "selectors": [{{"vendor": "46f4", "product": "0001"}}]}}]}}}}}}}}"#
    );
    let warned = installation::configure(vireo, &permitted)?;
    assert!(!warned.contains("permittedHostDevices"), "it has an effect: {warned}");
    let all = [DEVICE, USB_DISK, FUNCTION];
    let allocatable = |node: &Value| all.map(|device| node["status"]["allocatable"][device].clone());
    vireo.becomes("node node-2", "offers the devices", |node| allocatable(node) == ["1", "1", "1"])?;
    vireo.step("a guest with them starts");
    vireo.feed("create -f -", networks::DEFINITION);
    vireo.ok(&format!("wait {LIMIT} --for=condition=Established crd/{}", networks::CRD));
    vireo.feed("create -f -", &network());
    for (name, device) in LUNS {
        vireo.feed("create -f -", &scsi_disk(name, device));
    }
    vireo.feed("apply -f -", &manifest);
    is_given_a_function(vireo)?;
    let vmi = vireo.phase("demo", "Running")?;
    assert_eq!(vmi["status"]["nodeName"], NODE, "{:#}", vmi["status"]);
    let nics = vmi["status"]["interfaces"].as_array().into_iter().flatten();
    let nics: Vec<_> = nics.map(|nic| (&nic["name"], &nic["podInterfaceName"])).collect();
    assert_eq!(nics, [(&"default".into(), &"eth0".into()), (&"functions".into(), &POD_INTERFACE.into())]);
    let pod = vireo.pod("demo")?;
    let compute = &pod["spec"]["containers"][0]["resources"];
    for device in all {
        assert_eq!((&compute["limits"][device], &compute["requests"][device]), (&"1".into(), &"1".into()));
    }
    // QEMU's guests may take minutes here until they have a login.
    let mut console = vireo.console_process("demo")?;
    console.wait_for("Booting `Vireo guest'", FIRMWARE)?;
    let mut guest = Login::over(console);
    guest.log_in()?;
    let devices = guest.run("grep -h PCI_ID /sys/bus/pci/devices/*/uevent")?;
    for id in ["PCI_ID=1234:11E8", "PCI_ID=8086:10CA"] {
        assert!(devices.lines().any(|line| line == id), "{id}: {devices}");
    }
    vireo.step("its guest has the devices");
    is_plugged(vireo, "--disk-type=lun --bus=scsi")?;
    let found = guest.run(SCSI_DISKS)?;
    let own = found.lines().filter(|line| *line == "Linux scsi_debug 512");
    assert_eq!(own.count(), LUNS.len(), "they say what they are, and are read: {found}");
    drop(guest);
    vireo.step("its guest has SCSI disks of the node");
    vireo.ok(&format!("delete vmi demo {LIMIT}"));
    vireo.gone("demo")?;
    vireo.ok(&format!("delete crd {} {LIMIT}", networks::CRD));
    vireo.step("they are not permitted any more");
    installation::configure(vireo, r#"{"spec": {"configuration": {"permittedHostDevices": null}}}"#)?;
    vireo.becomes("node node-2", "does not offer them", |node| {
        allocatable(node).iter().all(|count| ["0", ""].contains(&count.as_str().unwrap_or_default()))
    })?;
    Ok(())
}

/// The second SCSI disk of the node is plugged into the guest.
fn is_plugged(vireo: &Vireo<'_>, flags: &str) -> Result<(), HostError> {
    vireo.virtctl(&format!("addvolume demo --volume-name=plugged {flags}"))?.ok();
    vireo.becomes("vmi demo", "has the volume that is plugged in", |vmi| {
        let volumes = vmi["status"]["volumeStatus"].as_array();
        let is_there = |volume: &Value| volume["name"] == "plugged" && volume["phase"] == "Ready";
        volumes.is_some_and(|volumes| volumes.iter().any(is_there))
    })?;
    Ok(())
}

/// A NIC is plugged into the guest on native, and unplugged, as by the controller of its VM.
fn has_a_nic(vireo: &Vireo<'_>, guest: &mut Login<'_>) -> Result<(), HostError> {
    vireo.step("a NIC is plugged in");
    vireo.feed("create -f -", networks::DEFINITION);
    vireo.ok(&format!("wait {LIMIT} --for=condition=Established crd/{}", networks::CRD));
    vireo.feed("create -f -", networks::network());
    let by_controller = "--as=system:serviceaccount:kubevirt:virt-controller";
    let patch = |patch: &str| vireo.ok(&format!("patch vmi demo {by_controller} --type=json -p '{patch}'"));
    patch(&networks::lan_below("/spec"));
    let pod = vireo.pod("demo")?;
    on_kvm_node(vireo, &networks::plugin(vireo, &pod, "ADD"))?;
    networks::is_used(vireo, "demo", guest)?;
    vireo.step("it is unplugged");
    let removed = json!([{"op": "remove", "path": "/spec/networks/1"},
        {"op": "remove", "path": "/spec/domain/devices/interfaces/1"}]);
    patch(&removed.to_string());
    networks::is_released(vireo, "demo", guest)?;
    vireo.ok(&format!("delete crd {} {LIMIT}", networks::CRD));
    Ok(())
}

/// Runs a script on the node, by a Pod that has its root directory and its processes.
fn on_kvm_node(vireo: &Vireo<'_>, script: &str) -> Result<(), HostError> {
    let launcher = format!("{LAUNCHER}{}-native", env!("CARGO_PKG_VERSION"));
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "on-node"},
        "spec": {
            "nodeName": NODE, "hostPID": true, "hostNetwork": true, "restartPolicy": "Never",
            "containers": [{
                "name": "script", "image": launcher, "imagePullPolicy": "Never",
                "command": ["/host/bin/busybox", "chroot", "/host", "/bin/busybox", "sh", "-ec", script],
                "securityContext": {"privileged": true, "runAsUser": 0},
                "volumeMounts": [{"name": "host", "mountPath": "/host"}],
            }],
            "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        },
    });
    vireo.feed("create -f -", &pod.to_string());
    let ended = vireo.becomes("pod on-node", "has ended", |pod| {
        ["Succeeded", "Failed"].contains(&pod["status"]["phase"].as_str().unwrap_or_default())
    })?;
    assert_eq!(ended["status"]["phase"], "Succeeded", "{}", vireo.ok("logs on-node"));
    vireo.ok(&format!("delete pod on-node {LIMIT}"));
    Ok(())
}

/// A network of virtual functions.
fn network() -> String {
    format!(
        "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: functions\n  annotations: {{k8s.v1.cni.cncf.io/resourceName: {FUNCTION}}}\nspec: {{config: '{{\"cniVersion\": \"0.4.0\", \"name\": \"functions\", \"type\": \"sriov\"}}'}}\n"
    )
}

/// The instance waits for what Multus reports, for which there is no Multus on this node: it names the function that the Pod has by
/// its resource.
fn is_given_a_function(vireo: &Vireo<'_>) -> Result<(), HostError> {
    let vmi = vireo.becomes("vmi demo", "waits for its virtual function", |vmi| {
        condition(vmi, "Synchronized")["reason"] == "VirtualFunctionNotFound"
    })?;
    let why = condition(&vmi, "Synchronized")["message"].to_string();
    assert!(why.contains("interfaces[0]: Multus has reported no virtual function"), "{why}");
    let pod = vireo.pod("demo")?;
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let reported = format!(
        r#"[{{"name": "functions", "interface": "{POD_INTERFACE}", "device-info": {{"type": "pci", "version": "1.1.0", "pci": {{"pci-address": "{FUNCTION_ADDRESS}"}}}}}}]"#
    );
    vireo.ok(&format!("annotate pod {name} k8s.v1.cni.cncf.io/network-status='{reported}'"));
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
