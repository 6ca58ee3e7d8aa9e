//! Launchers that hang, each in its way, and handlers that find them so. Time is paused: it goes on only when nothing
//! else can.

use std::path::Path;

use serde_json::json;
use tokio::sync::watch::Sender;
use vireo_proto::launcher::{Links, PluggedVolume, State};

use super::*;
use crate::launcher::fake::FakeLauncher;
use crate::launcher::process::{Start, spawn};
use crate::manifests::desired::Entry;
use crate::reconcile::status::Phase;
use crate::state::VmiDir;

/// A VMI whose launcher is a process that knows nothing.
struct Scene {
    _dir: tempfile::TempDir,
    node: Arc<Node>,
    record: Record,
    process: process::Process,
}

impl Scene {
    /// In this phase. Its launcher has a child.
    fn new(phase: Phase, grace: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::of_a_test(dir.path());
        let uid = uuid::Uuid::new_v4();
        let vmi = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "web", "namespace": "default", "uid": uid.to_string()},
            "spec": {
                "terminationGracePeriodSeconds": grace,
                "domain": {"memory": {"guest": "64Mi"}, "devices": {"autoattachGraphicsDevice": false, "autoattachPodInterface": false}},
            },
            "status": {"phase": phase.as_str()},
        }));
        let record = Record {
            uid,
            dir: node.state.vmi_dir(uid),
            vmi: vmi.unwrap(),
            plan: None,
            bridged: crate::network::bridge::Bridged::new(),
        };
        record.dir.create().unwrap();
        record.write().unwrap();
        let process = launcher(&record.dir);
        Self { _dir: dir, node, record, process }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.record.dir.launcher_socket()
    }

    /// Runs the reconciler of this record until the name is free.
    async fn reconcile(&self, desired: Desired) -> Sender<Desired> {
        let record = Record::load(self.record.uid, self.record.dir.clone()).unwrap().unwrap();
        let reconciler = VmiReconciler::adopt(self.node.clone(), record);
        let (sender, wanted) = watch::channel(desired);
        let done = tokio::time::timeout(Duration::from_secs(3600), reconciler.run(wanted));
        assert!(done.await.is_ok(), "it is waited for without end");
        sender
    }

    async fn is_gone(&self) {
        self.process.gone().await;
        assert!(!self.record.dir.path().exists(), "its directory stays");
        assert!(self.node.vmis().is_empty());
    }
}

fn launcher(dir: &VmiDir) -> process::Process {
    let (log, stamp) = (dir.launcher_log(), dir.launcher_stamp());
    spawn(&Start {
        program: Path::new("/bin/sh"),
        arguments: vec!["-c".into(), "sleep 600 & exec sleep 600".into()],
        log: &log,
        stamp: &stamp,
        namespace: None,
        cgroups: &[],
        oom_score_adj: None,
        confinement: None,
    })
    .unwrap();
    let Found::Running(process) = process::find(&stamp).unwrap() else { panic!("it was just started") };
    process
}

fn running() -> Sender<State> {
    watch::Sender::new(State { phase: state::Phase::Running.into(), ..State::default() })
}

/// Like a stopped process: connections are queued and never accepted.
#[tokio::test(start_paused = true)]
async fn a_launcher_that_never_answers_is_killed() {
    for grace in [0, 30] {
        let scene = Scene::new(Phase::Running, grace);
        let _listener = tokio::net::UnixListener::bind(scene.socket()).unwrap();
        let begin = Instant::now();
        scene.reconcile(Desired::Gone(grace)).await;
        scene.is_gone().await;
        let time = begin.elapsed().as_secs();
        assert!(time >= grace && time <= grace + 60, "with a grace period of {grace} s after {time} s");
    }
}

/// A launcher that reports a running guest, accepts every request, and does nothing.
#[tokio::test(start_paused = true)]
async fn a_launcher_that_answers_and_does_nothing_is_killed() {
    for shutdown_fault in [None, Some(vireo_proto::launcher::Fault::default())] {
        let scene = Scene::new(Phase::Running, 30);
        let state = running();
        let fake = FakeLauncher { shutdown_fault, ..FakeLauncher::with_state(state.subscribe()) };
        let server = fake.serve(&scene.socket());
        scene.reconcile(Desired::Gone(30)).await;
        scene.is_gone().await;
        server.abort();
    }
}

