//! The launcher's side of the protocol: one command in, one answer out, all of it by the session.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};
use vireo_proto::VERSION;
use vireo_proto::launcher::launcher_server::Launcher;
use vireo_proto::launcher::state::Phase;
use vireo_proto::launcher::{
    AskAgentRequest, AskAgentResponse, AttachInterfaceRequest, AttachInterfaceResponse, AttachVolumeRequest,
    AttachVolumeResponse, DetachInterfaceRequest, DetachInterfaceResponse, DetachVolumeRequest,
    DetachVolumeResponse, DismissRequest, DismissResponse, DumpMemoryRequest, DumpMemoryResponse,
    ForgetMemoryDumpRequest, ForgetMemoryDumpResponse, FreezeFilesystemsRequest, FreezeFilesystemsResponse,
    HelloRequest, HelloResponse, KillRequest, KillResponse, LaunchRequest, LaunchResponse, LifecycleCommand,
    LifecycleRequest, LifecycleResponse, ProbeRequest, ProbeResponse, ScreenshotRequest, ScreenshotResponse,
    SetCredentialsRequest, SetCredentialsResponse, SetLinksRequest, SetLinksResponse, ShutdownRequest,
    ShutdownResponse, State, StatisticsRequest, StatisticsResponse, ThawFilesystemsRequest,
    ThawFilesystemsResponse, WatchRequest,
};

use crate::fault::{Code, chain, fault};
use crate::health;
use crate::hypervisor::VmCommand;
use crate::launch;
use crate::screenshot;
use crate::session::{DumpCommand, Handle, HotplugCommand};
use crate::statistics;

/// The service, for any number of connections.
pub struct Server {
    session: Handle,
}

impl Server {
    /// Serves this session.
    pub fn new(session: Handle) -> Self {
        Self { session }
    }
}

