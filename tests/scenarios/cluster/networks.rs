//! Networks beside that of Pods.

use serde_json::{Value, json};
use vireo_tests::HostError;
use vireo_tests::eventually::eventually;
use vireo_tests::installed::Login;

use super::{GUEST, LIMIT, Vireo, guest};
use crate::SOON;
use crate::scenarios::probes::condition;

const MANIFEST: &str = include_str!("../../../examples/cluster/networks.yaml");
pub(super) const DEFINITION: &str = include_str!("networks/definition.yaml");
const PLUGIN: &str = include_str!("networks/stand-in-for-multus");
/// The CustomResourceDefinition of networks.
pub(super) const CRD: &str = "network-attachment-definitions.k8s.cni.cncf.io";
/// The node's address on the network of the manifest.
const GATEWAY: &str = "10.77.0.1";
/// The address of the NIC that is plugged.
const MAC: &str = "52:54:00:00:00:07";
/// Whether a guest has the NIC of the network `lan`, beside one.
const HAS_LAN: &str = "[ -e /sys/class/net/eth1 ]";
/// The interface of the launcher Pod on the network `lan`.
const POD_INTERFACE: &str = "pod094a367b026";

/// An instance waits for its network, and has a NIC on it with the address of its Pod's interface. It is on a bridge to the
/// network of Pods, too, as other instances of the test are behind masquerade. Another one is on the first network instead of that
/// of Pods.
pub(super) fn are_attached(vireo: &Vireo<'_>) -> Result<(), HostError> {
    let (network, instance) = MANIFEST.split_once("---\n").unwrap_or_default();
    let at_once = "terminationGracePeriodSeconds: 0";
    assert!(instance.contains(at_once), "{instance}");
    let instance = instance.replace(at_once, "terminationGracePeriodSeconds: 120");
    let instance = instance.replace("masquerade: {}", "bridge: {}");
    stand_in(vireo)?;
    vireo.step("an instance waits for its network");
    vireo.feed("create -f -", &instance);
    let vmi = vireo.becomes("vmi networks", "says what it waits for", |vmi| {
        condition(vmi, "Synchronized")["reason"] == "FailedCreate"
    })?;
    let why = &condition(&vmi, "Synchronized")["message"];
    assert!(why.as_str().is_some_and(|why| why.contains("NetworkAttachmentDefinition")), "{why}");
    assert!(vireo.pods("networks")?.is_empty());

    vireo.step("the network appears");
    vireo.feed("create -f -", DEFINITION);
    vireo.ok(&format!("wait {LIMIT} --for=condition=Established crd/{CRD}"));
    vireo.feed("create -f -", network);
    let instead = "{name: lan, multus: {networkName: lan, default: true}}";
    vireo.feed("create -f -", &with_a_nic("instead", "{name: lan, bridge: {}}", instead));
    let vmi = vireo.phase("networks", "Running")?;
    assert_ne!(condition(&vmi, "Synchronized")["status"], "False", "{:#}", vmi["status"]);
    let pod = vireo.pod("networks")?;
    let requested =
        pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"].as_str().unwrap_or_default();
    let requested: Value = serde_json::from_str(requested).unwrap_or_default();
    assert_eq!(requested[0]["interface"], POD_INTERFACE, "{requested:#}");
    let nics = &vmi["status"]["interfaces"];
    assert_eq!((&nics[0]["name"], &nics[1]["name"]), (&"default".into(), &"lan".into()), "{nics:#}");
    assert_eq!(nics[1]["podInterfaceName"], POD_INTERFACE, "{nics:#}");
    let address = nics[1]["ipAddress"].as_str().unwrap_or_default();
    assert!(address.starts_with("10.77.0."), "{nics:#}");
    let primary = pod["status"]["podIP"].as_str().unwrap_or_default();
    assert_eq!((&nics[0]["ipAddress"], &nics[0]["podInterfaceName"]), (&primary.into(), &"eth0".into()));

    vireo.step("its guest is on it");
    let mut login = Login::over(vireo.console_process("networks")?);
    login.log_in()?;
    for (nic, device, address) in [(&nics[0], "eth0", primary), (&nics[1], "eth1", address)] {
        is_on(&mut login, (nic, device, address))?;
    }
    login.run(&format!("ping -c 3 -W 5 {GATEWAY}"))?;
    vireo.on_node(&format!("ping -c 3 -W 5 {primary}"))?;
    is_instead_of_the_pods(vireo)?;
    is_plugged(vireo)?;
    // Its console was lost with the node agent that was replaced. It answers when it is connected again.
    login.run("true")?;
    guest::is_shut_down_by_its_deletion(vireo, "networks", login)?;
    vireo.ok(&format!("delete crd {CRD} {LIMIT}"));
    removed(vireo)?;
    uses_passt(vireo)?;
    has_ipv6_alone(vireo)
}

