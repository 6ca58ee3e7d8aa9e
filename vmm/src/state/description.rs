//! What has to be equal of a saved VM's configuration and of the one that it is loaded into.

use crate::config::{Attachment, Blocks, Boot, Disk, Net, VmConfig};

/// Parts of a configuration by their names, as people read them.
pub(crate) type Description = Vec<(String, String)>;

/// Describes a configuration as far as the guest can see it. The kernel and its command line are not part of it: a guest
/// that runs has them in its RAM.
pub(crate) fn describe(config: &VmConfig) -> Description {
    let mut parts = vec![
        ("vCPUs".to_owned(), format!("{:?}", config.cpus)),
        ("RAM".to_owned(), format!("{} bytes", config.memory.bytes())),
        ("boot".to_owned(), boot(&config.boot).to_owned()),
    ];
    let mut add = |name: &str, value: String| parts.push((name.to_owned(), value));
    for (number, disk) in (1..).zip(&config.disks) {
        add(&format!("disk {number}"), describe_disk(disk));
    }
    for (number, net) in (1..).zip(&config.nets) {
        add(&format!("NIC {number}"), describe_nic(net));
    }
    for (number, input) in (1..).zip(&config.inputs) {
        add(&format!("input device {number}"), format!("{input:?}"));
    }
    for (name, there) in [
        ("virtio console", config.virtio_console),
        ("entropy device", config.rng),
        ("balloon", config.balloon.is_some()),
        ("port", config.port.is_some()),
        ("hotplug", config.hotplug.is_some()),
    ] {
        if there {
            add(name, "present".to_owned());
        }
    }
    for model in &config.panic_devices {
        add("pvpanic", model.to_string());
    }
    if config.watchdog.is_some() {
        add("watchdog", "i6300esb".to_owned());
    }
    if let Some(vsock) = &config.vsock {
        add("socket device", format!("context ID {}", vsock.cid()));
    }
    for (number, filesystem) in (1..).zip(&config.filesystems) {
        add(&format!("file system {number}"), format!("tag {:?}", filesystem.tag()));
    }
    if let Some(graphics) = &config.graphics {
        add("display adapter", format!("{:?}", graphics.adapter));
    }
    parts
}

fn boot(boot: &Boot) -> &'static str {
    match boot {
        Boot::Kernel(_) => "a kernel",
        Boot::Firmware(_) => "firmware",
    }
}

fn describe_disk(disk: &Disk) -> String {
    let bus = match disk.attachment() {
        Attachment::Virtio => {
            let blocks = disk.blocks();
            let sizes = if blocks == Blocks::default() { String::new() } else { format!(" and {blocks:?}") };
            format!("virtio disk with {} queues{sizes}", disk.queue_count())
        }
        Attachment::Sata(device) => format!("SATA {device}"),
        Attachment::Scsi(device) => format!("SCSI {device}"),
    };
    let access = if disk.is_read_only() { "read-only" } else { "writable" };
    let cache = if disk.is_write_through() { "write-through" } else { "write-back" };
    let serial = String::from_utf8_lossy(disk.id().as_bytes()).trim_end_matches('\0').to_owned();
    format!("{bus}, {access}, {cache}, serial {serial:?}")
}

fn describe_nic(net: &Net) -> String {
    let mtu = net.advertised_mtu().map_or_else(|| "no MTU".to_owned(), |mtu| format!("MTU {mtu}"));
    format!("{}, {} queue pairs, {mtu}", net.mac(), net.queue_pairs())
}

/// The first part that differs: its name, and what each side has.
pub(crate) fn first_difference<'a>(
    saved: &'a Description,
    given: &'a Description,
) -> Option<(&'a str, &'a str, &'a str)> {
    let find = |parts: &'a Description, name: &str| {
        parts.iter().find(|part| part.0 == name).map_or("", |part| part.1.as_str())
    };
    saved
        .iter()
        .chain(given)
        .map(|(name, _)| (name.as_str(), find(saved, name), find(given, name)))
        .find(|(_, one, other)| one != other)
}