#[tonic::async_trait]
impl Launcher for Server {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        let theirs = request.into_inner().version.unwrap_or_default();
        if theirs.major != VERSION.major {
            let (theirs, ours) = (theirs.major, VERSION.major);
            let message = format!("this launcher supports version {ours} of the protocol, not {theirs}");
            return Err(Status::failed_precondition(message));
        }
        let status = self.session.status().borrow().clone();
        Ok(Response::new(HelloResponse {
            version: Some(VERSION),
            vmi: status.vmi,
            state: Some(status.state),
            pid: std::process::id(),
        }))
    }

    async fn launch(&self, request: Request<LaunchRequest>) -> Result<Response<LaunchResponse>, Status> {
        let (state, fault) = self.session.launch(request.into_inner()).await;
        Ok(Response::new(LaunchResponse { state: Some(state), fault }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<State, Status>> + Send>>;

    /// Changes that follow each other faster than they are read are seen as one.
    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let watcher = self.session.watch();
        let states = WatchStream::new(self.session.status()).map(move |status| {
            let _counts = &watcher;
            Ok(status.state)
        });
        Ok(Response::new(Box::pin(states)))
    }

    async fn shutdown(
        &self,
        request: Request<ShutdownRequest>,
    ) -> Result<Response<ShutdownResponse>, Status> {
        let grace = Duration::from_secs(request.into_inner().grace_seconds);
        Ok(Response::new(ShutdownResponse { fault: self.session.shutdown(grace).await }))
    }

    async fn kill(&self, _: Request<KillRequest>) -> Result<Response<KillResponse>, Status> {
        Ok(Response::new(KillResponse { fault: self.session.kill().await }))
    }

    async fn steer(&self, request: Request<LifecycleRequest>) -> Result<Response<LifecycleResponse>, Status> {
        let command = match request.into_inner().command() {
            LifecycleCommand::Pause => VmCommand::Pause,
            LifecycleCommand::Unpause => VmCommand::Resume,
            LifecycleCommand::Reset => VmCommand::Reset,
            LifecycleCommand::SoftReboot => VmCommand::SoftReboot,
            LifecycleCommand::Unspecified => {
                let fault = fault(Code::Invalid, "this launcher does not know what to do");
                return Ok(Response::new(LifecycleResponse { fault: Some(fault) }));
            }
        };
        Ok(Response::new(LifecycleResponse { fault: self.session.lifecycle(command).await }))
    }

    async fn attach_volume(
        &self,
        request: Request<AttachVolumeRequest>,
    ) -> Result<Response<AttachVolumeResponse>, Status> {
        let fault = match launch::disk_to_attach(request.into_inner()) {
            Ok(disk) => self.session.hotplug(HotplugCommand::AttachVolume(Box::new(disk))).await,
            Err(error) => Some(fault(Code::Invalid, chain(&error))),
        };
        Ok(Response::new(AttachVolumeResponse { fault }))
    }

    async fn detach_volume(
        &self,
        request: Request<DetachVolumeRequest>,
    ) -> Result<Response<DetachVolumeResponse>, Status> {
        let fault = self.session.hotplug(HotplugCommand::DetachVolume(request.into_inner().name)).await;
        Ok(Response::new(DetachVolumeResponse { fault }))
    }

    async fn attach_interface(
        &self,
        request: Request<AttachInterfaceRequest>,
    ) -> Result<Response<AttachInterfaceResponse>, Status> {
        let fault = match launch::nic_to_attach(request.into_inner()) {
            Ok(nic) => self.session.hotplug(HotplugCommand::AttachNic(Box::new(nic))).await,
            Err(error) => Some(fault(Code::Invalid, chain(&error))),
        };
        Ok(Response::new(AttachInterfaceResponse { fault }))
    }

    async fn detach_interface(
        &self,
        request: Request<DetachInterfaceRequest>,
    ) -> Result<Response<DetachInterfaceResponse>, Status> {
        let fault = self.session.hotplug(HotplugCommand::DetachNic(request.into_inner().name)).await;
        Ok(Response::new(DetachInterfaceResponse { fault }))
    }

    async fn set_links(
        &self,
        request: Request<SetLinksRequest>,
    ) -> Result<Response<SetLinksResponse>, Status> {
        let fault = self.session.set_links(request.into_inner().down).await;
        Ok(Response::new(SetLinksResponse { fault }))
    }

    async fn dump_memory(
        &self,
        request: Request<DumpMemoryRequest>,
    ) -> Result<Response<DumpMemoryResponse>, Status> {
        let DumpMemoryRequest { volume, file } = request.into_inner();
        let fault = self.session.dump(DumpCommand::Begin { volume, file }).await;
        Ok(Response::new(DumpMemoryResponse { fault }))
    }

    async fn forget_memory_dump(
        &self,
        _: Request<ForgetMemoryDumpRequest>,
    ) -> Result<Response<ForgetMemoryDumpResponse>, Status> {
        let fault = self.session.dump(DumpCommand::Forget).await;
        Ok(Response::new(ForgetMemoryDumpResponse { fault }))
    }

    async fn ask_agent(
        &self,
        request: Request<AskAgentRequest>,
    ) -> Result<Response<AskAgentResponse>, Status> {
        let response = self.session.agent().ask(request.into_inner().question()).await;
        let failed = |fault| AskAgentResponse { fault: Some(fault), ..AskAgentResponse::default() };
        Ok(Response::new(response.unwrap_or_else(failed)))
    }

    async fn set_credentials(
        &self,
        request: Request<SetCredentialsRequest>,
    ) -> Result<Response<SetCredentialsResponse>, Status> {
        let fault = self.session.agent().set_credentials(request.into_inner()).await.err();
        Ok(Response::new(SetCredentialsResponse { fault }))
    }

    async fn freeze_filesystems(
        &self,
        request: Request<FreezeFilesystemsRequest>,
    ) -> Result<Response<FreezeFilesystemsResponse>, Status> {
        let thaw_after = Duration::from_secs(request.into_inner().thaw_after_seconds);
        let phase = self.session.status().borrow().state.phase();
        let fault = match phase {
            Phase::Running | Phase::Paused => self.session.agent().freeze(thaw_after).await.err(),
            // A guest that shuts down would wait for them.
            _ => Some(fault(Code::Conflict, "VMI is not running")),
        };
        Ok(Response::new(FreezeFilesystemsResponse { fault }))
    }

    async fn thaw_filesystems(
        &self,
        _: Request<ThawFilesystemsRequest>,
    ) -> Result<Response<ThawFilesystemsResponse>, Status> {
        let fault = self.session.agent().thaw().await.err();
        Ok(Response::new(ThawFilesystemsResponse { fault }))
    }

    async fn probe(&self, request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(health::run(self.session.agent(), request.into_inner()).await))
    }

    async fn screenshot(
        &self,
        request: Request<ScreenshotRequest>,
    ) -> Result<Response<ScreenshotResponse>, Status> {
        let Some(vnc_socket) = self.session.status().borrow().vnc_socket.clone() else {
            let fault = Some(fault(Code::Conflict, "the VM has no display"));
            return Ok(Response::new(ScreenshotResponse { fault, ..ScreenshotResponse::default() }));
        };
        let answer = match screenshot::take(&vnc_socket, request.into_inner().move_cursor).await {
            Ok(png) => ScreenshotResponse { png, fault: None },
            Err(error) => {
                ScreenshotResponse { png: Vec::new(), fault: Some(fault(Code::Hypervisor, chain(&error))) }
            }
        };
        Ok(Response::new(answer))
    }

    async fn statistics(
        &self,
        _: Request<StatisticsRequest>,
    ) -> Result<Response<StatisticsResponse>, Status> {
        let answer = match statistics::read(self.session.stats_source()).await {
            Ok(statistics) => StatisticsResponse { statistics: Some(statistics), fault: None },
            Err(fault) => StatisticsResponse { statistics: None, fault: Some(fault) },
        };
        Ok(Response::new(answer))
    }

    async fn dismiss(&self, _: Request<DismissRequest>) -> Result<Response<DismissResponse>, Status> {
        Ok(Response::new(DismissResponse { fault: self.session.dismiss().await }))
    }
}