/// The NIC of a guest has an address.
fn is_on(guest: &mut Login<'_>, (nic, device, address): (&Value, &str, &str)) -> Result<(), HostError> {
    let shown = guest.run(&format!("ip address show dev {device}"))?;
    assert!(shown.contains(&format!("inet {address}/24")), "{shown}");
    assert!(nic["mac"].as_str().is_some_and(|mac| shown.contains(mac)), "{shown}\n{nic:#}");
    Ok(())
}

/// The Pod's only interface is on the network, and the guest has its address.
fn is_instead_of_the_pods(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("a network is instead of that of Pods");
    let vmi = vireo.phase("instead", "Running")?;
    let (pod, nic) = (vireo.pod("instead")?, &vmi["status"]["interfaces"][0]);
    let requested = &pod["metadata"]["annotations"]["v1.multus-cni.io/default-network"];
    assert_eq!(*requested, format!("{}/lan", vireo.namespace), "{pod:#}");
    let address = pod["status"]["podIP"].as_str().unwrap_or_default();
    assert!(address.starts_with("10.77.0."), "{:#}", pod["status"]);
    assert_eq!((&nic["ipAddress"], &nic["podInterfaceName"]), (&address.into(), &"eth0".into()), "{nic:#}");
    let mut login = Login::over(vireo.console_process("instead")?);
    login.log_in()?;
    is_on(&mut login, (nic, "eth0", address))?;
    login.run(&format!("ping -c 3 -W 5 {GATEWAY}"))?;
    vireo.ok(&format!("delete vmi instead {LIMIT}"));
    vireo.gone("instead")
}

/// A NIC is plugged into a guest that runs and unplugged again, as the VM has it; the node agent is replaced meanwhile.
fn is_plugged(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("a NIC is plugged into a guest that runs");
    vireo.feed("create -f -", &vm_with_a_nic());
    let uid = vireo.phase("plugged", "Running")?["metadata"]["uid"].clone();
    let mut login = Login::over(vireo.console_process("plugged")?);
    login.log_in()?;
    vireo.ok(&format!("patch vm plugged --type=json -p '{}'", lan_below("/spec/template/spec")));
    let vmi = vireo.becomes("vmi plugged", "waits for the interface of its Pod", |vmi| {
        condition(vmi, "Synchronized")["reason"] == "PodInterfaceNotFound"
    })?;
    assert_eq!(vmi["metadata"]["uid"], uid);
    let pod = vireo.pod("plugged")?;
    vireo.on_node(&plugin(vireo, &pod, "ADD"))?;
    is_used(vireo, "plugged", &mut login)?;

    vireo.step("it is unplugged, by another node agent");
    guest::is_replaced(vireo)?;
    let state = "/spec/template/spec/domain/devices/interfaces/1/state";
    let absent = json!([{"op": "add", "path": state, "value": "absent"}]);
    vireo.ok(&format!("patch vm plugged --type=json -p '{absent}'"));
    is_released(vireo, "plugged", &mut login)?;
    let vm = vireo.becomes("vm plugged", "forgets the NIC", |vm| {
        let spec = &vm["spec"]["template"]["spec"];
        let count = |list: &Value| list.as_array().map(Vec::len);
        (count(&spec["networks"]), count(&spec["domain"]["devices"]["interfaces"])) == (Some(1), Some(1))
    })?;
    assert!(condition(&vm, "RestartRequired").is_null(), "{:#}", vm["status"]);
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    vireo.becomes(&format!("pod {name}"), "is on no other network", |pod| {
        pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "[]"
    })?;
    vireo.on_node(&plugin(vireo, &pod, "DEL"))?;
    assert_eq!(vireo.becomes("vmi plugged", "goes on", |_| true)?["metadata"]["uid"], uid);
    vireo.ok(&format!("delete vm plugged {LIMIT}"));
    vireo.gone("plugged")
}

/// The network `lan`.
pub(super) fn network() -> &'static str {
    MANIFEST.split_once("---\n").unwrap_or_default().0
}

