use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::watch::Receiver;
use vireo_proto::files::FILES_SOCKET;
use vireo_proto::launcher::{self as wire, LaunchRequest, outcome::Kind as OutcomeKind};

use super::start::ABANDON_START;
use super::*;
use crate::agent::{AgentPort, FROZEN};
use crate::console::Port;
use crate::host;
use crate::hypervisor::{
    End, Event, GuestEnd, HotplugAction, KvmState, NicChange, Starting, VmCommand, guest,
};
use crate::launch::Launch;

/// A node whose VMs are run by the test.
#[derive(Clone, Default)]
struct Stagehand {
    up: Slot<oneshot::Sender<Result<(), Fault>>>,
    vm: Slot<GuestEnd>,
    agent: Slot<AgentPort>,
    files: PassedFiles,
}

type Slot<T> = Arc<Mutex<Option<T>>>;

impl Node for Stagehand {
    fn probe(&self) -> Probe {
        Probe { kvm: KvmState::Usable, qemu: Ok(()) }
    }

    fn firmware(&self) -> &Paths {
        const NONE: Paths = Paths { bios: None, efi_code: None, efi_variables: None };
        &NONE
    }

    fn files(&self) -> &PassedFiles {
        &self.files
    }

    fn hypervisor(&self, _: Kind) -> Box<dyn Hypervisor> {
        Box::new(self.clone())
    }
}

impl Hypervisor for Stagehand {
    fn start(&self, _: Arc<Launch>, host: host::HostResources, _port: Port) -> Starting {
        let (owner, end) = guest();
        let (up, go) = oneshot::channel();
        *self.up.lock().unwrap() = Some(up);
        *self.vm.lock().unwrap() = Some(end);
        *self.agent.lock().unwrap() = host.agent;
        Box::pin(async move { go.await.unwrap().map(|()| owner) })
    }
}

/// A session under test, in paused time: sleeping costs nothing and happens only when nothing else can.
struct Scene {
    node: Stagehand,
    handle: Handle,
    seen: Receiver<SessionStatus>,
    session: tokio::task::JoinHandle<()>,
}

fn scene() -> Scene {
    scene_on(Stagehand::default())
}

fn scene_on(node: Stagehand) -> Scene {
    let (session, handle) = Session::new(Box::new(node.clone()));
    Scene { node, seen: handle.status(), handle, session: tokio::spawn(session.run()) }
}

fn request() -> LaunchRequest {
    LaunchRequest {
        vmi: Some(wire::Identity { namespace: "ns".into(), name: "n".into(), uid: "u".into() }),
        memory_bytes: 1 << 28,
        firmware: Some(wire::Firmware { boot: Some(wire::firmware::Boot::Bios(wire::Bios::default())) }),
        runtime_dir: "/nonexistent".into(),
        ..Default::default()
    }
}

impl Scene {
    async fn begin_launch(&self) -> tokio::task::JoinHandle<(State, Option<Fault>)> {
        let handle = self.handle.clone();
        let launch = tokio::spawn(async move { handle.launch(request()).await });
        self.reach(Phase::Starting).await;
        launch
    }

    async fn run(&self) -> GuestEnd {
        let launch = self.begin_launch().await;
        self.come_up(Ok(()));
        let (state, fault) = launch.await.unwrap();
        assert_eq!((state.phase(), fault), (Phase::Running, None));
        self.node.vm.lock().unwrap().take().unwrap()
    }

    fn come_up(&self, result: Result<(), Fault>) {
        self.node.up.lock().unwrap().take().unwrap().send(result).unwrap();
    }

    async fn reach(&self, phase: Phase) -> State {
        let mut seen = self.seen.clone();
        let status = seen.wait_for(|status| status.state.phase() == phase).await.unwrap();
        status.state.clone()
    }

    async fn outcome(&self) -> OutcomeKind {
        self.reach(Phase::Exited).await.outcome.unwrap().kind()
    }

