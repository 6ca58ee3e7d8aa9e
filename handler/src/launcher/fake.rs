//! A fake launcher for tests.

use std::path::Path;
use std::pin::Pin;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};
use vireo_proto::VERSION;
use vireo_proto::launcher::launcher_server::{Launcher, LauncherServer};
use vireo_proto::launcher::*;

/// A launcher that reports the state that a test sets.
pub(crate) struct FakeLauncher {
    pub(crate) vmi: Option<Identity>,
    pub(crate) version: Version,
    pub(crate) state: watch::Receiver<State>,
    /// Its response to a shutdown request.
    pub(crate) shutdown_fault: Option<Fault>,
    /// The volume that it was last asked to detach, which it refuses.
    pub(crate) detaches: watch::Sender<String>,
}

impl FakeLauncher {
    /// A launcher without a VM that reports this state.
    pub(crate) fn with_state(state: watch::Receiver<State>) -> Self {
        let shutdown_fault =
            Fault { code: fault::Code::Conflict.into(), detail: "no VM".into(), field: String::new() };
        Self {
            vmi: None,
            version: VERSION,
            state,
            shutdown_fault: Some(shutdown_fault),
            detaches: watch::Sender::default(),
        }
    }

    /// Serves until the handle is aborted, which ends its connections as well.
    pub(crate) fn serve(self, socket: &Path) -> JoinHandle<()> {
        let _ = std::fs::remove_file(socket);
        let listener = tokio::net::UnixListener::bind(socket).unwrap();
        tokio::spawn(async move {
            let server = tonic::transport::Server::builder().add_service(LauncherServer::new(self));
            server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
        })
    }
}

#[tonic::async_trait]
impl Launcher for FakeLauncher {
    async fn hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        let state = Some(self.state.borrow().clone());
        Ok(Response::new(HelloResponse { version: Some(self.version), vmi: self.vmi.clone(), state, pid: 1 }))
    }

    async fn launch(&self, _: Request<LaunchRequest>) -> Result<Response<LaunchResponse>, Status> {
        Err(Status::unimplemented("a fake launcher"))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<State, Status>> + Send>>;

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(Box::pin(WatchStream::new(self.state.clone()).map(Ok))))
    }

    async fn shutdown(&self, _: Request<ShutdownRequest>) -> Result<Response<ShutdownResponse>, Status> {
        Ok(Response::new(ShutdownResponse { fault: self.shutdown_fault.clone() }))
    }

    async fn kill(&self, _: Request<KillRequest>) -> Result<Response<KillResponse>, Status> {
        Ok(Response::new(KillResponse { fault: None }))
    }

    async fn steer(&self, _: Request<LifecycleRequest>) -> Result<Response<LifecycleResponse>, Status> {
        Ok(Response::new(LifecycleResponse { fault: None }))
    }

    async fn attach_volume(
        &self,
        _: Request<AttachVolumeRequest>,
    ) -> Result<Response<AttachVolumeResponse>, Status> {
        Err(Status::unimplemented("as launchers of older releases"))
    }

    async fn detach_volume(
        &self,
        request: Request<DetachVolumeRequest>,
    ) -> Result<Response<DetachVolumeResponse>, Status> {
        self.detaches.send_replace(request.into_inner().name);
        Err(Status::unimplemented("as launchers of older releases"))
    }

    async fn attach_interface(
        &self,
        _: Request<AttachInterfaceRequest>,
    ) -> Result<Response<AttachInterfaceResponse>, Status> {
        Err(Status::unimplemented("as launchers of older releases"))
    }

    async fn detach_interface(
        &self,
        _: Request<DetachInterfaceRequest>,
    ) -> Result<Response<DetachInterfaceResponse>, Status> {
        Err(Status::unimplemented("as launchers of older releases"))
    }

    async fn set_links(&self, _: Request<SetLinksRequest>) -> Result<Response<SetLinksResponse>, Status> {
        Err(Status::unimplemented("as launchers of older releases"))
    }

    async fn dump_memory(
        &self,
        _: Request<DumpMemoryRequest>,
    ) -> Result<Response<DumpMemoryResponse>, Status> {
        Err(Status::unimplemented("as launchers of older releases"))
    }

    async fn forget_memory_dump(
        &self,
        _: Request<ForgetMemoryDumpRequest>,
    ) -> Result<Response<ForgetMemoryDumpResponse>, Status> {
        Err(Status::unimplemented("as launchers of older releases"))
    }

    async fn ask_agent(&self, _: Request<AskAgentRequest>) -> Result<Response<AskAgentResponse>, Status> {
        Err(Status::unimplemented("as launchers of older releases"))
    }

    async fn set_credentials(
        &self,
        _: Request<SetCredentialsRequest>,
    ) -> Result<Response<SetCredentialsResponse>, Status> {
        Err(Status::unimplemented("as launchers of older releases"))
    }

    async fn freeze_filesystems(
        &self,
        request: Request<FreezeFilesystemsRequest>,
    ) -> Result<Response<FreezeFilesystemsResponse>, Status> {
        let detail = format!("thawed after {} s", request.into_inner().thaw_after_seconds);
        let fault = Some(Fault { code: fault::Code::Hypervisor.into(), detail, ..Fault::default() });
        Ok(Response::new(FreezeFilesystemsResponse { fault }))
    }

    async fn thaw_filesystems(
        &self,
        _: Request<ThawFilesystemsRequest>,
    ) -> Result<Response<ThawFilesystemsResponse>, Status> {
        Ok(Response::new(ThawFilesystemsResponse::default()))
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