/// What Multus' dynamic networks controller would do on the node of a launcher Pod: runs the plugin of the network `lan` for it.
pub(super) fn plugin(vireo: &Vireo<'_>, pod: &Value, command: &str) -> String {
    let namespace = &vireo.namespace;
    let config = vireo.ok(&format!("get net-attach-def lan -n {namespace} -o 'jsonpath={{.spec.config}}'"));
    // The kubelet's cgroup drivers spell the UID with `-` and with `_`.
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().replace('-', "[-_]");
    format!(
        r#"for pid in $(pidof virt-launcher); do if grep -q {uid} /proc/$pid/cgroup; then launcher=$pid; fi; done
        CNI_COMMAND={command} CNI_CONTAINERID=plugged CNI_NETNS=/proc/$launcher/ns/net CNI_IFNAME={POD_INTERFACE} \
            CNI_PATH=/usr/lib/cni /usr/lib/cni/bridge <<'CONFIG'
{config}
CONFIG"#
    )
}

/// The NIC of the network `lan`, once the guest of an instance has it: it has an address by DHCP and reaches the node.
pub(super) fn is_used(vireo: &Vireo<'_>, name: &str, guest: &mut Login<'_>) -> Result<(), HostError> {
    let vmi = vireo.becomes(&format!("vmi {name}"), "has the NIC", has_lan)?;
    assert_ne!(condition(&vmi, "Synchronized")["status"], "False", "{:#}", vmi["status"]);
    let nics = vmi["status"]["interfaces"].as_array().into_iter().flatten();
    let nic = nics.clone().find(|nic| nic["name"] == "lan").cloned().unwrap_or_default();
    let address = nic["ipAddress"].as_str().unwrap_or_default();
    assert!(address.starts_with("10.77.0.") && nic["mac"] == MAC, "{nic:#}");
    guest.run(&format!(
        "for i in $(seq 60); do {HAS_LAN} && break; sleep 1; done; ip link set eth1 up; udhcpc -n -q -i eth1"
    ))?;
    is_on(guest, (&nic, "eth1", address))?;
    guest.run(&format!("ping -c 3 -W 5 {GATEWAY}")).map(drop)
}

/// The guest of an instance has released the NIC of the network `lan`.
pub(super) fn is_released(vireo: &Vireo<'_>, name: &str, guest: &mut Login<'_>) -> Result<(), HostError> {
    vireo.becomes(&format!("vmi {name}"), "lost the NIC", |vmi| !has_lan(vmi))?;
    guest.run(&format!("for i in $(seq 60); do {HAS_LAN} || break; sleep 1; done; ! {HAS_LAN}")).map(drop)
}

/// Whether the guest has a NIC on the network `lan`, by the status of its instance.
fn has_lan(vmi: &Value) -> bool {
    let mut nics = vmi["status"]["interfaces"].as_array().into_iter().flatten();
    let is_in_guest = |nic: &Value| nic["infoSource"].as_str().is_some_and(|by| by.contains("domain"));
    nics.any(|nic| nic["name"] == "lan" && is_in_guest(nic))
}

/// A NIC on the network `lan`, and the network, to be added to lists below a path.
pub(super) fn lan_below(path: &str) -> String {
    let nic = json!({"name": "lan", "bridge": {}, "macAddress": MAC});
    let network = json!({"name": "lan", "multus": {"networkName": "lan"}});
    json!([{"op": "add", "path": format!("{path}/domain/devices/interfaces/-"), "value": nic},
        {"op": "add", "path": format!("{path}/networks/-"), "value": network}])
    .to_string()
}

/// A VM with one NIC.
fn vm_with_a_nic() -> String {
    let instance = with_a_nic("plugged", "{name: default, masquerade: {}}", "{name: default, pod: {}}");
    let spec =
        instance.split_once("spec:\n").map(|(_, spec)| spec.replace("\n  ", "\n      ")).unwrap_or_default();
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: plugged}}\nspec:\n  runStrategy: Always\n  template:\n    spec:\n    {spec}"
    )
}

/// A guest has the addresses of its Pod by passt, which outlives the node agent that started it, and is the Pod's.
fn uses_passt(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("a guest uses passt");
    let interface = format!("{{name: default, passtBinding: {{}}, ports: [{{port: {}}}]}}", guest::PORT);
    vireo.feed("create -f -", &with_a_nic("passt", &interface, "{name: default, pod: {}}"));
    let vmi = vireo.phase("passt", "Running")?;
    let pod = vireo.pod("passt")?;
    let address = pod["status"]["podIP"].as_str().unwrap_or_default();
    let nic = &vmi["status"]["interfaces"][0];
    assert_eq!(nic["ipAddress"], *address, "{nic:#}");
    let mut login = Login::over(vireo.console_process("passt")?);
    login.log_in()?;
    is_on(&mut login, (nic, "eth0", address))?;
    login.run("ping -c 3 -W 5 $(ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p')")?;
    guest::serves_a_page(vireo, "passt", &mut login)?;
    // The kubelet's cgroup drivers spell the UID with `-` and with `_`.
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().replace('-', "[-_]");
    let of_pod =
        format!("for pid in $(pidof passt); do ! grep -q {uid} /proc/$pid/cgroup || echo $pid; done");
    let passt = vireo.on_node(&of_pod)?;
    assert_eq!(passt.lines().count(), 1, "in the cgroups of the Pod: {passt:?}");
    guest::is_replaced(vireo)?;
    guest::has_a_page(vireo, "passt")?;
    vireo.ok(&format!("delete vmi passt {LIMIT}"));
    vireo.gone("passt")?;
    eventually("passt ends with its VM", SOON, || Ok(vireo.on_node(&of_pod)?.is_empty()))
}

