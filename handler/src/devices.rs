//! This node's devices as resources of its Node: device plugins of the kubelet, with KubeVirt's names.
//!
//! Launcher Pods request KVM, so that they are scheduled to nodes that have one. Their containers get no device for it: the
//! node agent opens the device and passes it to the launcher. The other resources are for Pods of users, who may know them
//! from KubeVirt; their containers get the device.

mod connection;

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use futures_util::future::join_all;
use procfs::{CpuInfo, Current as _};
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
    Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest,
};
use vireo_proto::files::KVM;

use crate::command::Failure;
use crate::inotify::Inotify;

/// The kubelet's own socket in its directory of device plugins.
const KUBELET: &str = "kubelet.sock";
/// The version of the API.
const VERSION: &str = "v1beta1";
/// How many Pods of a node may have a device. As KubeVirt's; the devices themselves have no limit.
const DEVICES: usize = 1000;
/// How soon it is tried again where the kubelet does not answer.
const RETRY: Duration = Duration::from_secs(5);

/// A device of nodes that any number of Pods may share.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SharedDevice {
    name: &'static str,
    /// Its file.
    pub(crate) path: &'static str,
    /// Whether containers that request it get it.
    is_passed: bool,
}

/// All that a node may have.
pub(crate) const SHARED_DEVICES: [SharedDevice; 4] = [
    SharedDevice { name: "kvm", path: KVM, is_passed: false },
    SharedDevice { name: "tun", path: "/dev/net/tun", is_passed: true },
    SharedDevice { name: "vhost-net", path: "/dev/vhost-net", is_passed: true },
    SharedDevice { name: "vhost-vsock", path: "/dev/vhost-vsock", is_passed: true },
];

impl SharedDevice {
    /// The name of the resource.
    pub(crate) fn resource(&self) -> String {
        format!("devices.kubevirt.io/{}", self.name)
    }

    /// The socket of its plugin, in the kubelet's directory. KubeVirt's name.
    fn socket(&self) -> String {
        format!("kubevirt-{}.sock", self.name)
    }

    /// Whether this node has it. The kernel loads the module of a device that is opened.
    fn check(&self) -> Result<(), String> {
        match self.path {
            KVM => check_kvm(),
            path => open(path),
        }
    }

    /// What a container gets that requests it.
    fn specs(&self) -> Vec<DeviceSpec> {
        let spec = DeviceSpec {
            container_path: self.path.to_owned(),
            host_path: self.path.to_owned(),
            permissions: "rw".to_owned(),
        };
        if self.is_passed { vec![spec] } else { Vec::new() }
    }
}

/// Offers this node's devices to the kubelet until it is dropped. `directory` is the kubelet's directory of device plugins.
pub async fn run(directory: &Path) {
    join_all(SHARED_DEVICES.iter().map(|device| offer_again(device, directory))).await;
}

