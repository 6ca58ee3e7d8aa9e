use vireo_proto::launcher::Version;

use super::*;
use crate::launcher::process::{self, Found, Start};
use crate::launcher::puppet::Puppet;

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

    fn follow(&self) -> Link {
        let (log, stamp) = (self.dir.path().join("log"), self.dir.path().join("stamp"));
        let start = Start {
            program: Path::new("/bin/sleep"),
            arguments: vec!["600".into()],
            log: &log,
            stamp: &stamp,
            namespace: None,
            cgroup: None,
        };
        process::spawn(&start).unwrap();
        let Found::Running(process) = process::find(&stamp).unwrap() else { panic!("it was just started") };
        Link::follow(process, self.socket(), identity("web"))
    }

    /// Serves until the handle is aborted, which ends its connections as well.
    fn serve(&self, puppet: Puppet) -> JoinHandle<()> {
        puppet.serve(&self.socket())
    }
}

async fn until(link: &mut Link, what: impl Fn(&Seen) -> bool) -> Seen {
    let found = tokio::time::timeout(Duration::from_secs(20), async {
        while !what(&link.seen()) {
            link.changed().await;
        }
        link.seen()
    });
    found.await.unwrap_or_else(|_| panic!("still {:?}", link.seen()))
}

#[tokio::test]
async fn a_broken_connection_is_silence_and_only_the_end_of_the_process_is_an_end() {
    let stage = Stage::new();
    let mut link = stage.follow();
    assert_eq!(link.seen(), Seen::Silent);

    let (tell, told) = watch::channel(state(Phase::Waiting));
    let puppet = |vmi| Puppet { vmi, ..Puppet::saying(told.clone()) };
    let server = stage.serve(puppet(None));
    until(&mut link, |seen| matches!(seen, Seen::Here(state) if state.phase() == Phase::Waiting)).await;
    tell.send(state(Phase::Running)).unwrap();
    until(&mut link, |seen| matches!(seen, Seen::Here(state) if state.phase() == Phase::Running)).await;
    assert!(matches!(link.shutdown(1).await, Err(LinkError::Refused(fault)) if fault.detail == "no machine"));
    link.dismiss().await.unwrap();
    assert_eq!(screenshot(&stage.socket(), false).await.unwrap().len(), 5 << 20, "a large picture");

    // The end of every stream of the old server, as when the launcher hangs up.
    let (tell_again, told_again) = watch::channel(state(Phase::Running));
    server.abort();
    drop(tell);
    until(&mut link, |seen| *seen == Seen::Silent).await;
    let server = stage.serve(Puppet { vmi: Some(identity("web")), ..Puppet::saying(told_again) });
    until(&mut link, |seen| matches!(seen, Seen::Here(_))).await;

    link.process().kill().unwrap();
    until(&mut link, |seen| *seen == Seen::Gone(Ending::Signal(9))).await;
    server.abort();
    drop(tell_again);
}

#[tokio::test]
async fn another_vmis_launcher_is_told_apart() {
    let stage = Stage::new();
    let mut link = stage.follow();
    let (_tell, told) = watch::channel(state(Phase::Running));
    let server = stage.serve(Puppet { vmi: Some(identity("db")), ..Puppet::saying(told) });
    let seen = until(&mut link, |seen| matches!(seen, Seen::Foreign(_))).await;
    assert_eq!(seen, Seen::Foreign("default/db (u)".into()));
    link.process().kill().unwrap();
    until(&mut link, |seen| matches!(seen, Seen::Gone(_))).await;
    server.abort();
}

#[tokio::test]
async fn another_major_version_is_never_followed() {
    let stage = Stage::new();
    let link = stage.follow();
    let (_tell, told) = watch::channel(state(Phase::Running));
    let version = Version { major: VERSION.major + 1, minor: 0 };
    let server = stage.serve(Puppet { version, ..Puppet::saying(told) });
    let (tell, _) = watch::channel(Seen::Silent);
    let follower =
        Follower { process: Arc::clone(&link.process), socket: stage.socket(), vmi: identity("web"), tell };
    let refused = follower.follow_once(&mut RETRY_FIRST.clone()).await;
    assert!(matches!(refused, Err(LinkError::Version { .. })), "{refused:?}");
    link.process().kill().unwrap();
    server.abort();
}

/// A launcher that does not know a question says nothing of its guest.
#[tokio::test]
async fn a_guest_is_ill_only_where_its_launcher_says_so() {
    use vireo_proto::launcher::probe_request::{Exec, GuestAgentPing, Question, TcpSocket};
    let stage = Stage::new();
    let (_tell, told) = watch::channel(state(Phase::Running));
    let server = stage.serve(Puppet::saying(told));
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
