use vireo_proto::launcher::{Agent, AgentCommand, Hypervisor};

use super::*;
use crate::storage::Pull;

const THEN: &str = "2026-01-01T00:00:00Z";
static NO_BRIDGED: Bridged = Bridged::new();
static NO_MULTUS: BTreeSet<String> = BTreeSet::new();
const NOW: &str = "2026-01-01T00:01:00Z";

pub(super) fn facts(phase: Phase) -> Facts<'static> {
    Facts {
        phase,
        vm: None,
        on_single_host: None,
        state: None,
        readiness: None,
        credentials: None,
        attachments: None,
        addresses: Vec::new(),
        bridged: &NO_BRIDGED,
        multus: &NO_MULTUS,
        sync_error: None,
        manifest_changed: false,
        node: "node1",
        now: THEN,
    }
}

fn condition(status: &Status, kind: ConditionType) -> Option<&Condition> {
    kind.find(status)
}

#[test]
fn credentials_are_as_last_known() {
    let with = |before: &Status, credentials: Option<&Result<(), String>>| {
        next(before, &Facts { credentials, ..facts(Phase::Running) })
    };
    let before = with(&Status::default(), None);
    assert_eq!(
        condition(&before, ConditionType::AccessCredentialsSynchronized),
        None,
        "none are set by the agent"
    );
    let failed = with(&before, Some(&Err("Guest agent is offline".to_owned())));
    let has = |status: &Status| {
        let one = condition(status, ConditionType::AccessCredentialsSynchronized).unwrap();
        (one.status.clone(), one.message.clone())
    };
    assert_eq!(has(&failed), ("False".to_owned(), "Guest agent is offline".to_owned()));
    assert_eq!(has(&with(&failed, None)).0, "False", "another handler does not know yet");
    assert_eq!(has(&with(&failed, Some(&Ok(())))), ("True".to_owned(), String::new()));
}

#[test]
fn the_context_id_of_a_vsock_device_is_known_from_its_launcher_on() {
    let with = |before: &Status, vsock_cid| {
        let state = State { vsock_cid, ..State::default() };
        next(before, &Facts { state: Some(&state), ..facts(Phase::Running) })
    };
    assert_eq!(with(&Status::default(), 0).vsock_cid, None);
    let known = with(&Status::default(), 77);
    assert_eq!(known.vsock_cid, Some(77));
    assert_eq!(next(&known, &facts(Phase::Running)).vsock_cid, Some(77), "its launcher does not answer");
}

#[test]
fn a_phase_is_stamped_when_it_is_first_reached() {
    let first = next(&Status::default(), &facts(Phase::Pending));
    let second = next(&first, &Facts { now: NOW, ..facts(Phase::Pending) });
    assert_eq!(first, second, "nothing new is no change, so nothing is written");
    let third = next(&second, &Facts { now: NOW, ..facts(Phase::Running) });
    let stamps: Vec<_> = third
        .phase_transition_timestamps
        .iter()
        .map(|entry| (entry.phase.as_str(), entry.phase_transition_timestamp.as_deref().unwrap()))
        .collect();
    assert_eq!(stamps, [("Pending", THEN), ("Running", NOW)]);
}

#[test]
fn ready_follows_the_guest_and_its_time_follows_its_status() {
    let before = next(&Status::default(), &facts(Phase::Scheduled));
    let ready = condition(&before, ConditionType::Ready).unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "GuestNotRunning"));
    let running = next(&before, &Facts { now: NOW, ..facts(Phase::Running) });
    let ready = condition(&running, ConditionType::Ready).unwrap();
    assert_eq!((ready.status.as_str(), ready.last_transition_time.as_deref()), ("True", Some(NOW)));

    let paused = State { phase: state::Phase::Paused.into(), ..State::default() };
    let paused = next(&running, &Facts { state: Some(&paused), ..facts(Phase::Running) });
    assert_eq!(condition(&paused, ConditionType::Ready).unwrap().status, "False");
    assert_eq!(condition(&paused, ConditionType::Paused).unwrap().status, "True");
    assert_eq!(condition(&next(&paused, &facts(Phase::Running)), ConditionType::Paused), None);
}

#[test]
fn a_vm_without_a_bootable_device_has_a_condition() {
    let stuck = State { phase: state::Phase::Running.into(), no_boot_device: true, ..State::default() };
    let status = next(&Status::default(), &Facts { state: Some(&stuck), ..facts(Phase::Running) });
    assert_eq!(condition(&status, ConditionType::NoBootableDevice).unwrap().reason, "NoBootableDevice");
    let started = State { no_boot_device: false, ..stuck };
    let status = next(&status, &Facts { state: Some(&started), ..facts(Phase::Running) });
    assert_eq!(condition(&status, ConditionType::NoBootableDevice), None);
}

