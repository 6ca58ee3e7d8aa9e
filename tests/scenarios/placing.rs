//! What a node takes and what it does not, by `kubectl cordon`, labels and room.

use vireo_tests::HostError;

use crate::scenarios::standalone::{Standalone, host_with_vireo};

/// It has nothing to start, which is enough to run.
const BARE: &str = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: bare}\nspec:\n  runStrategy: Always\n  template:\n    spec:\n      nodeSelector: {disk: ssd}\n      terminationGracePeriodSeconds: 0\n      domain: {memory: {guest: 64Mi}, devices: {autoattachGraphicsDevice: false, autoattachPodInterface: false}}\n";

#[test]
fn a_vm_waits_for_a_schedulable_node() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let mut standalone = Standalone::start(&host)?;
    let node = standalone.json("get node here")?;
    assert!(node["metadata"]["annotations"]["kubevirt.io/heartbeat"].is_string(), "{node:#}");
    standalone.kubectl("apply -f -", Some(BARE))?.ok();
    standalone.printable("bare", "ErrorUnschedulable")?;
    standalone.kubectl("cordon here", None)?.ok();
    standalone.kubectl("label node here disk=ssd", None)?.ok();
    let waits = "wait vmi bare --timeout=60s --for=jsonpath={.status.conditions[0].message}";
    let cordoned = "'=0/1 nodes are available: 1 node(s) were unschedulable.'";
    standalone.kubectl(&format!("{waits}{cordoned}"), None)?.ok();
    let described = standalone.kubectl("describe vmi bare", None)?.ok();
    assert!(described.contains("FailedScheduling") && described.contains("node affinity"), "{described}");
    standalone.kubectl("uncordon here", None)?.ok();
    standalone.printable("bare", "Running")?;

    let uid = standalone.uid("bare")?;
    standalone.kubectl("cordon here", None)?.ok();
    standalone.lose()?;
    standalone.printable("bare", "Running")?;
    assert_eq!(standalone.uid("bare")?, uid, "a cordon ends nothing");
    standalone.kubectl("delete vm bare --timeout=60s", None)?.ok();
    assert_eq!(standalone.launchers()?, "0");
    Ok(())
}

/// An instance that has nothing to start, with so many MiB.
fn large(name: &str, memory: u64, resources: &str) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  domain: {{cpu: {{cores: 1}}, memory: {{guest: {memory}Mi}}, resources: {{{resources}}}, devices: {{autoattachGraphicsDevice: false, autoattachPodInterface: false}}}}\n"
    )
}

#[test]
fn a_vm_waits_for_free_memory() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let standalone = Standalone::start(&host)?;
    let node = standalone.json("get node here")?;
    let memory = |of: &str| {
        let text = node["status"][of]["memory"].as_str().unwrap_or_default();
        text.trim_end_matches("Ki").parse::<u64>().unwrap_or_default() / 1024
    };
    assert!(memory("allocatable") > 0 && memory("allocatable") < memory("capacity"), "{node:#}");
    // Untouched memory is none: two of these would fit this host, and not what it promises.
    let most = memory("allocatable") * 6 / 10;
    standalone.kubectl("apply -f -", Some(&large("first", most, "")))?.ok();
    standalone.becomes_ready("vmi/first")?;
    standalone.kubectl("apply -f -", Some(&large("second", most, "")))?.ok();
    standalone.kubectl("apply -f -", Some(&large("greedy", 64, "requests: {cpu: 1k}")))?.ok();
    let waits = |name: &str, what: &str| {
        let why = format!("0/1 nodes are available: 1 Insufficient {what}.");
        let reported = format!("--for=jsonpath={{.status.conditions[0].message}}='{why}'");
        standalone
            .kubectl(&format!("wait vmi {name} --timeout=60s {reported}"), None)
            .map(|reported| reported.ok())
    };
    waits("second", "memory")?;
    waits("greedy", "cpu")?;
    let described = standalone.kubectl("describe vmi second", None)?.ok();
    assert!(described.contains("FailedScheduling"), "{described}");
    assert_eq!(standalone.json("get vmi second")?["status"]["phase"], "Scheduling");
    standalone.kubectl("apply -f -", Some(&large("small", 64, "")))?.ok();
    standalone.becomes_ready("vmi/small")?;
    standalone.kubectl("delete vmi first --timeout=60s", None)?.ok();
    standalone.becomes_ready("vmi/second")?;
    standalone.kubectl("delete vmi --all --timeout=60s", None)?.ok();
    assert_eq!(standalone.launchers()?, "0");
    Ok(())
}
