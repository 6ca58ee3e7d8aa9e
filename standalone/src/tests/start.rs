//! What a start costs the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use vireo_api::names::NODE_LABEL;
use vireo_api::v1::VirtualMachineInstance;
use vireo_handler::manifests::Source as _;
use vireo_handler::manifests::desired::Entry;

use super::cluster::node_agent;
use super::placement::Placed;
use super::*;

const PHASES: [&str; 4] = ["Pending", "Scheduling", "Scheduled", "Running"];

/// A status that the node agent shows of a VMI that has passed these phases.
fn status(phases: &[&str], ready: &str) -> Value {
    let noted = phases.iter().zip(0..).map(|(phase, second)| {
        json!({"phase": phase, "phaseTransitionTimestamp": format!("2026-01-01T00:00:0{second}Z")})
    });
    let noted: Vec<Value> = noted.collect();
    let is_ready = if phases.len() == PHASES.len() { "True" } else { ready };
    let chosen = vireo_api::spec::HYPERVISOR_CONDITION;
    json!({
        "phase": phases.last(),
        "nodeName": "node1",
        "phaseTransitionTimestamps": noted,
        "conditions": [
            {"type": "Ready", "status": is_ready},
            {"type": chosen, "status": "True", "reason": "qemu", "message": "why"},
        ],
    })
}

/// Time passes when there is nothing else to do, so the tests do not depend on the speed of their host.
#[tokio::test(start_paused = true)]
async fn a_start_takes_no_more_writes_than_it_needs() {
    let ready = |reached| if reached == PHASES.len() { "True" } else { "False" };
    start(Duration::from_millis(300), 3, ready).await;
}

/// As where many start at once. What the launcher reports may come before its phase does.
#[tokio::test(start_paused = true)]
async fn a_slow_start_takes_no_more_writes_of_its_vmi() {
    let ready = |reached| if reached + 1 == PHASES.len() { "True" } else { "False" };
    // Its Pod is reported meanwhile, as a kubelet does.
    start(Duration::from_secs(3), 5, ready).await;
}

/// Starts a VMI that is in each phase for a while, with so many writes of its Pod. `ready` is its condition in a phase before
/// the last one.
async fn start(each: Duration, pod_writes: usize, ready: impl Fn(usize) -> &'static str) {
    let placed = Placed::new(json!({})).await;
    let (node, cluster) = node_agent(&placed.world);
    let mut source = cluster.source();
    let mut running = tokio::task::JoinSet::new();
    running.spawn(async move { cluster.run().await });
    source.ready(Vec::new()).await;
    let store = &placed.world.server.store;
    let before = store.revision();
    placed.create("x", json!({})).await;
    let manifest = loop {
        source.changed().await;
        if let Some(Entry::Present { manifest, .. }) =
            source.update(&BTreeMap::new()).desired.entries.into_values().next()
        {
            break manifest;
        }
    };
    // As the node agent's reconciler does while a launcher starts.
    let key = vireo_client::ObjectKey::new("default", "x");
    for reached in 2..=PHASES.len() {
        let status = serde_json::from_value(status(&PHASES[..reached], ready(reached))).unwrap();
        node.show(&key, Some(VirtualMachineInstance { status, ..manifest.vmi.clone() }));
        tokio::time::sleep(each).await;
    }
    // Whatever is written later.
    tokio::time::sleep(Duration::from_secs(30)).await;

    let (_, writes) = store.events_of_all(before).unwrap();
    let of = |resource: &str| writes.iter().filter(|write| write.key.resource == resource).count();
    let written: Vec<&str> = writes.iter().map(|write| write.key.resource.as_str()).collect();
    assert_eq!(
        of("virtualmachineinstances.kubevirt.io"),
        3,
        "created, handed over to its node, Running: {written:?}"
    );
    assert_eq!(of("pods"), pod_writes, "created, bound, in the end Running and ready: {written:?}");
    assert_eq!(of("events"), 4, "SuccessfulCreate, HypervisorChosen, Created, Started: {written:?}");
    assert_eq!(writes.len(), 7 + pod_writes, "{written:?}");

    let [pod] = placed.pods("x").try_into().unwrap();
    let vmi = placed.get("x").unwrap();
    assert_eq!(vmi["metadata"]["labels"][NODE_LABEL], "node1");
    assert_eq!(vmi["status"]["activePods"], json!({pod["metadata"]["uid"].as_str().unwrap(): "node1"}));
    let noted = vmi["status"]["phaseTransitionTimestamps"].as_array().unwrap();
    let noted: Vec<&str> = noted.iter().map(|noted| noted["phase"].as_str().unwrap()).collect();
    assert_eq!(noted, PHASES);
    assert_eq!(
        (&pod["status"]["phase"], &pod["status"]["containerStatuses"][0]["ready"]),
        (&json!("Running"), &json!(true))
    );
}