#[test]
fn trouble_is_shown_while_it_lasts() {
    let sync_error = SyncError { reason: "FailedStorage", message: "no such image".to_owned() };
    let bad = next(&Status::default(), &Facts { sync_error: Some(&sync_error), ..facts(Phase::Scheduling) });
    let shown = condition(&bad, ConditionType::Synchronized).unwrap();
    assert_eq!((shown.status.as_str(), shown.reason.as_str()), ("False", "FailedStorage"));
    assert_eq!(condition(&next(&bad, &facts(Phase::Scheduling)), ConditionType::Synchronized), None);
}

#[test]
fn what_has_no_effect_is_shown_unless_there_is_trouble() {
    let vm = vm(serde_json::json!({"cpu": {"maxSockets": 4}, "memory": {"maxGuest": "1Gi"}}));
    let shown = |facts: &Facts<'_>| {
        let status = next(&Status::default(), facts);
        condition(&status, ConditionType::Synchronized)
            .map(|shown| (shown.status.clone(), shown.reason.clone(), shown.message.clone()))
    };
    let (status, reason, message) = shown(&Facts { vm: Some(&vm), ..facts(Phase::Running) }).unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("True", "FieldsWithoutEffect"));
    assert_eq!(
        message,
        "spec.domain.cpu.maxSockets: has no effect: vCPUs cannot be hotplugged yet; \
         spec.domain.memory.maxGuest: has no effect: memory cannot be hotplugged yet"
    );
    let spec: VirtualMachineInstanceSpec = serde_json::from_value(serde_json::json!({
        "subdomain": "s", "domain": {"devices": {}}}))
    .unwrap();
    let alone = Facts { vm: Some(&vm), on_single_host: Some(&spec), ..facts(Phase::Running) };
    let of_single_host = "; spec.subdomain: has no effect: there is no DNS server of the cluster";
    assert_eq!(shown(&alone).unwrap().2, message + of_single_host);
    let sync_error = SyncError { reason: "FailedStorage", message: "no such image".to_owned() };
    let bad = Facts { vm: Some(&vm), sync_error: Some(&sync_error), ..facts(Phase::Scheduling) };
    assert_eq!(shown(&bad).unwrap().0, "False");
    assert_eq!(shown(&Facts { vm: Some(&probed()), ..facts(Phase::Running) }), None);
}

#[test]
fn an_agent_that_lacks_commands_is_a_condition() {
    let command = |name: &str, enabled| AgentCommand { name: name.to_owned(), enabled };
    let needed =
        ["info", "get-osinfo", "get-host-name", "get-timezone", "network-get-interfaces", "get-users"];
    let needed = needed.map(|name| command(&format!("guest-{name}"), true));
    let with = |last: AgentCommand| {
        let commands = needed.iter().cloned().chain([last]).collect();
        let state = State { agent: Some(Agent { commands, ..Agent::default() }), ..State::default() };
        let status = next(&Status::default(), &Facts { state: Some(&state), ..facts(Phase::Running) });
        condition(&status, ConditionType::AgentVersionNotSupported)
            .map(|one| (one.status.clone(), one.message.clone()))
    };
    assert_eq!(with(command("guest-get-fsinfo", true)), None);
    for lacking in [command("guest-get-fsinfo", false), command("guest-ping", true)] {
        assert_eq!(with(lacking), Some(("True".to_owned(), "guest-get-fsinfo".to_owned())));
    }
}

#[test]
fn the_hypervisor_is_remembered_after_the_launcher_is_gone() {
    let chosen = Hypervisor { kind: hypervisor::Kind::Qemu.into(), reason: "no KVM here".to_owned() };
    let state = State { phase: state::Phase::Running.into(), hypervisor: Some(chosen), ..State::default() };
    let running = next(&Status::default(), &Facts { state: Some(&state), ..facts(Phase::Running) });
    let gone = next(&running, &facts(Phase::Succeeded));
    let shown = condition(&gone, ConditionType::Hypervisor).unwrap();
    assert_eq!((shown.reason.as_str(), shown.message.as_str()), ("qemu", "no KVM here"));
}

/// A VMI with a readinessProbe.
fn probed() -> Vm {
    vm(serde_json::json!({}))
}

/// The same with more of a domain.
fn vm(domain: serde_json::Value) -> Vm {
    let mut vmi = serde_json::json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "one", "uid": "00000000-0000-4000-8000-000000000001"},
        "spec": {
            "domain": {"memory": {"guest": "64Mi"}, "devices": {"autoattachGraphicsDevice": false}},
            "readinessProbe": {"guestAgentPing": {}},
        },
    });
    for (field, value) in domain.as_object().unwrap() {
        let field = &mut vmi["spec"]["domain"][field];
        match (field.as_object_mut(), value.as_object()) {
            (Some(known), Some(more)) => known.extend(more.clone()),
            _ => *field = value.clone(),
        }
    }
    let vmi: vireo_api::v1::VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
    Vm::try_from(&vmi).unwrap_or_else(|report| panic!("{report}"))
}

