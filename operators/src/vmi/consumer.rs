//! The Pod that is the first consumer of the claims of an instance: a cluster binds claims that wait for one where this Pod
//! is scheduled, and CDI fills them then, before the launcher Pod mounts them. It is scheduled as the launcher Pod would be.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use vireo_api::names::{COMPONENT_LABEL, CONSUMER, CREATED_BY_LABEL};
use vireo_api::v1::{Condition, VirtualMachineInstance};

use super::decide::{Decision, Observed, Step};
use super::template::shortened;
use super::{StartedBy, Wait};

/// KubeVirt's annotation of such a Pod.
const PROVISIONING_ANNOTATION: &str = "kubevirt.io/ephemeral-provisioning";

/// Makes a launcher Pod one that ends at once, and has nothing of it but its claims. There is one of an instance at a time.
pub(super) fn consumer_pod(mut pod: Pod, vmi: &VirtualMachineInstance) -> Pod {
    let metadata = &mut pod.metadata;
    let short = shortened(&vmi.metadata.name);
    let identity: String = vmi.metadata.uid.chars().filter(char::is_ascii_alphanumeric).take(10).collect();
    metadata.generate_name = None;
    metadata.name = Some(format!("{CONSUMER}-{}-{identity}", short));
    let labels = [(COMPONENT_LABEL, CONSUMER), (CREATED_BY_LABEL, &vmi.metadata.uid)];
    metadata.labels = Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    metadata.annotations = Some(BTreeMap::from([(PROVISIONING_ANNOTATION.to_owned(), "true".to_owned())]));
    let Some(spec) = pod.spec.as_mut() else { return pod };
    spec.init_containers = None;
    spec.containers.truncate(1);
    let volumes = spec.volumes.get_or_insert_default();
    volumes.retain(|volume| volume.persistent_volume_claim.is_some());
    let names: Vec<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
    for container in &mut spec.containers {
        container.command = Some(["/usr/bin/virt-launcher", "--version"].map(str::to_owned).into());
        if let Some(mounts) = &mut container.volume_mounts {
            mounts.retain(|mount| names.contains(&mount.name.as_str()));
        }
    }
    spec.termination_grace_period_seconds = Some(0);
    pod
}

/// Decides about the consumers of an instance that has no launcher Pod yet. Whether one is in the way of that Pod.
pub(super) fn decide(observed: &Observed<'_>, decision: &mut Decision) -> bool {
    let waits = matches!(observed.wait, Some(Wait::Consumer(_)));
    let living = || observed.consumers.iter().filter(|pod| !pod.is_deleted());
    let of_kubelet = observed.launcher.started_by == StartedBy::Kubelet;
    // One that has failed before its claims were bound is made anew.
    let is_of_use = |status: &str| waits && status != "Failed";
    for pod in living().filter(|pod| !is_of_use(&pod.status.phase)) {
        decision.steps.push(Step::DeleteConsumer(pod.metadata.uid.clone()));
    }
    if waits && of_kubelet && observed.consumers.is_empty() {
        decision.steps.push(Step::CreateConsumer);
    }
    !observed.consumers.is_empty()
}

