//! A device plugin of the kubelet.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use futures_util::stream::{BoxStream, StreamExt as _};
use rustix::fs::inotify::WatchFlags;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};
use tracing::{info, warn};
use vireo_proto::device_plugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use vireo_proto::device_plugin::registration_client::RegistrationClient;
use vireo_proto::device_plugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device, DevicePluginOptions, DeviceSpec,
    Empty, ListAndWatchResponse, NumaNode, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest, TopologyInfo,
};

use super::connection;
use crate::command::Failure;
use crate::inotify::Inotify;

/// The kubelet's own socket in its directory of device plugins.
const KUBELET: &str = "kubelet.sock";
/// The version of the API.
const VERSION: &str = "v1beta1";
/// How soon it is tried again where the kubelet does not answer.
const RETRY: Duration = Duration::from_secs(5);

/// Gives a container the devices with these IDs. The error says why it cannot.
type Allocate = dyn Fn(&[String]) -> Result<ContainerAllocateResponse, String> + Send + Sync;

/// Devices that are offered to the kubelet as a resource.
pub(super) struct Offer {
    /// The name of the resource.
    pub(super) resource: String,
    /// The socket of the plugin, in the kubelet's directory.
    pub(super) socket: String,
    /// The devices as they are now. Lists end with their sender, and with them what the kubelet offers: connections outlive
    /// the server.
    pub(super) devices: watch::Receiver<Vec<Device>>,
    pub(super) allocate: Box<Allocate>,
}

/// A device of the API.
pub(super) fn device(id: String, is_healthy: bool, numa_node: Option<i64>) -> Device {
    let health = if is_healthy { "Healthy" } else { "Unhealthy" };
    let topology = numa_node.map(|id| TopologyInfo { nodes: vec![NumaNode { id }] });
    Device { id, health: health.to_owned(), topology }
}

/// A device file that a container gets under its own path.
pub(super) fn spec(path: &str) -> DeviceSpec {
    DeviceSpec { container_path: path.to_owned(), host_path: path.to_owned(), permissions: "rw".to_owned() }
}

