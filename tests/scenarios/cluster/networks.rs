//! Networks beside that of Pods.

use serde_json::Value;
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
