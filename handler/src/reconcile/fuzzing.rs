//! Entry point for what a launcher answers: its messages become the status of the VMI, its metrics, and what users are
//! shown.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use prost::Message as _;
use serde_json::json;
use vireo_api::spec::Vm;
use vireo_api::v1::{InterfaceStatus, VirtualMachineInstance, VirtualMachineInstanceStatus as Status};
use vireo_proto::launcher::outcome::Kind;
use vireo_proto::launcher::{
    Agent, AskAgentResponse, DiskFailure, Fault, GuestDisk, GuestFilesystem, GuestInterface, GuestLoad,
    GuestOs, GuestUser, Hypervisor, InterfaceStatistics, MemoryDump, Outcome, PluggedVolume, State,
    Statistics, VcpuStatistics, state,
};

use super::observe::observe_launcher;
use super::status::{self, Facts, Phase};
use crate::launcher::link::LauncherStatus;
use crate::metrics;
use crate::network::bridge::Bridged;

/// The address of the interface.
const MAC: &str = "02:00:00:00:00:01";
/// What a status may have beside what the message has.
const MORE: usize = 64 << 10;

/// An answer, of the kind that the first byte says: the state, the statistics, what the guest agent says, or a line of
/// the importer.
pub fn launcher_answers(script: &[u8]) {
    let Some((kind, message)) = script.split_first() else { return };
    match kind % 4 {
        0 => {
            if let Ok(state) = State::decode(message) {
                of_state(&state, message.len());
            }
        }
        1 => {
            if let Ok(statistics) = Statistics::decode(message) {
                metrics::fuzz(statistics, AskAgentResponse::default());
            }
        }
        2 => {
            if let Ok(answer) = AskAgentResponse::decode(message) {
                metrics::fuzz(Statistics::default(), answer.clone());
                crate::http::fuzz(answer);
            }
        }
        _ => {
            if let Ok(answer) = serde_json::from_slice::<vireo_importer::Answer>(message) {
                let _ = format!("{answer:?}");
            }
        }
    }
}

fn of_state(state: &State, bytes: usize) {
    let (bridged, multus) = (Bridged::new(), BTreeSet::from(["pod16477688c0e".to_owned()]));
    let nic = InterfaceStatus {
        mac: MAC.to_owned(),
        info_source: "domain".to_owned(),
        ..InterfaceStatus::default()
    };
    let mut before = Status { interfaces: vec![nic], ..Status::default() };
    let status = LauncherStatus::Connected(Box::new(state.clone()));
    let _ = observe_launcher(&status);
    let phases = [Phase::Scheduled, Phase::Running].map(|phase| [(phase, None), (phase, Some(&*VM))]);
    for (phase, vm) in phases.into_iter().flatten() {
        let facts = Facts {
            phase,
            vm,
            on_single_host: None,
            state: Some(state),
            readiness: None,
            credentials: None,
            attachments: None,
            addresses: Vec::new(),
            bridged: &bridged,
            multus: &multus,
            sync_error: None,
            manifest_changed: false,
            node: "node1",
            now: "2026-01-01T00:00:00Z",
        };
        before = status::next(&before, &facts);
        for condition in &before.conditions {
            let _ = status::io_errors(&condition.message).count();
        }
        assert_eq!(before, status::next(&before, &facts), "the same facts give the same status");
    }
    if let Some(outcome) = &state.outcome {
        for deleting in [false, true] {
            let end = status::end(outcome, 30, deleting);
            status::record_end(&mut before, &end, "2026-01-01T00:00:00Z");
        }
    }
    // Letters of JSON may take six bytes.
    let written = serde_json::to_vec(&before).expect("a status").len();
    assert!(written <= bytes * 6 + MORE, "{bytes} bytes of a launcher became {written} of a status");
}

/// With what an answer has: a volume that is plugged, one that memory is dumped to, and an interface.
static VM: LazyLock<Vm> = LazyLock::new(|| {
    let vmi: VirtualMachineInstance = serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "x", "namespace": "n", "uid": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"},
        "spec": {
            "domain": {"memory": {"guest": "64Mi"}, "devices": {
                "disks": [{"name": "data", "disk": {"bus": "scsi"}}],
                "interfaces": [{"name": "default", "masquerade": {}, "macAddress": MAC}],
            }},
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data", "hotpluggable": true}},
                {"name": "dump", "memoryDump": {"claimName": "dumps", "hotpluggable": true}},
            ],
        },
    }))
    .expect("a VMI");
    Vm::try_from(&vmi).expect("a valid VMI")
});

/// Answers of each kind.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let text = str::to_owned;
    let nic = GuestInterface {
        name: text("eth0"),
        mac: text(MAC),
        addresses: vec![text("10.0.2.2"), text("fe80::1")],
    };
    let agent = Agent {
        version: text("9"),
        os: Some(GuestOs { id: text("debian"), ..GuestOs::default() }),
        interfaces: vec![nic.clone(), GuestInterface { mac: text("02:00:00:00:00:02"), ..nic }],
        freeze_status: text("frozen"),
        ..Agent::default()
    };
    let state = State {
        phase: state::Phase::Paused.into(),
        hypervisor: Some(Hypervisor::default()),
        outcome: Some(Outcome {
            kind: Kind::Failed.into(),
            fault: Some(Fault { field: text("spec.domain"), detail: text("why"), ..Fault::default() }),
            panic: None,
        }),
        agent: Some(agent.clone()),
        volumes: vec![PluggedVolume { name: text("data"), ..PluggedVolume::default() }],
        disk_failures: vec![DiskFailure { disk: text("root"), no_space: true, message: text("full") }],
        vsock_cid: 7,
        memory_dump: Some(MemoryDump { volume: text("dump"), ended: 1, ..MemoryDump::default() }),
        ..State::default()
    };
    let statistics = Statistics {
        vcpus: vec![VcpuStatistics { nanoseconds: Some(1), ..VcpuStatistics::default() }],
        interfaces: vec![InterfaceStatistics { name: text("eth\"0\n"), ..InterfaceStatistics::default() }],
        ..Statistics::default()
    };
    let answer = AskAgentResponse {
        agent: Some(agent),
        users: vec![GuestUser { name: text("root"), login_time: 1.0, ..GuestUser::default() }],
        filesystems: vec![GuestFilesystem {
            name: text("vda1"),
            mount_point: text("/"),
            disks: vec![GuestDisk::default()],
            ..GuestFilesystem::default()
        }],
        load: Some(GuestLoad { one: 1.0, five: f64::NAN, fifteen: 0.0 }),
        ..AskAgentResponse::default()
    };
    vec![
        [&[0], state.encode_to_vec().as_slice()].concat(),
        [&[1], statistics.encode_to_vec().as_slice()].concat(),
        [&[2], answer.encode_to_vec().as_slice()].concat(),
        [&[3], &br#"{"Failed": {"kind": "Invalid", "message": "no"}}"#[..]].concat(),
        [&[3], &br#"{"Progress": {"done": 1, "total": 2}}"#[..]].concat(),
    ]
}