/// It never had a guest, and was not asked to end.
#[tokio::test(start_paused = true)]
async fn a_launcher_that_never_starts_its_guest_is_killed_and_that_is_reported() {
    for phase in [None, Some(state::Phase::Waiting), Some(state::Phase::Starting)] {
        let scene = Scene::new(Phase::Scheduled, 30);
        let state = watch::Sender::new(State { phase: phase.unwrap_or_default().into(), ..State::default() });
        let server = phase.map(|_| FakeLauncher::with_state(state.subscribe()).serve(&scene.socket()));
        let record = Record::load(scene.record.uid, scene.record.dir.clone()).unwrap().unwrap();
        let (sender, wanted) = watch::channel(Desired::Entry(Entry::Held));
        let task = tokio::spawn(VmiReconciler::adopt(scene.node.clone(), record).run(wanted));
        let mut updates = scene.node.subscribe();
        let ended = async {
            loop {
                let vmi = scene.node.vmi(&scene.record.key());
                if let Some(vmi) = vmi.filter(|vmi| vmi.status.phase == Phase::Failed.as_str()) {
                    return vmi;
                }
                updates.changed().await.unwrap();
            }
        };
        let vmi = tokio::time::timeout(Duration::from_secs(3600), ended).await.unwrap();
        assert_eq!(vmi.status.reason, "LaunchTimedOut", "{phase:?}: {:?}", vmi.status.conditions);
        scene.process.gone().await;
        sender.send(Desired::Nothing).unwrap();
        task.await.unwrap();
        server.inspect(tokio::task::JoinHandle::abort);
    }
}

/// A guest that has run and is wanted is waited for as long as it takes; its deletion finds it all the same.
#[tokio::test(start_paused = true)]
async fn a_launcher_that_is_silent_keeps_its_guest_until_that_is_unwanted() {
    let scene = Scene::new(Phase::Running, 30);
    let record = Record::load(scene.record.uid, scene.record.dir.clone()).unwrap().unwrap();
    let (sender, wanted) = watch::channel(Desired::Entry(Entry::Held));
    let task = tokio::spawn(VmiReconciler::adopt(scene.node.clone(), record).run(wanted));
    let day = tokio::time::timeout(Duration::from_secs(86400), scene.process.gone());
    assert!(day.await.is_err(), "it was killed");
    sender.send(Desired::Gone(600)).unwrap();
    let patient = tokio::time::timeout(Duration::from_secs(60), scene.process.gone());
    assert!(patient.await.is_err(), "it has ten minutes");
    sender.send(Desired::Gone(0)).unwrap();
    let begin = Instant::now();
    task.await.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(60), "after {:?}", begin.elapsed());
    scene.is_gone().await;
}

/// Its end was recorded, the handler was restarted, and the launcher does not go.
#[tokio::test(start_paused = true)]
async fn a_launcher_that_does_not_exit_is_killed() {
    let scene = Scene::new(Phase::Succeeded, 30);
    scene.reconcile(Desired::Nothing).await;
    scene.is_gone().await;
}

/// A link cannot be switched: the volumes are changed all the same, and the first error is reported.
#[tokio::test(start_paused = true)]
async fn volumes_do_not_wait_for_links_that_cannot_be_switched() {
    let mut scene = Scene::new(Phase::Running, 30);
    scene.record.vmi.spec.domain.devices.interfaces =
        serde_json::from_value(json!([{"name": "default", "masquerade": {}}])).unwrap();
    scene.record.vmi.spec.networks = serde_json::from_value(json!([{"name": "default", "pod": {}}])).unwrap();
    scene.record.write().unwrap();
    let state = running();
    state.send_modify(|state| {
        state.links = Some(Links { down: vec!["default".to_owned()], up: Vec::new() });
        state.volumes = vec![PluggedVolume { name: "data".to_owned(), ..PluggedVolume::default() }];
    });
    let fake = FakeLauncher::with_state(state.subscribe());
    let mut detaches = fake.detaches.subscribe();
    let server = fake.serve(&scene.socket());
    let record = Record::load(scene.record.uid, scene.record.dir.clone()).unwrap().unwrap();
    let (sender, wanted) = watch::channel(Desired::Entry(Entry::Held));
    let task = tokio::spawn(VmiReconciler::adopt(scene.node.clone(), record).run(wanted));
    let mut updates = scene.node.subscribe();
    let synchronized = async {
        detaches.wait_for(|name| name == "data").await.unwrap();
        loop {
            let conditions = scene.node.vmi(&scene.record.key()).map(|vmi| vmi.status.conditions.clone());
            let failed = conditions.into_iter().flatten().find(|one| one.r#type == "Synchronized");
            if let Some(failed) = failed {
                return failed.reason;
            }
            updates.changed().await.unwrap();
        }
    };
    let reason = tokio::time::timeout(Duration::from_secs(3600), synchronized).await.unwrap();
    assert_eq!(reason, hotplug::LINK_FAILED);
    sender.send(Desired::Gone(0)).unwrap();
    task.await.unwrap();
    scene.is_gone().await;
    server.abort();
}
