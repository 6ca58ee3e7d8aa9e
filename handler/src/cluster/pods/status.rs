//! The status of a launcher Pod: a pure function of what the node shows of its VMI.

use jiff::Timestamp;
use serde_json::{Value, json};
use vireo_api::names::COMPUTE;
use vireo_api::v1::VirtualMachineInstance;

use crate::reconcile::status::{ConditionType, Phase, failure};

/// The status now. `vmi` is absent until the node has it.
pub(super) fn next(
    before: &Value,
    image: &str,
    vmi: Option<&VirtualMachineInstance>,
    now: Timestamp,
) -> Value {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    let phase = vmi.map_or(Phase::Pending, |vmi| Phase::parse(&vmi.status.phase));
    let is_ready = phase == Phase::Running && vmi.is_some_and(|vmi| ConditionType::Ready.holds(&vmi.status));
    let mut after = before.clone();
    if !after.is_object() {
        after = json!({});
    }
    after["phase"] = json!(match phase {
        Phase::Pending | Phase::Scheduling => "Pending",
        Phase::Scheduled | Phase::Running => "Running",
        Phase::Succeeded => "Succeeded",
        Phase::Failed => "Failed",
    });
    if after.get("startTime").is_none_or(Value::is_null) {
        after["startTime"] = json!(now);
    }
    let runs = matches!(phase, Phase::Scheduled | Phase::Running);
    let interface = vmi.and_then(|vmi| vmi.status.interfaces.first());
    if let Some(interface) = interface.filter(|interface| runs && !interface.ip_address.is_empty()) {
        after["podIP"] = json!(interface.ip_address);
        let all = interface.ip_addresses.iter().map(|address| json!({"ip": address}));
        after["podIPs"] = all.collect();
    }
    let container = json!({
        "name": COMPUTE,
        "image": image,
        "imageID": "",
        "restartCount": 0,
        "ready": is_ready,
        "started": runs,
        "state": state(phase, vmi, &before["containerStatuses"][0]["state"], &now),
    });
    after["containerStatuses"] = json!([container]);
    let ended = phase.is_final().then_some("PodCompleted");
    for (kind, holds, why) in [
        ("Initialized", true, None),
        ("Ready", is_ready, Some(ended.unwrap_or("ContainersNotReady"))),
        ("ContainersReady", is_ready, Some(ended.unwrap_or("ContainersNotReady"))),
    ] {
        put(&mut after, kind, holds, why, &now);
    }
    after
}

/// The state of the container.
fn state(phase: Phase, vmi: Option<&VirtualMachineInstance>, before: &Value, now: &str) -> Value {
    let entered = |phase: Phase| {
        let mut noted = vmi?.status.phase_transition_timestamps.iter();
        noted.find(|entry| entry.phase == phase.as_str())?.phase_transition_timestamp.clone()
    };
    let started = || entered(Phase::Scheduled).or_else(|| entered(Phase::Running));
    let explained = vmi.and_then(|vmi| failure(&vmi.status));
    match phase {
        Phase::Pending | Phase::Scheduling => match explained {
            Some(why) => json!({"waiting": {"reason": why.reason, "message": why.message}}),
            None => json!({"waiting": {"reason": "ContainerCreating"}}),
        },
        Phase::Scheduled | Phase::Running => {
            json!({"running": {"startedAt": started().unwrap_or_else(|| now.to_owned())}})
        }
        Phase::Succeeded | Phase::Failed if before.get("terminated").is_some() => before.clone(),
        Phase::Succeeded | Phase::Failed => {
            let failed = phase == Phase::Failed;
            let mut terminated = json!({
                "exitCode": i32::from(failed),
                "reason": if failed { "Error" } else { "Completed" },
                "finishedAt": entered(phase).unwrap_or_else(|| now.to_owned()),
            });
            if let Some(started) = started() {
                terminated["startedAt"] = json!(started);
            }
            if let Some(why) = explained {
                terminated["message"] = json!(format!("{}: {}", why.reason, why.message));
            }
            json!({ "terminated": terminated })
        }
    }
}

