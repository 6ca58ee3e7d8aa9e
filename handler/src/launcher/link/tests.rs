use std::pin::Pin;

use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};
use vireo_proto::launcher::launcher_server::{Launcher, LauncherServer};
use vireo_proto::launcher::{
    AttachVolumeResponse, DetachVolumeResponse, DismissResponse, HelloResponse, KillResponse, LaunchResponse,
    ProbeResponse, ScreenshotResponse, ShutdownResponse, StatisticsResponse, SteerResponse, Version, fault,
};

use super::*;
use crate::launcher::process::{self, Found, Start};

/// A launcher that says what it is told to say.
struct Puppet {
    vmi: Option<Identity>,
    version: Version,
    state: watch::Receiver<State>,
}

#[tonic::async_trait]
impl Launcher for Puppet {
    async fn hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        let state = Some(self.state.borrow().clone());
        Ok(Response::new(HelloResponse { version: Some(self.version), vmi: self.vmi.clone(), state, pid: 1 }))
    }

    async fn launch(&self, _: Request<LaunchRequest>) -> Result<Response<LaunchResponse>, Status> {
        Err(Status::unimplemented("a puppet"))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<State, Status>> + Send>>;

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(Box::pin(WatchStream::new(self.state.clone()).map(Ok))))
    }

    async fn shutdown(&self, _: Request<ShutdownRequest>) -> Result<Response<ShutdownResponse>, Status> {
        let fault =
            Fault { code: fault::Code::Conflict.into(), detail: "no machine".into(), field: String::new() };
        Ok(Response::new(ShutdownResponse { fault: Some(fault) }))
    }

    async fn kill(&self, _: Request<KillRequest>) -> Result<Response<KillResponse>, Status> {
        Ok(Response::new(KillResponse { fault: None }))
    }

    async fn steer(&self, _: Request<SteerRequest>) -> Result<Response<SteerResponse>, Status> {
        Ok(Response::new(SteerResponse { fault: None }))
    }

    async fn attach_volume(
        &self,
        _: Request<AttachVolumeRequest>,
    ) -> Result<Response<AttachVolumeResponse>, Status> {
        Err(Status::unimplemented("as launchers of older releases"))
    }

    async fn detach_volume(
        &self,
        _: Request<DetachVolumeRequest>,
    ) -> Result<Response<DetachVolumeResponse>, Status> {
        Err(Status::unimplemented("as launchers of older releases"))
    }

    async fn ask_agent(&self, _: Request<AskAgentRequest>) -> Result<Response<AskAgentResponse>, Status> {
        Err(Status::unimplemented("as launchers of older releases"))
    }

    async fn probe(&self, request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        use vireo_proto::launcher::probe_request::Question;
        match request.into_inner().question {
            Some(Question::GuestAgentPing(_)) => Ok(Response::new(ProbeResponse::default())),
            Some(Question::Exec(exec)) => {
                Ok(Response::new(ProbeResponse { failure: exec.command.into_iter().next(), fault: None }))
            }
            _ => Err(Status::unimplemented("as launchers of older releases")),
        }
    }

    async fn screenshot(
        &self,
        _: Request<ScreenshotRequest>,
    ) -> Result<Response<ScreenshotResponse>, Status> {
        Ok(Response::new(ScreenshotResponse { png: vec![0x89; 5 << 20], fault: None }))
    }

    async fn statistics(
        &self,
        _: Request<StatisticsRequest>,
    ) -> Result<Response<StatisticsResponse>, Status> {
        Err(Status::unimplemented("as launchers of older releases"))
    }

    async fn dismiss(&self, _: Request<DismissRequest>) -> Result<Response<DismissResponse>, Status> {
        Ok(Response::new(DismissResponse { fault: None }))
    }
}

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
        let _ = std::fs::remove_file(self.socket());
        let listener = tokio::net::UnixListener::bind(self.socket()).unwrap();
        tokio::spawn(async move {
            let server = tonic::transport::Server::builder().add_service(LauncherServer::new(puppet));
            server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
        })
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
    let puppet = |vmi| Puppet { vmi, version: VERSION, state: told.clone() };
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
    let server = stage.serve(Puppet { vmi: Some(identity("web")), version: VERSION, state: told_again });
    until(&mut link, |seen| matches!(seen, Seen::Here(_))).await;

    link.kill_process().unwrap();
    until(&mut link, |seen| *seen == Seen::Gone(Ending::Signal(9))).await;
    server.abort();
    drop(tell_again);
}

#[tokio::test]
async fn another_vmis_launcher_is_told_apart() {
    let stage = Stage::new();
    let mut link = stage.follow();
    let (_tell, told) = watch::channel(state(Phase::Running));
    let server = stage.serve(Puppet { vmi: Some(identity("db")), version: VERSION, state: told });
    let seen = until(&mut link, |seen| matches!(seen, Seen::Foreign(_))).await;
    assert_eq!(seen, Seen::Foreign("default/db (u)".into()));
    link.kill_process().unwrap();
    until(&mut link, |seen| matches!(seen, Seen::Gone(_))).await;
    server.abort();
}

#[tokio::test]
async fn another_major_version_is_never_followed() {
    let stage = Stage::new();
    let link = stage.follow();
    let (_tell, told) = watch::channel(state(Phase::Running));
    let version = Version { major: VERSION.major + 1, minor: 0 };
    let server = stage.serve(Puppet { vmi: None, version, state: told });
    let (tell, _) = watch::channel(Seen::Silent);
    let follower =
        Follower { process: Arc::clone(&link.process), socket: stage.socket(), vmi: identity("web"), tell };
    let refused = follower.follow_once(&mut RETRY_FIRST.clone()).await;
    assert!(matches!(refused, Err(LinkError::Version { .. })), "{refused:?}");
    link.kill_process().unwrap();
    server.abort();
}

/// A launcher that does not know a question says nothing of its guest.
#[tokio::test]
async fn a_guest_is_ill_only_where_its_launcher_says_so() {
    use vireo_proto::launcher::probe_request::{Exec, GuestAgentPing, Question, TcpSocket};
    let stage = Stage::new();
    let (_tell, told) = watch::channel(state(Phase::Running));
    let server = stage.serve(Puppet { vmi: None, version: VERSION, state: told });
    let ask = async |question| {
        let request = ProbeRequest { timeout_seconds: 1, question: Some(question) };
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