async fn offer_again(device: &SharedDevice, directory: &Path) {
    let resource = device.resource();
    if let Err(why) = device.check() {
        info!(resource, why, "this node does not have the device; Pods that request it run elsewhere");
        return;
    }
    loop {
        match offer(device, directory).await {
            Ok(()) => info!(resource, "the kubelet has forgotten the device; it is offered again"),
            Err(error) => {
                let error = &*error as &dyn std::error::Error;
                warn!(resource, error, "cannot offer the device to the kubelet; it is tried again");
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn open(path: &str) -> Result<(), String> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map(drop).map_err(|error| format!("{path}: {error}"))
}

/// Whether guests run in hardware here. Without that, `/dev/kvm` may exist and interpret guests.
pub(crate) fn check_kvm() -> Result<(), String> {
    open(KVM)?;
    let cpus = CpuInfo::current().map_err(|error| error.to_string())?;
    let flags = cpus.flags(0).unwrap_or_default();
    match flags.iter().any(|flag| ["vmx", "svm"].contains(flag)) {
        true => Ok(()),
        false => Err(format!("{KVM} runs guests in software: /proc/cpuinfo has neither vmx nor svm")),
    }
}

/// Serves the plugin of a device until the kubelet removes its socket, as it does when it starts.
async fn offer(device: &SharedDevice, directory: &Path) -> Result<(), Failure> {
    let socket = directory.join(device.socket());
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&socket)?;
    let inotify = Inotify::new()?;
    inotify.watch(directory, WatchFlags::DELETE | WatchFlags::DELETE_SELF)?;
    let server = Server::builder()
        .add_service(DevicePluginServer::new(Plugin::new(device)))
        .serve_with_incoming(UnixListenerStream::new(listener).map_ok(connection::of_kubelet));
    let registered = async {
        register(device, &directory.join(KUBELET)).await?;
        info!(resource = device.resource(), "offered the device to the kubelet");
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

async fn register(device: &SharedDevice, kubelet: &Path) -> Result<(), Failure> {
    let channel = Endpoint::try_from(format!("unix:{}", kubelet.display()))?.connect().await?;
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: device.socket(),
        resource_name: device.resource(),
        options: Some(DevicePluginOptions::default()),
    };
    RegistrationClient::new(channel).register(request).await?;
    Ok(())
}

/// Devices that never change.
struct Plugin {
    devices: watch::Sender<Result<ListAndWatchResponse, Status>>,
    /// What each container gets.
    specs: Vec<DeviceSpec>,
}

impl Plugin {
    fn new(shared: &SharedDevice) -> Self {
        let device = |number| Device { id: format!("{}{number}", shared.name), health: "Healthy".to_owned(), topology: None };
        let devices = (0..DEVICES).map(device).collect();
        Self { devices: watch::Sender::new(Ok(ListAndWatchResponse { devices })), specs: shared.specs() }
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
        let response = |_| ContainerAllocateResponse { envs: HashMap::new(), devices: self.specs.clone() };
        let container_responses = request.into_inner().container_requests.into_iter().map(response).collect();
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
    use vireo_api::names::KVM_RESOURCE;
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
        let tun = DeviceSpec {
            container_path: "/dev/net/tun".to_owned(),
            host_path: "/dev/net/tun".to_owned(),
            permissions: "rw".to_owned(),
        };
        let [kvm_device, tun_device, ..] = &SHARED_DEVICES;
        for (device, resource, specs) in
            [(kvm_device, KVM_RESOURCE, vec![]), (tun_device, "devices.kubevirt.io/tun", vec![tun])]
        {
            let kubelet = async {
                let request = registrations.recv().await.unwrap();
                assert_eq!((request.version.as_str(), request.resource_name.as_str()), (VERSION, resource));

                let socket = directory.path().join(&request.endpoint);
                let endpoint = Endpoint::try_from(format!("unix:{}", socket.display())).unwrap();
                let mut plugin = DevicePluginClient::new(endpoint.connect().await.unwrap());
                let mut lists = plugin.list_and_watch(Empty {}).await.unwrap().into_inner();
                let devices = lists.message().await.unwrap().unwrap().devices;
                assert_eq!(devices.len(), DEVICES);
                assert!(devices.iter().all(|device| device.health == "Healthy"));
                let container = ContainerAllocateRequest { devices_ids: vec![devices[0].id.clone()] };
                let request = AllocateRequest { container_requests: vec![container.clone(), container] };
                let allocated = plugin.allocate(request).await.unwrap().into_inner();
                let responses: Vec<_> =
                    allocated.container_responses.into_iter().map(|one| one.devices).collect();
                assert_eq!(responses, [specs.clone(), specs], "one for each container");

                std::fs::remove_file(&socket).unwrap();
            };
            let (offered, ()) = tokio::join!(offer(device, directory.path()), kubelet);
            offered.unwrap();
        }
    }

    #[test]
    fn devices_have_the_names_of_kubevirt() {
        let names = SHARED_DEVICES.iter().map(|device| (device.resource(), device.socket()));
        let kubevirt = ["kvm", "tun", "vhost-net", "vhost-vsock"];
        let kubevirt =
            kubevirt.map(|name| (format!("devices.kubevirt.io/{name}"), format!("kubevirt-{name}.sock")));
        assert_eq!(names.collect::<Vec<_>>(), kubevirt);
    }
}
