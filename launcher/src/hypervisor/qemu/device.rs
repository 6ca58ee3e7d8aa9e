use serde_json::{Value, json};

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

/// Descriptors of a NIC: numbers of inherited ones, or names of those that QEMU was given since.
#[derive(Clone, Copy)]
pub(super) struct Backend<'a> {
    /// Of the queues of a tap that the launcher has open, or the socket to passt.
    pub(super) queues: &'a [String],
    /// Of the node's vhost-net, if it moves the queues.
    pub(super) vhost: &'a [String],
}

/// `queues` and `vhost` are the inherited descriptors.
fn nic(args: &mut Args, interface: &Interface, index: usize, (queues, vhost): (&[i32], &[i32])) {
    let names = |fds: &[i32]| fds.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (queues, vhost) = (names(queues), names(vhost));
    let net = format!("net{index}");
    args.json("-netdev", &backend(interface, &net, Backend { queues: &queues, vhost: &vhost }));
    let opens_itself = queues.is_empty() && interface.model == NicModel::Virtio;
    let pairs = if opens_itself { interface.queue_pairs } else { queues.len() };
    args.device(nic_device(interface, (&nic_id(index), &net), pairs), interface.pci_slot);
}

/// The back end of a NIC.
pub(super) fn backend(interface: &Interface, net: &str, Backend { queues, vhost }: Backend<'_>) -> Value {
    let mut netdev = match (&interface.peer, queues) {
        (NicPeer::Passt, sockets) => {
            let socket = sockets.first().cloned().unwrap_or_default();
            json!({ "type": "stream", "id": net, "server": false, "addr": { "type": "fd", "str": socket } })
        }
        (NicPeer::Tap { device, .. }, []) => json!({
            "type": "tap", "id": net, "ifname": device, "script": "no", "downscript": "no",
        }),
        (NicPeer::Tap { .. }, [fd]) => json!({ "type": "tap", "id": net, "fd": fd }),
        (NicPeer::Tap { .. }, several) => json!({ "type": "tap", "id": net, "fds": several.join(":") }),
    };
    if queues.is_empty() && interface.model == NicModel::Virtio {
        // Other NICs have no use for offload headers.
        netdev["vnet_hdr"] = json!(true);
        if interface.queue_pairs > 1 {
            netdev["queues"] = json!(interface.queue_pairs);
        }
    }
    if !vhost.is_empty() && interface.model == NicModel::Virtio {
        netdev["vhost"] = json!(true);
        match (queues.len(), vhost) {
            // QEMU opens it as it opens the tap: with several queues, or with one.
            (0, _) => {}
            (1, [fd, ..]) => netdev["vhostfd"] = json!(fd),
            (several, _) => netdev["vhostfds"] = json!(vhost.get(..several).unwrap_or(vhost).join(":")),
        }
    }
    netdev
}

/// The device of a NIC, which has an id, on a back end. It has so many queue pairs.
pub(super) fn nic_device(interface: &Interface, (id, net): (&str, &str), pairs: usize) -> Value {
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
        "driver": driver, "id": id, "netdev": net, "mac": interface.mac.to_string(),
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
    device
}
