//! How many devices a VM can have: what does not fit is rejected before anything is started.

use std::collections::BTreeSet;

use vireo_vmconfig::{DiskBus, NATIVE_HOTPLUG_SLOTS, NATIVE_SLOTS, SATA_PORTS, Video};

use super::report::Findings;
use super::{Disk, Field, HypervisorChoice, Interface};
use crate::v1;

/// The longest list, by KubeVirt's CustomResourceDefinitions.
const LONGEST_LIST: usize = 256;
/// Slots on the root PCI bus of QEMU's q35 machine beside the host bridge and the chipset's own devices. One more is for
/// the ports that volumes are plugged into.
const QEMU_SLOTS: usize = 29;
/// Virtio disks that share a slot where there are too few slots.
const DISKS_PER_SLOT: usize = 8;
/// Drives that QEMU attaches to a USB controller and its hubs.
const USB_DRIVES: usize = 32;
/// Virtio disks that can be attached with QEMU.
const HOTPLUG_PORTS: usize = 4;
/// Virtio tablets that a launcher attaches.
const TABLETS: usize = 8;

/// What is attached beside disks.
#[derive(Debug)]
pub(super) struct Attached {
    /// Volumes may be attached.
    pub(super) hotplug: bool,
    pub(super) interfaces: usize,
    pub(super) filesystems: usize,
    pub(super) rng: bool,
    pub(super) balloon: bool,
    pub(super) video: Option<Video>,
    pub(super) tablets: usize,
    /// Devices have a slot that the manifest chooses.
    pub(super) has_fixed_slots: bool,
}

/// Rejects lists that are longer than KubeVirt's. `disks` are those of the VM: volumes without a disk get one.
pub(super) fn lists(spec: &v1::VirtualMachineInstanceSpec, disks: &[Disk], found: &mut Findings) {
    let devices = &spec.domain.devices;
    for (field, count) in [
        ("domain.devices.disks", devices.disks.len()),
        ("domain.devices.interfaces", devices.interfaces.len()),
        ("volumes", spec.volumes.len()),
        ("networks", spec.networks.len()),
        ("utilityVolumes", spec.utility_volumes.len()),
        ("accessCredentials", spec.access_credentials.len()),
    ] {
        if count > LONGEST_LIST {
            found.too_many(&Field::new("spec").at(field), count, LONGEST_LIST, "");
        }
    }
    // Where neither list is too long by itself.
    if disks.len() > LONGEST_LIST && devices.disks.len().max(spec.volumes.len()) <= LONGEST_LIST {
        let which = ", with those of volumes without a disk";
        found.too_many(&Field::new("spec.domain.devices.disks"), disks.len(), LONGEST_LIST, which);
    }
}

/// Rejects slots that two devices have. Whether there are any.
pub(super) fn slots(disks: &[Disk], interfaces: &[Interface], found: &mut Findings) -> bool {
    let mut taken = BTreeSet::new();
    let disks = disks.iter().filter_map(|disk| {
        let field = Field::new(disk.config().field.strip_suffix(".bus").unwrap_or(&disk.config().field));
        Some((field.at("pciAddress"), disk.config().tuning.pci_slot?))
    });
    let interfaces = interfaces
        .iter()
        .filter_map(|interface| Some((interface.field().at("pciAddress"), interface.pci_slot()?)));
    for (field, slot) in disks.chain(interfaces) {
        if !taken.insert(slot) {
            found.duplicate_value(&field, &slot.to_string());
        }
    }
    !taken.is_empty()
}

/// Rejects more devices than a hypervisor has slots for: native where the VMI insists on it, else QEMU, which is chosen
/// where native has too little.
pub(super) fn validate(disks: &[Disk], attached: &Attached, chosen: HypervisorChoice, found: &mut Findings) {
    let at = Field::new("spec.domain.devices");
    if attached.tablets > TABLETS {
        found.too_many(&at.at("inputs"), attached.tablets, TABLETS, " on the bus virtio");
    }
    let at = at.at("disks");
    let count = |bus: DiskBus, hotpluggable: bool| {
        disks.iter().filter(|disk| disk.config().bus == bus && disk.is_hotpluggable() == hotpluggable).count()
    };
    let hotpluggable = count(DiskBus::Virtio, true);
    if hotpluggable > HOTPLUG_PORTS {
        found.too_many(&at, hotpluggable, HOTPLUG_PORTS, " that are hotpluggable on the bus virtio");
    }
    let [virtio, sata, scsi, usb] =
        [DiskBus::Virtio, DiskBus::Sata, DiskBus::Scsi, DiskBus::Usb].map(|bus| count(bus, false));
    if usb > USB_DRIVES {
        found.too_many(&at, usb, USB_DRIVES, " on the bus usb");
    }
    let extra = found.extra_devices.iter().map(|request| request.device.pci_slots()).sum();
    if chosen == HypervisorChoice::Native {
        if sata > SATA_PORTS {
            found.too_many(&at, sata, SATA_PORTS, " on the bus sata with the hypervisor native");
        }
        let plugged = disks.iter().filter(|disk| disk.is_hotpluggable()).count();
        if plugged > NATIVE_HOTPLUG_SLOTS {
            let which = " that are hotpluggable with the hypervisor native";
            found.too_many(&at, plugged, NATIVE_HOTPLUG_SLOTS, which);
        }
        let single = flags(&[attached.rng, attached.balloon, scsi > 0]);
        let others = [attached.interfaces, attached.filesystems, attached.tablets, single, AGENT, extra];
        let adapter = usize::from(attached.video.is_some());
        fit(virtio, (others.iter().sum::<usize>() + adapter, NATIVE_SLOTS), 1, (&at, found));
        return;
    }
    // A framebuffer in the guest's memory is on no bus.
    let adapter = attached.video.is_some_and(|video| video != Video::Ramfb);
    let single = [attached.hotplug || scsi > 0, usb > 0, attached.rng, attached.balloon, adapter];
    let others = [
        flags(&single),
        AGENT,
        attached.interfaces,
        attached.filesystems,
        attached.tablets,
        sata.div_ceil(SATA_PORTS).saturating_sub(1),
        extra,
        found.host_devices.len(),
    ];
    // Disks do not share slots where some are taken by choice.
    let per_slot = if attached.has_fixed_slots { 1 } else { DISKS_PER_SLOT };
    fit(virtio, (others.iter().sum(), QEMU_SLOTS), per_slot, (&at, found));
}

/// The serial device with the guest agent's port.
const AGENT: usize = 1;

fn flags(flags: &[bool]) -> usize {
    flags.iter().filter(|flag| **flag).count()
}

/// Rejects virtio disks that do not fit into the slots that `others` leave, so many to a slot.
fn fit(disks: usize, (others, slots): (usize, usize), per_slot: usize, (at, found): (&Field, &mut Findings)) {
    if others > slots {
        found.too_many(&Field::new("spec.domain.devices"), others, slots, " on the PCI bus");
        return;
    }
    let most = (slots - others).saturating_mul(per_slot);
    if disks > most {
        found.too_many(at, disks, most, " on the bus virtio");
    }
}