/// Why the consumer that an instance waits for is not bound to a node.
pub(super) fn unbound<'a>(observed: &Observed<'a>) -> Option<&'a Condition> {
    let waits = matches!(observed.wait, Some(Wait::Consumer(_)));
    observed.consumers.first().filter(|_| waits)?.unbound()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::super::{Launcher, LauncherPod, decide};
    use super::*;

    #[test]
    fn it_is_a_launcher_with_claims_alone() {
        let launcher = json!({
            "metadata": {"generateName": "virt-launcher-x-", "namespace": "n",
                "labels": {"kubevirt.io": "virt-launcher", "app": "a"},
                "annotations": {"vireo.io/claim-disks": "{}"}, "ownerReferences": []},
            "spec": {
                "initContainers": [{"name": "images"}],
                "nodeSelector": {"a": "b"},
                "containers": [
                    {"name": "compute", "command": ["a"], "resources": {"requests": {"cpu": "1"}},
                        "volumeMounts": [{"name": "sockets", "mountPath": "/a"}, {"name": "claim-0", "mountPath": "/b"}],
                        "volumeDevices": [{"name": "claim-1", "devicePath": "/c"}]},
                    {"name": "guest-console-log"},
                ],
                "volumes": [{"name": "sockets", "emptyDir": {}},
                    {"name": "claim-0", "persistentVolumeClaim": {"claimName": "x"}},
                    {"name": "claim-1", "persistentVolumeClaim": {"claimName": "y"}}],
            },
        });
        let vmi = json!({"metadata": {"name": "x", "uid": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"}});
        let pod =
            consumer_pod(serde_json::from_value(launcher).unwrap(), &serde_json::from_value(vmi).unwrap());
        assert_eq!(
            json!(pod),
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "virt-consumer-x-5649d1a67e", "namespace": "n", "ownerReferences": [],
                    "labels": {"kubevirt.io": "virt-consumer", "kubevirt.io/created-by": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"},
                    "annotations": {"kubevirt.io/ephemeral-provisioning": "true"}},
                "spec": {
                    "nodeSelector": {"a": "b"},
                    "containers": [{"name": "compute", "command": ["/usr/bin/virt-launcher", "--version"],
                        "resources": {"requests": {"cpu": "1"}},
                        "volumeMounts": [{"name": "claim-0", "mountPath": "/b"}],
                        "volumeDevices": [{"name": "claim-1", "devicePath": "/c"}]}],
                    "volumes": [{"name": "claim-0", "persistentVolumeClaim": {"claimName": "x"}},
                        {"name": "claim-1", "persistentVolumeClaim": {"claimName": "y"}}],
                    "terminationGracePeriodSeconds": 0,
                },
            })
        );
    }

    fn pod(status: Value, deleted: bool) -> LauncherPod {
        let deleted = deleted.then_some("2026-01-01T00:00:00Z");
        LauncherPod::read(
            json!({"metadata": {"name": "c", "uid": "c", "deletionTimestamp": deleted}, "status": status}),
        )
        .unwrap()
    }

    fn decided(started_by: StartedBy, wait: Option<&Wait>, consumers: &[LauncherPod]) -> Decision {
        decided_after(json!({"phase": "Pending"}), None, started_by, wait, consumers)
    }

    fn decided_after(
        status: Value,
        failure: Option<&str>,
        started_by: StartedBy,
        wait: Option<&Wait>,
        consumers: &[LauncherPod],
    ) -> Decision {
        let vmi = serde_json::from_value(json!({"metadata": {"name": "x"}, "status": status}));
        let consumers: Vec<&LauncherPod> = consumers.iter().collect();
        decide(&Observed {
            vmi: &vmi.unwrap(),
            pods: &[],
            consumers: &consumers,
            failure,
            wait,
            warning: None,
            launcher: &Launcher::new("l", started_by),
            is_node_unresponsive: false,
            now: Timestamp::UNIX_EPOCH,
        })
    }

    #[test]
    fn claims_get_a_consumer_until_they_are_bound() {
        let waits = Wait::Consumer("DataVolume d".to_owned());
        let steps = |wait: Option<&Wait>, consumers: &[LauncherPod]| {
            decided(StartedBy::Kubelet, wait, consumers).steps
        };
        let delete = || Step::DeleteConsumer("c".to_owned());
        let running = || [pod(json!({"phase": "Running"}), false)];
        let filling = Wait::Filling("DataVolume d".to_owned());
        assert_eq!(steps(Some(&waits), &[]), [Step::CreateConsumer]);
        assert_eq!(steps(Some(&waits), &running()), []);
        assert_eq!(steps(Some(&waits), &[pod(json!({"phase": "Succeeded"}), false)]), [], "CDI follows");
        assert_eq!(steps(Some(&waits), &[pod(json!({"phase": "Failed"}), false)]), [delete()]);
        assert_eq!(steps(Some(&waits), &[pod(json!({}), true)]), [], "there is one at a time");
        assert_eq!(steps(Some(&filling), &running()), [delete()]);
        assert_eq!(steps(None, &running()), [delete()]);
        assert_eq!(steps(None, &[pod(json!({}), true)]), [], "it may hold the claim");
        assert_eq!(steps(None, &[]), [Step::CreatePod(None)]);
        assert_eq!(decided(StartedBy::NodeAgent, Some(&waits), &[]).steps, []);
    }

    #[test]
    fn provisioning_is_a_condition_while_data_volumes_are_worked_on() {
        let text = || "DataVolume d".to_owned();
        let provisioning = |status: &vireo_api::v1::VirtualMachineInstanceStatus| {
            let condition = status.conditions.iter().find(|one| one.r#type == "Provisioning")?;
            assert_eq!((condition.status.as_str(), condition.message.as_str()), ("True", "DataVolume d"));
            Some(condition.reason.clone())
        };
        let mut status = json!({"phase": "Pending"});
        for (wait, expected) in [
            (Some(Wait::Consumer(text())), Some("WaitForFirstConsumer")),
            (Some(Wait::Filling(text())), Some("DataVolumeFilling")),
            (Some(Wait::NoClaim(text())), None),
            (Some(Wait::Filling(text())), Some("DataVolumeFilling")),
            (Some(Wait::Failed(text())), None),
            (None, None),
        ] {
            let decision = decided_after(status, None, StartedBy::Kubelet, wait.as_ref(), &[]);
            assert_eq!(provisioning(&decision.status).as_deref(), expected, "{wait:?}");
            status = json!({"phase": "Pending", "conditions": decision.status.conditions});
        }
    }

    #[test]
    fn why_it_cannot_be_created_is_reported() {
        let exists = "Pod n/c is not of this VMI, waiting for it to be deleted";
        for (wait, failure, expected) in [
            (Wait::Consumer("a".to_owned()), Some(exists), Some("FailedCreate")),
            (Wait::Consumer("a".to_owned()), None, Some("PvcNotBound")),
            (Wait::Filling("a".to_owned()), Some(exists), None),
            (Wait::NoClaim("a".to_owned()), Some(exists), Some("FailedPvcNotFound")),
        ] {
            let status = json!({"phase": "Pending"});
            let decision = decided_after(status, failure, StartedBy::Kubelet, Some(&wait), &[]);
            let conditions = &decision.status.conditions;
            let synchronized = conditions.iter().find(|one| one.r#type == "Synchronized");
            assert_eq!(synchronized.map(|one| one.reason.as_str()), expected, "{wait:?} {failure:?}");
        }
    }

    #[test]
    fn why_it_is_not_scheduled_is_reported() {
        let waits = Wait::Consumer("DataVolume d".to_owned());
        let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"});
        let unbound = pod(json!({"conditions": [condition]}), false);
        let decision = decided(StartedBy::Kubelet, Some(&waits), std::slice::from_ref(&unbound));
        assert_eq!(decision.unschedulable.as_deref(), Some("no room"));
        let reported = |decision: &Decision| {
            decision.status.conditions.iter().any(|condition| condition.r#type == "PodScheduled")
        };
        assert!(reported(&decision), "{:?}", decision.status);

        let filling = Wait::Filling("DataVolume d".to_owned());
        let status = json!(decision.status);
        for consumers in [&[unbound][..], &[]] {
            let later = decided_after(status.clone(), None, StartedBy::Kubelet, Some(&filling), consumers);
            assert!(!reported(&later), "{:?}", later.status);
            assert_eq!(later.unschedulable, None);
        }
    }
}