/// Sets a condition of a Pod. Its time changes when its status does.
fn put(status: &mut Value, kind: &str, holds: bool, why: Option<&str>, now: &str) {
    let text = if holds { "True" } else { "False" };
    let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let position = conditions.iter().position(|one| one["type"] == kind);
    let since = position.and_then(|position| conditions.get(position)).filter(|one| one["status"] == text);
    let since = since.and_then(|one| one["lastTransitionTime"].as_str()).unwrap_or(now);
    let mut condition = json!({"type": kind, "status": text, "lastTransitionTime": since});
    if let Some(why) = why.filter(|_| !holds) {
        condition["reason"] = json!(why);
    }
    match position.and_then(|position| conditions.get_mut(position)) {
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
    status["conditions"] = json!(conditions);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vmi(phase: &str, ready: bool) -> VirtualMachineInstance {
        let status = if ready { "True" } else { "False" };
        let noted = json!([
            {"phase": "Scheduled", "phaseTransitionTimestamp": "2026-01-01T00:00:05Z"},
            {"phase": "Failed", "phaseTransitionTimestamp": "2026-01-01T00:00:09Z"},
        ]);
        let status = json!({"phase": phase, "conditions": [{"type": "Ready", "status": status}],
            "phaseTransitionTimestamps": noted, "interfaces": [{"ipAddress": "10.1.2.3", "ipAddresses": ["10.1.2.3", "fd00::3"]}]});
        serde_json::from_value(json!({ "status": status })).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_pod_goes_as_its_launcher() {
        let bound = json!({"conditions": [{"type": "PodScheduled", "status": "True"}]});
        let creating = next(&bound, "i", None, at(0));
        assert_eq!(
            (&creating["phase"], &creating["startTime"]),
            (&json!("Pending"), &json!("1970-01-01T00:00:00Z"))
        );
        let container = &creating["containerStatuses"][0];
        assert_eq!(container["state"], json!({"waiting": {"reason": "ContainerCreating"}}));
        assert_eq!(creating["conditions"][0]["type"], "PodScheduled", "what others wrote stays");

        let running = next(&creating, "i", Some(&vmi("Running", true)), at(7));
        assert_eq!((&running["phase"], &running["podIP"]), (&json!("Running"), &json!("10.1.2.3")));
        let container = &running["containerStatuses"][0];
        assert_eq!(container["state"], json!({"running": {"startedAt": "2026-01-01T00:00:05Z"}}));
        assert_eq!((&container["ready"], &container["image"]), (&json!(true), &json!("i")));
        let ready = &running["conditions"][2];
        let expected =
            json!({"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:07Z"});
        assert_eq!(ready, &expected);
        assert_eq!(next(&running, "i", Some(&vmi("Running", true)), at(9)), running, "nothing changed");

        let failed = next(&running, "i", Some(&vmi("Failed", false)), at(10));
        let ended = json!({"terminated": {"exitCode": 1, "reason": "Error", "startedAt": "2026-01-01T00:00:05Z",
            "finishedAt": "2026-01-01T00:00:09Z"}});
        assert_eq!((&failed["phase"], &failed["containerStatuses"][0]["state"]), (&json!("Failed"), &ended));
        assert_eq!(failed["conditions"][2]["reason"], "PodCompleted");
    }

    #[test]
    fn reasons_of_launchers_that_do_not_start_are_reported() {
        let mut waits = vmi("Scheduling", false);
        let why =
            json!({"type": "Synchronized", "status": "False", "reason": "ErrImagePull", "message": "m"});
        waits.status.conditions.push(serde_json::from_value(why).unwrap());
        let status = next(&Value::Null, "i", Some(&waits), at(0));
        let state = &status["containerStatuses"][0]["state"];
        assert_eq!(state, &json!({"waiting": {"reason": "ErrImagePull", "message": "m"}}));
        assert_eq!(status["conditions"][1]["reason"], "ContainersNotReady");
    }
}
