//! This node's devices as resources of its Node: device plugins of the kubelet, with KubeVirt's names.
//!
//! Launcher Pods request KVM, so that they are scheduled to nodes that have one. Their containers get no device for it: the
//! node agent opens the device and passes it to the launcher. The other shared devices are for Pods of users, who may know
//! them from KubeVirt; their containers get the device. Devices of the host that guests may have ([`permitted`]) are for
//! launcher Pods, whose containers get the devices themselves: QEMU opens them by their paths.

mod connection;
mod discover;
mod permitted;
mod plugin;
mod shared;

use std::path::Path;

use crate::live_settings::LiveSettings;

pub(crate) use discover::Sysfs;
#[cfg(test)]
pub(crate) use discover::fake;
pub(crate) use permitted::{MEDIATED, PCI, USB, variable};
pub(crate) use shared::SHARED_DEVICES;
pub use shared::check_kvm;

/// Offers this node's devices to the kubelet until it is dropped. `directory` is the kubelet's directory of device plugins.
pub async fn run(directory: &Path, settings: &LiveSettings) {
    tokio::join!(shared::run(directory, settings), permitted::run(directory, settings));
}