/// A guest whose Pod has IPv6 alone is reached at that address, by `virtctl port-forward`, too.
fn has_ipv6_alone(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("a Pod has IPv6 alone");
    let filter = r#"def six(at): map(select(at | contains(":")));
        .plugins[0].ipam |= (.ranges |= six(.[0].subnet) | .routes |= six(.dst))"#;
    configure_pods(vireo, filter)?;
    vireo.feed(
        "create -f -",
        &with_a_nic("six", "{name: default, masquerade: {}}", "{name: default, pod: {}}"),
    );
    let vmi = vireo.phase("six", "Running")?;
    let interface = &vmi["status"]["interfaces"][0];
    let address = interface["ipAddress"].as_str().unwrap_or_default();
    assert!(address.starts_with("fd00:10:244:"), "{interface:#}");
    assert_eq!(interface["ipAddresses"], serde_json::json!([address]), "{interface:#}");
    let mut login = Login::over(vireo.console_process("six")?);
    login.log_in()?;
    guest::gets_ipv6(&mut login)?;
    guest::serves_a_page(vireo, "six", &mut login)?;
    vireo.ok(&format!("delete vmi six {LIMIT}"));
    vireo.gone("six")?;
    restore_pods(vireo)
}

/// A small instance.
fn with_a_nic(name: &str, interface: &str, network: &str) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  domain:\n    memory: {{guest: 256Mi}}\n    devices: {{autoattachGraphicsDevice: false, disks: [{{name: root, disk: {{bus: virtio}}}}], interfaces: [{interface}]}}\n  networks: [{network}]\n  volumes: [{{name: root, containerDisk: {{image: '{GUEST}', imagePullPolicy: Never}}}}]\n"
    )
}

/// Changes how the node makes networks of Pods, by a filter of `jq`.
fn configure_pods(vireo: &Vireo<'_>, filter: &str) -> Result<(), HostError> {
    let line = format!(
        r#"cd "$(dirname "$KUBECONFIG")"
        cp cni/pods.conflist pods.conflist
        jq --arg kubectl "$(command -v kubectl)" --arg kubeconfig "$KUBECONFIG" '{filter}' pods.conflist >cni/pods.new
        mv cni/pods.new cni/pods.conflist"#
    );
    vireo.on_node(&line).map(drop)
}

fn restore_pods(vireo: &Vireo<'_>) -> Result<(), HostError> {
    let line = r#"cd "$(dirname "$KUBECONFIG")"
        cp pods.conflist cni/pods.new
        mv cni/pods.new cni/pods.conflist
        rm pods.conflist"#;
    vireo.on_node(line).map(drop)
}

/// Puts a stand-in for Multus into the node's CNI configuration.
fn stand_in(vireo: &Vireo<'_>) -> Result<(), HostError> {
    let line = format!(
        r#"cd "$(dirname "$KUBECONFIG")"
        cp -r /usr/lib/cni cni-plugins
        cat >cni-plugins/stand-in-for-multus <<'STAND_IN'
{PLUGIN}STAND_IN
        chmod 755 cni-plugins/stand-in-for-multus
        # In the node alone, which has a mount namespace of its own.
        mount --bind cni-plugins /usr/lib/cni"#
    );
    vireo.on_node(&line)?;
    let filter = r#". as {$name, $cniVersion, $plugins}
        | .plugins = [{type: "stand-in-for-multus", $kubectl, $kubeconfig, delegate: ($plugins[0] + {$name, $cniVersion})}]"#;
    configure_pods(vireo, filter)
}

/// Leaves the node as it was.
fn removed(vireo: &Vireo<'_>) -> Result<(), HostError> {
    restore_pods(vireo)?;
    let line = r#"cd "$(dirname "$KUBECONFIG")"
        umount --lazy /usr/lib/cni
        rm -r cni-plugins
        ip link delete lan0"#;
    vireo.on_node(line).map(drop)
}
