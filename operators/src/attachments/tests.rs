use serde_json::{Value, json};

use super::*;
use crate::config::ClusterConfig;
use crate::vmi::Claim;

/// An instance on a node that wants these claims, of which those are reported.
fn vmi(wanted: &[&str], reported: &[&str]) -> VirtualMachineInstance {
    let volume = |claim: &&str| {
        json!({"name": format!("volume-{claim}"),
            "persistentVolumeClaim": {"claimName": claim, "hotpluggable": true, "readOnly": *claim == "iso"}})
    };
    let fixed = json!({"name": "root", "persistentVolumeClaim": {"claimName": "root"}});
    let volumes: Vec<Value> = wanted.iter().map(volume).chain([fixed]).collect();
    let status = |claim: &&str| {
        json!({"name": format!("volume-{claim}"), "hotplugVolume": {},
            "persistentVolumeClaimInfo": {"claimName": claim}})
    };
    let statuses: Vec<Value> = reported.iter().map(status).chain([json!({"name": "root"})]).collect();
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "n", "uid": "vmi", "labels": {"kubevirt.io/nodeName": "node1"}},
        "spec": {"volumes": volumes, "priorityClassName": "high"},
        "status": {"phase": "Running", "volumeStatus": statuses},
    }))
    .unwrap()
}

fn launcher(uid: &str) -> Value {
    json!({"metadata": {"name": format!("virt-launcher-{uid}"), "uid": uid}, "spec": {"nodeName": "node1"},
        "status": {"phase": "Running"}})
}

fn attachment(claim: &str, launcher: &str) -> Value {
    json!({"metadata": {"name": format!("hp-{claim}"), "uid": claim,
        "annotations": {"vireo.io/claim": claim, "kubevirt.io/owner-vmi-name": "web"},
        "ownerReferences": [{"kind": "Pod", "name": "x", "uid": launcher}]}, "status": {"phase": "Running"}})
}

/// The steps as `+CLAIM` and `-CLAIM`.
fn steps(vmi: &VirtualMachineInstance, pods: &[Value], attachments: &[Value]) -> Vec<String> {
    let read = |pod: &Value| LauncherPod::read(pod.clone()).unwrap();
    let pods: Vec<LauncherPod> = pods.iter().map(read).collect();
    let attachments: Vec<Attachment> =
        attachments.iter().map(|one| serde_json::from_value(one.clone()).unwrap()).collect();
    let steps = decide(vmi, &pods.iter().collect::<Vec<_>>(), &attachments.iter().collect::<Vec<_>>());
    let text = |step: &Step<'_>| match step {
        Step::Create(claim) => format!("+{claim}"),
        Step::Delete(attachment) => format!("-{}", attachment.claim()),
    };
    steps.iter().map(text).collect()
}

#[test]
fn claims_are_held_while_they_are_wanted_or_in_use() {
    let none: &[&str] = &[];
    for (wanted, reported, held, expected) in [
        (none, none, none, none),
        (&["a"], none, none, &["+a"]),
        (&["a"], none, &["a"], none),
        (&["a"], &["a"], &["a"], none),
        (none, &["a"], &["a"], none),
        (none, none, &["a"], &["-a"]),
        (&["a", "b"], &["c"], &["a", "c", "d"], &["-d", "+b"]),
        // It was deleted by somebody, and the guest has it.
        (&["a"], &["a"], none, &["+a"]),
    ] {
        let held: Vec<Value> = held.iter().map(|claim| attachment(claim, "one")).collect();
        let found = steps(&vmi(wanted, reported), &[launcher("one")], &held);
        assert_eq!(found, expected, "{wanted:?} {reported:?} {held:?}");
    }
}

#[test]
fn a_claim_for_a_memory_dump_is_held() {
    let mut dumped = vmi(&["a"], &[]);
    let dump = json!({"name": "dumps", "memoryDump": {"claimName": "dumps", "hotpluggable": true}});
    dumped.spec.volumes.push(serde_json::from_value(dump).unwrap());
    assert_eq!(steps(&dumped, &[launcher("one")], &[]), ["+a", "+dumps"]);
    // The node agent reports it until the launcher has released it.
    let released = vmi(&[], &["dumps"]);
    assert_eq!(steps(&released, &[launcher("one")], &[attachment("dumps", "one")]), [""; 0]);
    assert_eq!(steps(&vmi(&[], &[]), &[launcher("one")], &[attachment("dumps", "one")]), ["-dumps"]);
}

