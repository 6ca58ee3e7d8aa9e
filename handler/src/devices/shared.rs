//! Devices that any number of Pods may share.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;
use procfs::{CpuInfo, Current as _};
use tokio::sync::{Notify, watch};
use tracing::info;
use vireo_proto::device_plugin::{ContainerAllocateResponse, Device, DeviceSpec};
use vireo_proto::files::{KVM, VHOST_NET, VHOST_VSOCK};

use crate::live_settings::LiveSettings;

use super::plugin::{Offer, device, offer_again, spec};

/// How many Pods of a node may have a device, unless `virtualMachineInstancesPerNode` says otherwise. As KubeVirt's; the
/// devices themselves have no limit.
const DEVICES: usize = 1000;
/// The most: a kubelet takes a list of limited length.
const MOST_DEVICES: usize = 10_000;

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
    SharedDevice { name: "vhost-net", path: VHOST_NET, is_passed: true },
    SharedDevice { name: "vhost-vsock", path: VHOST_VSOCK, is_passed: true },
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
        if self.is_passed { vec![spec(self.path)] } else { Vec::new() }
    }

    /// As many devices as the settings say.
    fn devices(&self, settings: &LiveSettings) -> Vec<Device> {
        let count = settings.instances_per_node().unwrap_or(DEVICES).min(MOST_DEVICES);
        (0..count).map(|number| device(format!("{}{number}", self.name), true, None)).collect()
    }

    /// Devices that stay as long as their sender is there.
    pub(super) fn offer(&self, settings: &LiveSettings) -> (watch::Sender<Vec<Device>>, Offer) {
        let devices = watch::Sender::new(self.devices(settings));
        let specs = self.specs();
        let offer = Offer {
            resource: self.resource(),
            socket: self.socket(),
            devices: devices.subscribe(),
            allocate: Box::new(move |_| {
                Ok(ContainerAllocateResponse {
                    devices: specs.clone(),
                    ..ContainerAllocateResponse::default()
                })
            }),
        };
        (devices, offer)
    }

    /// Sends the devices again if the settings say another number of them.
    fn update(&self, devices: &watch::Sender<Vec<Device>>, settings: &LiveSettings) {
        let now = self.devices(settings);
        devices.send_if_modified(|before| {
            let is_another = before.len() != now.len();
            if is_another {
                *before = now;
            }
            is_another
        });
    }
}

/// Offers those that this node has until it is dropped.
pub(super) async fn run(directory: &Path, settings: &LiveSettings) {
    join_all(SHARED_DEVICES.iter().map(async |device| {
        let resource = device.resource();
        match device.check() {
            Ok(()) => {
                let changed = Arc::new(Notify::new());
                let notified = Arc::clone(&changed);
                settings.on_change(move || notified.notify_one());
                let (devices, offer) = device.offer(settings);
                let offer = offer.into();
                let update = async {
                    loop {
                        changed.notified().await;
                        device.update(&devices, settings);
                    }
                };
                tokio::join!(offer_again(&offer, directory), update);
            }
            Err(why) => {
                info!(
                    resource,
                    why, "this node does not have the device; Pods that request it run elsewhere"
                );
            }
        }
    }))
    .await;
}

fn open(path: &str) -> Result<(), String> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map(drop).map_err(|error| format!("{path}: {error}"))
}

/// Whether guests run in hardware here. Without that, `/dev/kvm` may exist and interpret guests.
///
/// # Errors
/// Why they do not.
pub fn check_kvm() -> Result<(), String> {
    open(KVM)?;
    let cpus = CpuInfo::current().map_err(|error| error.to_string())?;
    let flags = cpus.flags(0).unwrap_or_default();
    match flags.iter().any(|flag| ["vmx", "svm"].contains(flag)) {
        true => Ok(()),
        false => Err(format!("{KVM} runs guests in software: /proc/cpuinfo has neither vmx nor svm")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_api::names::KVM_RESOURCE;

    use super::*;
    use crate::devices::plugin::fake::{self, Kubelet};

    #[tokio::test]
    async fn a_kubelet_gets_devices_until_it_removes_the_socket() {
        let mut kubelet = Kubelet::start();
        let [kvm_device, tun_device, ..] = &SHARED_DEVICES;
        for (device, resource, specs) in [
            (kvm_device, KVM_RESOURCE, vec![]),
            (tun_device, "devices.kubevirt.io/tun", vec![spec("/dev/net/tun")]),
        ] {
            let directory = kubelet.directory.path().to_owned();
            let (_devices, offer) = device.offer(&LiveSettings::fixed());
            let asked = async {
                let mut plugin = kubelet.registered(resource).await;
                let devices = plugin.devices().await;
                assert_eq!(devices.len(), DEVICES);
                assert!(devices.iter().all(|device| device.health == "Healthy"));
                let id = devices[0].id.clone();
                let responses = plugin.allocate(&[vec![id.clone()], vec![id]]).await.unwrap();
                let responses: Vec<_> = responses.into_iter().map(|one| one.devices).collect();
                assert_eq!(responses, [specs.clone(), specs], "one for each container");
                plugin.forget();
            };
            let (offered, ()) = tokio::join!(fake::offer(offer, &directory), asked);
            offered.unwrap();
        }
    }

    #[tokio::test]
    async fn a_kubelet_gets_as_many_devices_as_are_configured() {
        let settings =
            |count: usize| LiveSettings::of_a_test(json!({"virtualMachineInstancesPerNode": count}));
        let [device, ..] = &SHARED_DEVICES;
        let (devices, _offer) = device.offer(&settings(3));
        assert_eq!(devices.borrow().len(), 3);
        let mut changes = devices.subscribe();
        device.update(&devices, &settings(3));
        assert!(!changes.has_changed().unwrap());
        device.update(&devices, &settings(5));
        assert_eq!(changes.borrow_and_update().len(), 5);
        device.update(&devices, &settings(1_000_000));
        assert_eq!(changes.borrow_and_update().len(), MOST_DEVICES);
        device.update(&devices, &LiveSettings::fixed());
        assert_eq!(changes.borrow_and_update().len(), DEVICES);
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