/// Offers devices until it is dropped.
pub(super) async fn offer_again(offer: &Arc<Offer>, directory: &Path) {
    let resource = &offer.resource;
    loop {
        match self::offer(offer, directory).await {
            Ok(()) => info!(resource, "the kubelet has forgotten the device; it is offered again"),
            Err(error) => {
                let error = &*error as &dyn std::error::Error;
                warn!(resource, error, "cannot offer the device to the kubelet; it is tried again");
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Serves the plugin of a device until the kubelet removes its socket, as it does when it starts.
async fn offer(offer: &Arc<Offer>, directory: &Path) -> Result<(), Failure> {
    let socket = directory.join(&offer.socket);
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&socket)?;
    let inotify = Inotify::new()?;
    inotify.watch(directory, WatchFlags::DELETE | WatchFlags::DELETE_SELF)?;
    let server = Server::builder()
        .add_service(DevicePluginServer::new(Plugin(Arc::clone(offer))))
        .serve_with_incoming(UnixListenerStream::new(listener).map_ok(connection::of_kubelet));
    let registered = async {
        register(offer, &directory.join(KUBELET)).await?;
        info!(resource = offer.resource, "offered the device to the kubelet");
        while socket.exists() {
            inotify.events().await?;
        }
        Ok(())
    };
    tokio::select! {
        served = server => Ok(served?),
        done = registered => done,
    }
}

async fn register(offer: &Offer, kubelet: &Path) -> Result<(), Failure> {
    let channel = Endpoint::try_from(format!("unix:{}", kubelet.display()))?.connect().await?;
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: offer.socket.clone(),
        resource_name: offer.resource.clone(),
        options: Some(DevicePluginOptions::default()),
    };
    RegistrationClient::new(channel).register(request).await?;
    Ok(())
}

/// The server of a plugin.
pub(super) struct Plugin(pub(super) Arc<Offer>);

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    type ListAndWatchStream = BoxStream<'static, Result<ListAndWatchResponse, Status>>;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let lists = WatchStream::new(self.0.devices.clone());
        Ok(Response::new(lists.map(|devices| Ok(ListAndWatchResponse { devices })).boxed()))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Ok(Response::new(PreferredAllocationResponse::default()))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let containers = request.into_inner().container_requests.into_iter();
        let responses = containers.map(|container| (self.0.allocate)(&container.devices_ids));
        let container_responses = responses.collect::<Result<_, _>>().map_err(Status::failed_precondition)?;
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

/// The kubelet's side, for tests.
#[cfg(test)]
pub(super) mod fake {
    use std::path::PathBuf;

    use tempfile::TempDir;
    use tokio::sync::mpsc;
    use tonic::transport::Channel;
    use vireo_proto::device_plugin::ContainerAllocateRequest;
    use vireo_proto::device_plugin::device_plugin_client::DevicePluginClient;
    use vireo_proto::device_plugin::registration_server::{Registration, RegistrationServer};

    use super::*;

    struct Registrar(mpsc::UnboundedSender<RegisterRequest>);

    #[tonic::async_trait]
    impl Registration for Registrar {
        async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
            let _ = self.0.send(request.into_inner());
            Ok(Response::new(Empty {}))
        }
    }

    pub(in super::super) async fn offer(offer: Offer, directory: &Path) -> Result<(), Failure> {
        super::offer(&offer.into(), directory).await
    }

    pub(in super::super) struct Kubelet {
        pub(in super::super) directory: TempDir,
        registrations: mpsc::UnboundedReceiver<RegisterRequest>,
    }

    impl Kubelet {
        pub(in super::super) fn start() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let (registered, registrations) = mpsc::unbounded_channel();
            let listener = UnixListener::bind(directory.path().join(KUBELET)).unwrap();
            let kubelet = Server::builder().add_service(RegistrationServer::new(Registrar(registered)));
            tokio::spawn(kubelet.serve_with_incoming(UnixListenerStream::new(listener)));
            Self { directory, registrations }
        }

        /// The plugin that registers next.
        pub(in super::super) async fn registered(&mut self, resource: &str) -> Registered {
            let request = self.registrations.recv().await.unwrap();
            assert_eq!((request.version.as_str(), request.resource_name.as_str()), (VERSION, resource));
            let socket = self.directory.path().join(&request.endpoint);
            let endpoint = Endpoint::try_from(format!("unix:{}", socket.display())).unwrap();
            let mut client = DevicePluginClient::new(endpoint.connect().await.unwrap());
            let lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
            Registered { socket, client, lists }
        }
    }

    pub(in super::super) struct Registered {
        socket: PathBuf,
        client: DevicePluginClient<Channel>,
        lists: tonic::Streaming<ListAndWatchResponse>,
    }

    impl Registered {
        /// The next list of devices.
        pub(in super::super) async fn devices(&mut self) -> Vec<Device> {
            self.lists.message().await.unwrap().unwrap().devices
        }

        /// Waits until the plugin has ended.
        pub(in super::super) async fn ended(&mut self) {
            while let Ok(Some(_)) = self.lists.message().await {}
        }

        pub(in super::super) async fn allocate(
            &mut self,
            containers: &[Vec<String>],
        ) -> Result<Vec<ContainerAllocateResponse>, Status> {
            let containers = containers.iter().cloned();
            let container_requests =
                containers.map(|devices_ids| ContainerAllocateRequest { devices_ids }).collect();
            let allocated = self.client.allocate(AllocateRequest { container_requests }).await?;
            Ok(allocated.into_inner().container_responses)
        }

        /// As the kubelet does when it starts.
        pub(in super::super) fn forget(&self) {
            std::fs::remove_file(&self.socket).unwrap();
        }
    }
}
