use serde_json::json;

use super::args::Args;
use super::escaped;
use super::stats::BALLOON;
use crate::launch::{Interface, Launch, NicPeer};
use vireo_vmconfig::{NicModel, Video};

/// NICs and all devices that are either there or not.
pub(super) fn devices(args: &mut Args, launch: &Launch, nics: &[Vec<i32>], vhost: &[Vec<i32>]) {
    for (index, interface) in launch.interfaces.iter().enumerate() {
        let of = |all: &[Vec<i32>]| all.get(index).cloned().unwrap_or_default();
        nic(args, interface, index, (&of(nics), &of(vhost)));
    }
    if launch.rng {
        args.json("-object", &json!({ "qom-type": "rng-random", "id": "rng", "filename": "/dev/urandom" }));
        args.json("-device", &json!({ "driver": "virtio-rng-pci", "rng": "rng" }));
    }
    if launch.memory_balloon {
        let reports = !launch.keep_free_pages;
        args.json(
            "-device",
            &json!({ "driver": "virtio-balloon-pci", "id": BALLOON, "free-page-reporting": reports }),
        );
    }
    for _ in 0..launch.tablets {
        args.json("-device", &json!({ "driver": "virtio-tablet-pci" }));
    }
    if let Some(video) = launch.video {
        let driver = match video {
            Video::Vga => "VGA",
            Video::Bochs => "bochs-display",
            Video::Virtio => "virtio-vga",
            Video::Cirrus => "cirrus-vga",
            Video::Ramfb => "ramfb",
        };
        args.json("-device", &json!({ "driver": driver }));
        if let Some(path) = &launch.vnc_socket {
            // A second connection must not end the first, whatever a viewer requests.
            args.option("-vnc", format!("unix:{},share=ignore", escaped(path)));
        }
    }
}

/// The id of the `index`th NIC.
pub(super) fn nic_id(index: usize) -> String {
    format!("device-net{index}")
}

/// `queues` are the inherited descriptors, for a tap that the launcher has open, or the socket to passt; `vhost` are those of the
/// node's vhost-net, if it moves the queues.
fn nic(args: &mut Args, interface: &Interface, index: usize, (queues, vhost): (&[i32], &[i32])) {
    let net = format!("net{index}");
    let mut netdev = match (&interface.peer, queues) {
        (NicPeer::Passt, sockets) => {
            let socket = sockets.first().map(ToString::to_string).unwrap_or_default();
            json!({ "type": "stream", "id": net, "server": false, "addr": { "type": "fd", "str": socket } })
        }
        (NicPeer::Tap { device, .. }, []) => json!({
            "type": "tap", "id": net, "ifname": device, "script": "no", "downscript": "no",
        }),
        (NicPeer::Tap { .. }, [fd]) => json!({ "type": "tap", "id": net, "fd": fd.to_string() }),
        (NicPeer::Tap { .. }, several) => {
            json!({ "type": "tap", "id": net, "fds": list(several) })
        }
    };
    let mut pairs = queues.len();
    if queues.is_empty() && interface.model == NicModel::Virtio {
        // Other NICs have no use for offload headers.
        netdev["vnet_hdr"] = json!(true);
        pairs = interface.queue_pairs;
        if pairs > 1 {
            netdev["queues"] = json!(pairs);
        }
    }
    if !vhost.is_empty() && interface.model == NicModel::Virtio {
        netdev["vhost"] = json!(true);
        match (queues.len(), vhost) {
            // QEMU opens it as it opens the tap: with several queues, or with one.
            (0, _) => {}
            (1, [fd, ..]) => netdev["vhostfd"] = json!(fd.to_string()),
            (several, _) => netdev["vhostfds"] = json!(list(vhost.get(..several).unwrap_or(vhost))),
        }
    }
    args.json("-netdev", &netdev);
    let driver = match interface.model {
        NicModel::Virtio => "virtio-net-pci",
        NicModel::E1000 => "e1000",
        NicModel::E1000e => "e1000e",
        NicModel::Igb => "igb",
        NicModel::Ne2kPci => "ne2k_pci",
        NicModel::Pcnet => "pcnet",
        NicModel::Rtl8139 => "rtl8139",
    };
    let mut device = json!({
        "driver": driver, "id": nic_id(index), "netdev": net, "mac": interface.mac.to_string(),
    });
    if let (NicModel::Virtio, Some(mtu)) = (interface.model, interface.mtu) {
        device["host_mtu"] = json!(mtu);
    }
    if pairs > 1 {
        device["mq"] = json!(true);
        // One for each queue, one for the control queue, one for changes of the configuration.
        device["vectors"] = json!(2 * pairs + 2);
    }
    match interface.boot_order {
        Some(order) => device["bootindex"] = json!(order),
        // No network boot: then the ROM image need not be installed either.
        None => device["romfile"] = json!(""),
    }
    if let Some(index) = interface.acpi_index {
        device["acpi-index"] = json!(index);
    }
    args.device(device, interface.pci_slot);
}

/// Descriptors as QEMU lists them.
fn list(fds: &[i32]) -> String {
    fds.iter().map(ToString::to_string).collect::<Vec<_>>().join(":")
}