#[test]
fn ready_follows_the_readiness_probe_and_what_was_known_holds_until_it_is_known_anew() {
    let vm = probed();
    let probe_status = |well, cause: &str| ProbeStatus { healthy: well, cause: cause.to_owned() };
    let (well, ill) = (probe_status(Some(true), ""), probe_status(Some(false), "no"));
    let (new, doubted) = (probe_status(None, ""), probe_status(None, "no"));
    let after = |before: &Status, readiness: Option<&ProbeStatus>, phase| {
        next(before, &Facts { vm: Some(&vm), readiness, ..facts(phase) })
    };
    let starting = after(&Status::default(), None, Phase::Scheduled);
    let begun = after(&starting, None, Phase::Running);
    let ready = after(&begun, Some(&well), Phase::Running);
    let unready = after(&ready, Some(&ill), Phase::Running);
    let not_yet = "the readinessProbe has not succeeded yet";
    let failed = "Readiness probe failed: no";
    let mut unhealthy = ready.clone();
    mark_unhealthy(&mut unhealthy, "no", THEN);
    for (before, readiness, status, message) in [
        (&starting, None, "False", not_yet),
        (&begun, Some(&new), "False", not_yet),
        (&begun, Some(&doubted), "False", failed),
        (&begun, Some(&well), "True", ""),
        (&ready, Some(&ill), "False", failed),
        (&unready, Some(&well), "True", ""),
        // Another handler has begun to ask.
        (&ready, None, "True", ""),
        (&ready, Some(&new), "True", ""),
        (&ready, Some(&doubted), "True", ""),
        (&unready, None, "False", failed),
        (&unready, Some(&new), "False", failed),
        // Its livenessProbe failed.
        (&unhealthy, Some(&well), "False", "Liveness probe failed: no"),
    ] {
        let now = after(before, readiness, Phase::Running);
        let now = condition(&now, ConditionType::Ready).unwrap();
        assert_eq!((now.status.as_str(), now.message.as_str()), (status, message), "{readiness:?}");
        assert_eq!(now.reason, if status == "True" { "" } else { "ContainersNotReady" });
    }
    let gone = after(&ready, None, Phase::Failed);
    assert_eq!(condition(&gone, ConditionType::Ready).unwrap().reason, "GuestNotRunning");
}

#[test]
fn volumes_tell_how_far_their_images_are() {
    let mut vmi = serde_json::json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "one", "uid": "00000000-0000-4000-8000-000000000001"},
        "spec": {
            "domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": [
                {"name": "system", "disk": {}}, {"name": "more", "disk": {}}]}},
            "volumes": [{"name": "system", "containerDisk": {"image": "registry.example/a:1"}},
                {"name": "more", "containerDisk": {"image": "registry.example/b:1"}}],
        },
    });
    vmi["spec"]["domain"]["devices"]["autoattachGraphicsDevice"] = false.into();
    let vmi: vireo_api::v1::VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
    let vm = Vm::try_from(&vmi).unwrap_or_else(|report| panic!("{report}"));
    let pull = |image: &str, done, total| Pull { image: image.to_owned(), done, total };
    let mut shown = volume::statuses(&[], &vm, &facts(Phase::Scheduling));
    let mut note = |pulls: &[Pull]| {
        let has_changed = note_pulls(&mut shown, &vm, pulls);
        let messages: Vec<String> = shown.iter().map(|status| status.message.clone()).collect();
        (has_changed, messages)
    };
    let none = String::new();
    assert_eq!(note(&[]), (false, vec![none.clone(), none.clone()]));
    // Another VMI's.
    assert_eq!(note(&[pull("registry.example/c:1", 1, 2)]), (false, vec![none.clone(), none.clone()]));
    let begun = "registry.example/b:1 is being pulled".to_owned();
    assert_eq!(note(&[pull("registry.example/b:1", 0, 0)]), (true, vec![none.clone(), begun]));
    let some = "registry.example/b:1 is being pulled: 2 of 300 MiB are here".to_owned();
    let now = [pull("registry.example/b:1", 2 << 20, 300 << 20)];
    assert_eq!(note(&now), (true, vec![none.clone(), some.clone()]));
    assert_eq!(note(&now), (false, vec![none, some]), "nothing is written anew");
    assert_eq!((shown[1].phase.as_str(), shown[1].reason.as_str()), ("Pending", "Pulling"));
    let next = volume::statuses(&shown, &vm, &facts(Phase::Scheduled));
    assert!(next.iter().all(|status| status.message.is_empty() && status.phase.is_empty()), "{next:?}");
}