    async fn dismissed(self) {
        assert_eq!(self.handle.dismiss().await, None);
        self.session.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_powers_off_is_seen_and_dismissed() {
    let scene = scene();
    let vm = scene.run().await;
    assert_eq!(scene.handle.dismiss().await.unwrap().code(), Code::Conflict);
    let (state, fault) = scene.handle.launch(request()).await;
    assert_eq!((state.phase(), fault.unwrap().code()), (Phase::Running, Code::Conflict));

    vm.events.send(Event::Rebooted).unwrap();
    vm.events.send(Event::Paused).unwrap();
    assert_eq!(scene.reach(Phase::Paused).await.reboots, 1);
    vm.events.send(Event::Resumed).unwrap();
    scene.reach(Phase::Running).await;
    vm.events.send(Event::Ended(End::PoweredOff)).unwrap();
    assert_eq!(scene.outcome().await, OutcomeKind::PoweredOff);
    assert_eq!(scene.handle.kill().await, None);
    scene.dismissed().await;
}

/// Paused because a disk is full: it gets the reason, an unpause is answered by what comes of it, and a stop is a stop.
#[tokio::test(start_paused = true)]
async fn a_guest_whose_disk_is_full_is_paused_and_can_be_stopped() {
    let scene = scene();
    let mut vm = scene.run().await;
    let full = || vec![wire::DiskFailure { disk: "data".into(), no_space: true, message: "full".into() }];
    vm.events.send(Event::DisksFailed(full())).unwrap();
    let state = scene.reach(Phase::Paused).await;
    assert_eq!((state.disk_failures, state.pause_requested), (full(), false));

    let lifecycle = |command| {
        let handle = scene.handle.clone();
        tokio::spawn(async move { handle.lifecycle(command).await })
    };
    let unpause = lifecycle(VmCommand::Resume);
    assert_eq!(vm.commands.recv().await, Some(VmCommand::Resume));
    vm.events.send(Event::Resumed).unwrap();
    vm.events.send(Event::DisksFailed(full())).unwrap();
    let fault = unpause.await.unwrap().unwrap();
    assert_eq!(fault.code(), Code::Conflict);
    assert_eq!(fault.detail, "VMI stays paused: not enough space on volume data (full)");

    let pause = lifecycle(VmCommand::Pause);
    assert_eq!(vm.commands.recv().await, Some(VmCommand::Pause));
    vm.events.send(Event::Paused).unwrap();
    assert_eq!(pause.await.unwrap(), None);
    vm.events.send(Event::DisksFailed(Vec::new())).unwrap();
    let mut seen = scene.seen.clone();
    let state = seen.wait_for(|status| status.state.disk_failures.is_empty()).await.unwrap().state.clone();
    assert_eq!((state.phase(), state.pause_requested), (Phase::Paused, true), "it was requested");
    let unpause = lifecycle(VmCommand::Resume);
    assert_eq!(vm.commands.recv().await, Some(VmCommand::Resume));
    vm.events.send(Event::Resumed).unwrap();
    assert_eq!(unpause.await.unwrap(), None);

    vm.events.send(Event::DisksFailed(full())).unwrap();
    scene.reach(Phase::Paused).await;
    assert_eq!(scene.handle.shutdown(Duration::from_secs(5)).await, None);
    let begin = Instant::now();
    while vm.commands.recv().await != Some(VmCommand::Kill) {}
    assert_eq!(begin.elapsed().as_secs(), 5);
    vm.events.send(Event::Ended(End::Killed)).unwrap();
    assert_eq!(scene.outcome().await, OutcomeKind::GraceExpired);
}

#[tokio::test(start_paused = true)]
async fn the_button_is_pressed_until_the_guest_reacts() {
    let scene = scene();
    let mut vm = scene.run().await;
    assert_eq!(scene.handle.shutdown(Duration::from_secs(60)).await, None);
    for _ in 0..3 {
        assert_eq!(vm.commands.recv().await, Some(VmCommand::PowerButton));
    }
    vm.events.send(Event::Ended(End::PoweredOff)).unwrap();
    assert_eq!(scene.outcome().await, OutcomeKind::ShutDown);
}

/// The grace periods that were asked for, and when the guest dies.
#[tokio::test(start_paused = true)]
async fn the_shortest_grace_wins() {
    for (graces, dies_after) in [(vec![30], 30), (vec![30, 60], 30), (vec![30, 7], 7), (vec![0], 0)] {
        let scene = scene();
        let mut vm = scene.run().await;
        let begin = Instant::now();
        for &grace in &graces {
            assert_eq!(scene.handle.shutdown(Duration::from_secs(grace)).await, None);
        }
        while vm.commands.recv().await != Some(VmCommand::Kill) {}
        assert_eq!(begin.elapsed().as_secs(), dies_after, "{graces:?}");
        vm.events.send(Event::Ended(End::Killed)).unwrap();
        assert_eq!(scene.outcome().await, OutcomeKind::GraceExpired, "{graces:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kill_waits_for_nothing() {
    let scene = scene();
    let mut vm = scene.run().await;
    scene.handle.shutdown(Duration::from_secs(3600)).await;
    assert_eq!(scene.handle.kill().await, None);
    while vm.commands.recv().await != Some(VmCommand::Kill) {}
    vm.events.send(Event::Ended(End::Killed)).unwrap();
    assert_eq!(scene.outcome().await, OutcomeKind::Killed);
}

#[tokio::test(start_paused = true)]
async fn what_arrives_while_starting_is_not_lost() {
    let scene = scene();
    let launch = scene.begin_launch().await;
    assert_eq!(scene.handle.shutdown(Duration::from_secs(5)).await, None);
    scene.come_up(Ok(()));
    assert_eq!(launch.await.unwrap().1, None);
    let mut vm = scene.node.vm.lock().unwrap().take().unwrap();
    assert_eq!(vm.commands.recv().await, Some(VmCommand::PowerButton));

    let scene = self::scene();
    let launch = scene.begin_launch().await;
    assert_eq!(scene.handle.kill().await, None);
    assert_eq!(launch.await.unwrap().1.unwrap().code(), Code::Conflict);
    assert_eq!(scene.outcome().await, OutcomeKind::NotStarted);
}

/// A VM that hangs on its way up, as a QEMU that does not answer does.
#[tokio::test(start_paused = true)]
async fn a_start_ends_with_the_grace_period() {
    for grace in [0, 30] {
        let scene = scene();
        let launch = scene.begin_launch().await;
        let begin = Instant::now();
        assert_eq!(scene.handle.shutdown(Duration::from_secs(grace)).await, None);
        assert_eq!(scene.outcome().await, OutcomeKind::NotStarted);
        assert_eq!(begin.elapsed(), Duration::from_secs(grace) + ABANDON_START);
        assert_eq!(launch.await.unwrap().1.unwrap().code(), Code::Conflict);
        scene.dismissed().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_does_not_start_has_a_reason() {
    let scene = scene();
    let launch = scene.begin_launch().await;
    scene.come_up(Err(fault(Code::Hypervisor, "no")));
    let (state, fault) = launch.await.unwrap();
    assert_eq!(state.phase(), Phase::Exited);
    assert_eq!(fault, state.outcome.unwrap().fault);
    assert_eq!(scene.outcome().await, OutcomeKind::NotStarted);
    scene.dismissed().await;

    let scene = self::scene();
    let (_, fault) = scene.handle.launch(LaunchRequest::default()).await;
    assert_eq!(fault.unwrap().code(), Code::Invalid);
    assert_eq!(scene.outcome().await, OutcomeKind::NotStarted);
}

#[tokio::test(start_paused = true)]
async fn every_wait_is_bounded() {
    let begin = Instant::now();
    scene().session.await.unwrap();
    assert_eq!(begin.elapsed(), IDLE_TIMEOUT);

    let scene = scene();
    let vm = scene.run().await;
    vm.events.send(Event::Ended(End::Crashed("panic".into()))).unwrap();
    assert_eq!(scene.outcome().await, OutcomeKind::Crashed);
    scene.session.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_launcher_that_must_leave_takes_its_guest_along_gracefully() {
    let scene = scene();
    let mut vm = scene.run().await;
    let begin = Instant::now();
    scene.handle.exit().await;
    assert_eq!(vm.commands.recv().await, Some(VmCommand::PowerButton));
    while vm.commands.recv().await != Some(VmCommand::Kill) {}
    assert_eq!(begin.elapsed().as_secs(), 30);
    vm.events.send(Event::Ended(End::Killed)).unwrap();
    scene.session.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_launcher_that_must_leave_lets_its_watcher_record_the_outcome() {
    let scene = scene();
    let mut vm = scene.run().await;
    let watcher = scene.handle.watch();
    scene.handle.exit().await;
    assert_eq!(vm.commands.recv().await, Some(VmCommand::PowerButton));
    vm.events.send(Event::Ended(End::PoweredOff)).unwrap();
    assert_eq!(scene.outcome().await, OutcomeKind::ShutDown);
    scene.dismissed().await;
    drop(watcher);

    let scene = self::scene();
    let mut vm = scene.run().await;
    let _slow = scene.handle.watch();
    scene.handle.exit().await;
    assert_eq!(vm.commands.recv().await, Some(VmCommand::PowerButton));
    vm.events.send(Event::Ended(End::PoweredOff)).unwrap();
    scene.outcome().await;
    let begin = Instant::now();
    scene.session.await.unwrap();
    assert_eq!(begin.elapsed(), OUTCOME_TIMEOUT);
}

/// In real time, as the agent's port is a socket.
#[tokio::test]
async fn a_guest_that_is_frozen_is_thawed_before_its_shutdown() {
    let scene = scene();
    let mut vm = scene.run().await;
    let AgentPort { stream, open } = scene.node.agent.lock().unwrap().take().unwrap();
    stream.set_nonblocking(true).unwrap();
    let agent = tokio::spawn(answer_as_frozen(UnixStream::from_std(stream).unwrap()));
    open.send_replace(true);
    let mut seen = scene.seen.clone();
    let is_frozen = |status: &SessionStatus| {
        status.state.agent.as_ref().is_some_and(|agent| agent.freeze_status == FROZEN)
    };
    seen.wait_for(is_frozen).await.unwrap();
    assert_eq!(scene.handle.shutdown(Duration::from_secs(60)).await, None);
    assert_eq!(vm.commands.recv().await, Some(VmCommand::PowerButton));
    assert!(agent.is_finished(), "the button is pressed once the agent has thawed");
    vm.events.send(Event::Ended(End::PoweredOff)).unwrap();
    assert_eq!(scene.outcome().await, OutcomeKind::ShutDown);
}

/// An agent whose file systems are frozen, until it thaws them.
async fn answer_as_frozen(port: UnixStream) {
    let mut port = BufReader::new(port);
    let mut line = Vec::new();
    while port.read_until(b'\n', &mut line).await.unwrap() > 0 {
        let text = String::from_utf8_lossy(&line).into_owned();
        let command: serde_json::Value = serde_json::from_str(text.trim_start_matches('\u{fffd}')).unwrap();
        line.clear();
        let execute = command["execute"].as_str().unwrap();
        let answer = match execute {
            "guest-sync-delimited" => format!("\u{7f}{{\"return\": {}}}\n", command["arguments"]["id"]),
            "guest-info" => "{\"return\": {}}\n".to_owned(),
            "guest-fsfreeze-status" => "{\"return\": \"frozen\"}\n".to_owned(),
            "guest-fsfreeze-thaw" => "{\"return\": 1}\n".to_owned(),
            _ => "{\"error\": {}}\n".to_owned(),
        };
        let bytes = answer.bytes().map(|byte| if byte == 0x7f { 0xff } else { byte }).collect::<Vec<u8>>();
        port.write_all(&bytes).await.unwrap();
        if execute == "guest-fsfreeze-thaw" {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn links_are_those_of_nics() {
    let scene = scene();
    let down = || vec!["x".to_owned()];
    assert_eq!(scene.handle.set_links(down()).await.unwrap().code(), Code::Conflict, "no VM runs");
    let _vm = scene.run().await;
    let fault = scene.handle.set_links(down()).await.unwrap();
    assert_eq!((fault.code(), fault.detail.as_str()), (Code::Invalid, "the VM has no NIC x"));
    assert_eq!(scene.handle.set_links(Vec::new()).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_nic_that_is_attached_has_a_link() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join(FILES_SOCKET);
    let files = PassedFiles::serve(&socket).unwrap();
    let scene = scene_on(Stagehand { files, ..Stagehand::default() });
    let nic = || {
        let interface = crate::launch::sample::kernel_boot().interfaces.remove(0);
        let peer = crate::launch::NicPeer::Tap { device: "tapX".into(), dhcp_device: "tapX".into() };
        let name = "lan".to_owned();
        Box::new(crate::launch::Interface { name, peer, lease: None, link_up: false, ..interface })
    };
    let attach = || HotplugCommand::AttachNic(nic());
    let detach = || HotplugCommand::DetachNic("lan".to_owned());
    assert_eq!(scene.handle.hotplug(attach()).await.unwrap().code(), Code::Conflict, "no VM runs");
    let mut vm = scene.run().await;
    assert_eq!(scene.handle.hotplug(attach()).await.unwrap().code(), Code::HostResource, "it has no tap");
    assert_eq!(scene.handle.hotplug(detach()).await, None, "it is not there");
    let pass = || {
        let tap = OwnedFd::from(tempfile::tempfile().unwrap());
        vireo_proto::files::pass(&socket, &[(vireo_proto::files::tap_name("tapX", 0), tap)]).unwrap();
    };
    let links = || {
        let links = scene.seen.borrow().state.links.clone().unwrap();
        (links.up.contains(&"lan".to_owned()), links.down.contains(&"lan".to_owned()))
    };
    // The first time, the hypervisor does not take it.
    for is_taken in [false, true] {
        pass();
        let attached = tokio::spawn({
            let (handle, attach) = (scene.handle.clone(), attach());
            async move { handle.hotplug(attach).await }
        });
        let request = vm.hotplugs.recv().await.unwrap();
        assert!(matches!(&request.action, HotplugAction::AttachNic(..)), "{request:?}");
        assert_eq!(scene.handle.hotplug(attach()).await.unwrap().code(), Code::Conflict, "it is under way");
        let change = if is_taken { NicChange::Attached("lan".into()) } else { NicChange::Gone("lan".into()) };
        vm.events.send(Event::Nic(change)).unwrap();
        request.reply.send(None).unwrap();
        assert_eq!(attached.await.unwrap(), None);
        assert_eq!(
            scene.handle.set_links(if is_taken { vec!["lan".into()] } else { Vec::new() }).await,
            None
        );
        assert_eq!(links(), (false, is_taken));
    }
    assert_eq!(scene.handle.hotplug(attach()).await, None, "it is there");
    assert_eq!(scene.handle.set_links(Vec::new()).await, None);
    assert_eq!(vm.commands.recv().await, Some(VmCommand::SetLink { nic: "lan".into(), up: true }));
    assert_eq!(links(), (true, false));
    vm.events.send(Event::Nic(NicChange::Gone("lan".into()))).unwrap();
    tokio::task::yield_now().await;
    assert_eq!(scene.handle.set_links(Vec::new()).await, None);
    assert_eq!(links(), (false, false));
}

#[tokio::test(start_paused = true)]
async fn a_memory_dump_ends_before_anything_else_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join(FILES_SOCKET);
    let files = PassedFiles::serve(&socket).unwrap();
    let scene = scene_on(Stagehand { files, ..Stagehand::default() });
    let begin = || DumpCommand::Begin { volume: "dumps".into(), file: "/d".into() };
    assert_eq!(scene.handle.dump(begin()).await.unwrap().code(), Code::Conflict, "no VM runs");
    let mut vm = scene.run().await;
    assert_eq!(scene.handle.dump(begin()).await.unwrap().code(), Code::HostResource);
    for failure in [None, Some("no space".to_owned())] {
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        vireo_proto::files::pass(&socket, &[("/d".to_owned(), file)]).unwrap();
        assert_eq!(scene.handle.dump(begin()).await, None);
        assert!(vm.dumps.recv().await.is_some());
        for other in [begin(), DumpCommand::Forget] {
            assert_eq!(scene.handle.dump(other).await.unwrap().code(), Code::Conflict);
        }
        let paused = scene.handle.lifecycle(VmCommand::Pause).await.unwrap();
        assert_eq!(paused.detail, "a memory dump of the VMI is under way");
        vm.events.send(Event::MemoryDumped(failure.clone())).unwrap();
        let ended =
            |status: &SessionStatus| status.state.memory_dump.as_ref().is_some_and(|dump| dump.ended != 0);
        let mut seen = scene.seen.clone();
        let dump = seen.wait_for(ended).await.unwrap().state.memory_dump.clone().unwrap();
        assert_eq!((dump.volume.as_str(), dump.file.as_str(), dump.failure), ("dumps", "/d", failure));
        assert_eq!(scene.handle.dump(DumpCommand::Forget).await, None);
        assert_eq!(scene.seen.borrow().state.memory_dump, None);
    }
    vm.events.send(Event::Ended(End::PoweredOff)).unwrap();
    assert_eq!(scene.outcome().await, OutcomeKind::PoweredOff);
}