#[test]
fn a_claim_has_a_pod_only_beside_a_launcher_that_may_run_its_guest() {
    let wants = vmi(&["a"], &["a"]);
    let held = [attachment("a", "one")];
    assert_eq!(steps(&wants, &[], &[]), [""; 0], "there is no launcher");
    let mut ended = launcher("one");
    ended["status"]["phase"] = "Succeeded".into();
    assert_eq!(steps(&wants, &[ended], &held), ["-a"]);
    let mut elsewhere = launcher("one");
    elsewhere["spec"]["nodeName"] = "node2".into();
    assert_eq!(steps(&wants, &[elsewhere], &held), ["-a"]);
    assert_eq!(steps(&wants, &[launcher("two")], &held), ["-a"], "it is of another launcher, and goes first");
    let mut unbound = wants.clone();
    unbound.metadata.labels.clear();
    assert_eq!(steps(&unbound, &[launcher("one")], &[]), [""; 0], "no node has it");
    let mut over = wants;
    "Failed".clone_into(&mut over.status.phase);
    assert_eq!(steps(&over, &[launcher("one")], &held), ["-a"]);
}

#[test]
fn what_ends_is_left_alone_and_not_replaced_meanwhile() {
    let wants = vmi(&["a"], &["a"]);
    let mut deleted = attachment("a", "one");
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    assert_eq!(steps(&wants, &[launcher("one")], &[deleted]), [""; 0]);
    let mut failed = attachment("a", "one");
    failed["status"]["phase"] = "Failed".into();
    assert_eq!(steps(&wants, &[launcher("one")], &[failed]), ["-a"]);
    let mut ending = launcher("one");
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    assert_eq!(steps(&wants, std::slice::from_ref(&ending), &[]), [""; 0]);
    assert_eq!(steps(&wants, &[ending], &[attachment("a", "one")]), [""; 0], "the guest may still run");
}

fn claim(mode: &str) -> Claim {
    let object = json!({"spec": {"volumeMode": mode, "resources": {"requests": {"storage": "1Mi"}}}});
    Claim::from(&serde_json::from_value::<k8s_openapi::api::core::v1::PersistentVolumeClaim>(object).unwrap())
}

fn pod(name: &str, mode: &str) -> Value {
    let launcher = LauncherPod::read(launcher("one")).unwrap();
    let (vmi, config) = (vmi(&["data", "iso"], &[]), ClusterConfig::default());
    json!(attachment_pod(&vmi, &launcher, (name, &claim(mode)), "launcher:1", &config))
}

#[test]
fn an_attachment_pod_has_its_claim_on_the_node_of_the_launcher() {
    let files = pod("data", "Filesystem");
    let metadata = &files["metadata"];
    let name = metadata["name"].as_str().unwrap();
    assert!(name.starts_with("hp-volume-data-") && name == pod("data", "Filesystem")["metadata"]["name"]);
    assert_eq!(metadata["labels"], json!({"kubevirt.io": "hotplug-disk"}));
    let annotations = json!({"kubevirt.io/owner-vmi-name": "web", "kubevirt.io/owner-vmi-uid": "vmi",
        "vireo.io/claim": "data",
        "vireo.io/claim-disks": "{\"/var/run/kubevirt/hotplug-disks/data/disk.img\":1048576}"});
    assert_eq!(metadata["annotations"], annotations);
    let owner = &metadata["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Pod"), &json!("one")));
    let spec = &files["spec"];
    let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let is_node = json!({"key": "metadata.name", "operator": "In", "values": ["node1"]});
    assert_eq!(required["nodeSelectorTerms"], json!([{"matchFields": [is_node]}]));
    assert_eq!(
        (&spec["tolerations"], &spec["priorityClassName"]),
        (&json!([{"operator": "Exists"}]), &json!("high"))
    );
    let container = &spec["containers"][0];
    assert_eq!(container["securityContext"]["runAsUser"], 107);
    assert_eq!(container["volumeMounts"][1]["mountPath"], "/var/run/kubevirt/hotplug-disks/data");
    assert_eq!(spec["volumes"][1]["persistentVolumeClaim"], json!({"claimName": "data"}));

    let device = pod("iso", "Block");
    assert_ne!(device["metadata"]["name"], metadata["name"]);
    let disks = &device["metadata"]["annotations"]["vireo.io/claim-disks"];
    assert_eq!(disks, "{\"/dev/hotplug-disks/iso\":null}");
    let container = &device["spec"]["containers"][0];
    assert_eq!(
        container["volumeDevices"],
        json!([{"name": "claim", "devicePath": "/dev/hotplug-disks/iso"}])
    );
    assert_eq!(device["spec"]["volumes"][1]["persistentVolumeClaim"]["readOnly"], true);
}
