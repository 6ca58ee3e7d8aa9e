//! This node's KVM as a resource of its Node: a device plugin of the kubelet.
//!
//! Pods that request [`KVM_RESOURCE`] are scheduled to nodes that have a KVM, and no other Pods need to be kept off. A
//! container gets no device for it: the node agent opens the device and passes it to the launcher.

mod connection;

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use procfs::{CpuInfo, Current as _};
use rustix::fs::inotify::WatchFlags;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};
use tracing::{info, warn};
use vireo_api::names::KVM_RESOURCE;
use vireo_proto::device_plugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use vireo_proto::device_plugin::registration_client::RegistrationClient;
use vireo_proto::device_plugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device, DevicePluginOptions, Empty,
    ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, RegisterRequest,
};
use vireo_proto::files::KVM;

use crate::command::Failure;
use crate::inotify::Inotify;

/// The kubelet's own socket in its directory of device plugins.
const KUBELET: &str = "kubelet.sock";
/// The socket of this plugin, in the same directory. KubeVirt's name.
const SOCKET: &str = "kubevirt-kvm.sock";
/// The version of the API.
const VERSION: &str = "v1beta1";
/// How many Pods of a node may have KVM. As KubeVirt's; the device itself has no limit.
const DEVICES: usize = 1000;
/// How soon it is tried again where the kubelet does not answer.
const RETRY: Duration = Duration::from_secs(5);

/// Offers this node's KVM to the kubelet until it is dropped. `directory` is the kubelet's directory of device plugins.
pub async fn run(directory: &Path) {
    if let Err(why) = usable() {
        info!(why, "this node has no KVM: only VMIs that may be emulated run here");
        return std::future::pending().await;
    }
    loop {
        match offer(directory).await {
            Ok(()) => info!("the kubelet has forgotten this node's KVM; it is offered again"),
            Err(error) => {
                let error = &*error as &dyn std::error::Error;
                warn!(error, "cannot offer this node's KVM to the kubelet; it is tried again");
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Whether guests run in hardware here. Without that, `/dev/kvm` may exist and interpret guests.
fn usable() -> Result<(), String> {
    OpenOptions::new().read(true).write(true).open(KVM).map_err(|error| format!("{KVM}: {error}"))?;
    let cpus = CpuInfo::current().map_err(|error| error.to_string())?;
    let flags = cpus.flags(0).unwrap_or_default();
    match flags.iter().any(|flag| ["vmx", "svm"].contains(flag)) {
        true => Ok(()),
        false => Err(format!("{KVM} runs guests in software: /proc/cpuinfo has neither vmx nor svm")),
    }
}

/// Serves the plugin until the kubelet removes its socket, as it does when it starts.
async fn offer(directory: &Path) -> Result<(), Failure> {
    let socket = directory.join(SOCKET);
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&socket)?;
    let inotify = Inotify::new()?;
    inotify.watch(directory, WatchFlags::DELETE | WatchFlags::DELETE_SELF)?;
    let server = Server::builder()
        .add_service(DevicePluginServer::new(Plugin::new(DEVICES)))
        .serve_with_incoming(UnixListenerStream::new(listener).map_ok(connection::of_kubelet));
    let registered = async {
        register(&directory.join(KUBELET)).await?;
        info!(resource = KVM_RESOURCE, "offered this node's KVM to the kubelet");
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

async fn register(kubelet: &Path) -> Result<(), Failure> {
    let channel = Endpoint::try_from(format!("unix:{}", kubelet.display()))?.connect().await?;
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: SOCKET.to_owned(),
        resource_name: KVM_RESOURCE.to_owned(),
        options: Some(DevicePluginOptions::default()),
    };
    RegistrationClient::new(channel).register(request).await?;
    Ok(())
}

/// Devices that never change.
struct Plugin {
    devices: watch::Sender<Result<ListAndWatchResponse, Status>>,
}

impl Plugin {
    fn new(count: usize) -> Self {
        let device = |number| Device { id: format!("kvm{number}"), health: "Healthy".to_owned() };
        let devices = (0..count).map(device).collect();
        Self { devices: watch::Sender::new(Ok(ListAndWatchResponse { devices })) }
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    type ListAndWatchStream = WatchStream<Result<ListAndWatchResponse, Status>>;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        Ok(Response::new(WatchStream::new(self.devices.subscribe())))
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
        let nothing = |_| ContainerAllocateResponse {};
        let container_responses = request.into_inner().container_requests.into_iter().map(nothing).collect();
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use vireo_proto::device_plugin::ContainerAllocateRequest;
    use vireo_proto::device_plugin::device_plugin_client::DevicePluginClient;
    use vireo_proto::device_plugin::registration_server::{Registration, RegistrationServer};

    use super::*;

    /// The kubelet's side.
    struct Kubelet(mpsc::UnboundedSender<RegisterRequest>);

    #[tonic::async_trait]
    impl Registration for Kubelet {
        async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
            let _ = self.0.send(request.into_inner());
            Ok(Response::new(Empty {}))
        }
    }

    #[tokio::test]
    async fn a_kubelet_gets_devices_until_it_removes_the_socket() {
        let directory = tempfile::tempdir().unwrap();
        let (registered, mut registrations) = mpsc::unbounded_channel();
        let listener = UnixListener::bind(directory.path().join(KUBELET)).unwrap();
        let kubelet = Server::builder().add_service(RegistrationServer::new(Kubelet(registered)));
        tokio::spawn(kubelet.serve_with_incoming(UnixListenerStream::new(listener)));
        let kubelet = async {
            let request = registrations.recv().await.unwrap();
            assert_eq!((request.version.as_str(), request.resource_name.as_str()), (VERSION, KVM_RESOURCE));

            let socket = directory.path().join(&request.endpoint);
            let channel = Endpoint::try_from(format!("unix:{}", socket.display())).unwrap().connect().await;
            let mut plugin = DevicePluginClient::new(channel.unwrap());
            let mut lists = plugin.list_and_watch(Empty {}).await.unwrap().into_inner();
            let devices = lists.message().await.unwrap().unwrap().devices;
            assert_eq!(devices.len(), DEVICES);
            assert!(devices.iter().all(|device| device.health == "Healthy"));
            let container = ContainerAllocateRequest { devices_ids: vec!["kvm0".to_owned()] };
            let request = AllocateRequest { container_requests: vec![container.clone(), container] };
            let allocated = plugin.allocate(request).await.unwrap().into_inner();
            assert_eq!(allocated.container_responses.len(), 2, "one for each container");

            std::fs::remove_file(&socket).unwrap();
        };
        let (offered, ()) = tokio::join!(offer(directory.path()), kubelet);
        offered.unwrap();
    }
}
