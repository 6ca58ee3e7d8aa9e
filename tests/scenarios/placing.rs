//! What a node takes and what it does not, by `kubectl cordon` and labels.

use vireo_tests::HostError;

use crate::scenarios::standalone::{Standalone, host_with_vireo};

/// It has nothing to start, which is enough to run.
const BARE: &str = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: bare}\nspec:\n  runStrategy: Always\n  template:\n    spec:\n      nodeSelector: {disk: ssd}\n      terminationGracePeriodSeconds: 0\n      domain: {memory: {guest: 64Mi}, devices: {autoattachGraphicsDevice: false, autoattachPodInterface: false}}\n";

#[test]
fn a_machine_waits_for_its_place() -> Result<(), HostError> {
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
