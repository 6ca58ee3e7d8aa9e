use tokio::task::JoinHandle;
use vireo_proto::launcher::Version;
use vireo_proto::launcher::state::Phase;

use super::*;
use crate::launcher::fake::FakeLauncher;
use crate::launcher::process::{self, Found, Start};

fn identity(name: &str) -> Identity {
    Identity { namespace: "default".into(), name: name.into(), uid: "u".into() }
}

fn state(phase: Phase) -> State {
    State { phase: phase.into(), ..State::default() }
}

/// A process that stands for the launcher's, and its socket's place.
struct Stage {
    dir: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("launcher.sock")
    }

    fn watch(&self) -> Link {
        let (log, stamp) = (self.dir.path().join("log"), self.dir.path().join("stamp"));
        let start = Start {
            program: Path::new("/bin/sleep"),
            arguments: vec!["600".into()],
            log: &log,
            stamp: &stamp,
            namespace: None,
            cgroups: &[],
            oom_score_adj: None,
            confinement: None,
        };
        process::spawn(&start).unwrap();
        let Found::Running(process) = process::find(&stamp).unwrap() else { panic!("it was just started") };
        Link::watch(process, self.socket(), identity("web"))
    }

    /// Serves until the handle is aborted, which ends its connections as well.
    fn serve(&self, fake: FakeLauncher) -> JoinHandle<()> {
        fake.serve(&self.socket())
    }
}

async fn until(link: &mut Link, what: impl Fn(&LauncherStatus) -> bool) -> LauncherStatus {
    let found = tokio::time::timeout(Duration::from_secs(20), async {
        while !what(&link.status()) {
            link.changed().await;
        }
        link.status()
    });
    found.await.unwrap_or_else(|_| panic!("still {:?}", link.status()))
}

#[tokio::test]
async fn a_broken_connection_is_silence_and_only_the_end_of_the_process_is_an_end() {
    let stage = Stage::new();
    let mut link = stage.watch();
    assert_eq!(link.status(), LauncherStatus::Silent);

    let (sender, states) = watch::channel(state(Phase::Waiting));
    let fake = |vmi| FakeLauncher { vmi, ..FakeLauncher::with_state(states.clone()) };
    let server = stage.serve(fake(None));
    until(
        &mut link,
        |status| matches!(status, LauncherStatus::Connected(state) if state.phase() == Phase::Waiting),
    )
    .await;
    sender.send(state(Phase::Running)).unwrap();
    until(
        &mut link,
        |status| matches!(status, LauncherStatus::Connected(state) if state.phase() == Phase::Running),
    )
    .await;
    assert!(matches!(link.shutdown(1).await, Err(LinkError::Fault(fault)) if fault.detail == "no VM"));
    link.dismiss().await.unwrap();
    assert_eq!(screenshot(&stage.socket(), false).await.unwrap().len(), 5 << 20, "a large picture");

    // The end of every stream of the old server, as when the launcher hangs up.
    let (second_sender, second_state) = watch::channel(state(Phase::Running));
    server.abort();
    drop(sender);
    until(&mut link, |status| *status == LauncherStatus::Silent).await;
    let server =
        stage.serve(FakeLauncher { vmi: Some(identity("web")), ..FakeLauncher::with_state(second_state) });
    until(&mut link, |status| matches!(status, LauncherStatus::Connected(_))).await;

    link.process().kill().unwrap();
    until(&mut link, |status| *status == LauncherStatus::Gone(Ending::Signal(9))).await;
    server.abort();
    drop(second_sender);
}

#[tokio::test]
async fn another_vmis_launcher_is_detected() {
    let stage = Stage::new();
    let mut link = stage.watch();
    let (_sender, states) = watch::channel(state(Phase::Running));
    let server = stage.serve(FakeLauncher { vmi: Some(identity("db")), ..FakeLauncher::with_state(states) });
    let status = until(&mut link, |status| matches!(status, LauncherStatus::Foreign(_))).await;
    assert_eq!(status, LauncherStatus::Foreign("default/db (u)".into()));
    link.process().kill().unwrap();
    until(&mut link, |status| matches!(status, LauncherStatus::Gone(_))).await;
    server.abort();
}

#[tokio::test]
async fn another_major_version_is_rejected() {
    let stage = Stage::new();
    let link = stage.watch();
    let (_sender, states) = watch::channel(state(Phase::Running));
    let version = Version { major: VERSION.major + 1, minor: 0 };
    let server = stage.serve(FakeLauncher { version, ..FakeLauncher::with_state(states) });
    let (sender, _) = watch::channel(LauncherStatus::Silent);
    let watcher = StateWatcher {
        process: Arc::clone(&link.process),
        socket: stage.socket(),
        vmi: identity("web"),
        status: sender,
    };
    let rejected = watcher.watch_once(&mut RETRY_FIRST.clone()).await;
    assert!(matches!(rejected, Err(LinkError::Version { .. })), "{rejected:?}");
    link.process().kill().unwrap();
    server.abort();
}

/// A launcher that does not know a probe gives no result.
#[tokio::test]
async fn a_guest_is_unhealthy_only_if_its_launcher_reports_it() {
    use vireo_proto::launcher::probe_request::{Exec, GuestAgentPing, Question, TcpSocket};
    let stage = Stage::new();
    let (_sender, states) = watch::channel(state(Phase::Running));
    let server = stage.serve(FakeLauncher::with_state(states));
    let ask = async |question| {
        let request = ProbeRequest { timeout_seconds: 1, question: Some(question), resolver: None };
        probe(&stage.socket(), request).await
    };
    assert!(matches!(ask(Question::GuestAgentPing(GuestAgentPing {})).await, Ok(None)));
    let exec = Question::Exec(Exec { command: vec!["cause".to_owned()] });
    assert!(matches!(ask(exec).await, Ok(Some(cause)) if cause == "cause"));
    let older = ask(Question::TcpSocket(TcpSocket::default())).await;
    assert!(matches!(older, Err(LinkError::Call(_))), "{older:?}");
    server.abort();
}

/// A state directory may be called anything.
#[tokio::test]
async fn a_socket_may_have_any_path() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["with space", "percent%20", "question?x=1", "hash#1", "ümläut"] {
        let inside = dir.path().join(name);
        std::fs::create_dir(&inside).unwrap();
        let socket = inside.join("launcher.sock");
        let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
        assert!(connect(&socket).await.is_ok(), "{name}");
    }
}
