//! Addresses of PCI devices on the root bus of QEMU's q35 machine.
//!
//! QEMU assigns every device the first free slot, in the order of the command line. Where there are more devices than
//! slots, virtio disks share slots, eight functions in each, in the last free slots: so they keep their order,
//! and every other device keeps the slot that it would have had.

use serde_json::{Value, json};

use super::blockdev::AHCI_PORTS;
use crate::launch::Launch;
use vireo_vmconfig::{DiskBus, Video};

/// The slot of the ports that volumes and NICs are attached to: the last one before the board's own devices.
const HOTPLUG_SLOT: usize = 0x1e;
/// Functions of a slot.
const FUNCTIONS: usize = 8;

/// A port in that slot, which a device can be attached to. The first function comes first.
pub(super) fn hotplug_port(id: &str, function: usize) -> Value {
    json!({
        "driver": "pcie-root-port", "id": id, "chassis": function + 1, "slot": function + 1,
        "addr": format!("{HOTPLUG_SLOT:x}.{function}"), "multifunction": true,
    })
}

/// Where the virtio disks of a VM go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Each to the next free slot.
    OnePerSlot,
    /// Eight to a slot, from this one on.
    Shared {
        /// The first of their slots.
        first: usize,
    },
}

impl Layout {
    /// `agent`: there is a port for the guest agent.
    pub(super) fn of(launch: &Launch, agent: bool) -> Self {
        let disks = count(launch, DiskBus::Virtio);
        // The host bridge has slot 0.
        let end = if launch.hotplug { HOTPLUG_SLOT } else { HOTPLUG_SLOT + 1 };
        if disks + other_devices(launch, agent) < end {
            return Self::OnePerSlot;
        }
        // Admission limits the number of devices; beyond that QEMU reports which device does not fit.
        Self::Shared { first: end.saturating_sub(disks.div_ceil(FUNCTIONS)) }
    }

    /// Assigns the address of a virtio disk; `index` counts only these.
    pub(super) fn assign(self, device: &mut Value, index: usize) {
        if let Self::Shared { first } = self {
            device["addr"] = json!(format!("{:x}.{}", first + index / FUNCTIONS, index % FUNCTIONS));
            device["multifunction"] = json!(true);
        }
    }
}

fn count(launch: &Launch, bus: DiskBus) -> usize {
    launch.disks.iter().filter(|disk| disk.bus == bus).count()
}

/// Devices on the root bus that take a slot each: all but virtio disks.
fn other_devices(launch: &Launch, agent: bool) -> usize {
    // The board has a SATA controller of its own.
    let sata_controllers = count(launch, DiskBus::Sata).div_ceil(AHCI_PORTS).saturating_sub(1);
    // A framebuffer in the guest's memory is on no bus.
    let adapter = launch.video.is_some_and(|video| video != Video::Ramfb);
    let single = [
        launch.hotplug || count(launch, DiskBus::Scsi) > 0,
        count(launch, DiskBus::Usb) > 0,
        launch.rng,
        launch.memory_balloon,
        adapter,
        agent,
    ];
    let tablets = usize::try_from(launch.tablets).unwrap_or(usize::MAX);
    let extra = launch.extra_devices.iter().map(|request| request.device.pci_slots()).sum::<usize>();
    let single = single.into_iter().filter(|there| *there).count();
    [sata_controllers, launch.interfaces.len(), launch.filesystems.len(), tablets, extra]
        .into_iter()
        .fold(single, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use vireo_vmconfig::{DeviceRequest, DiskSource, ExtraDevice, PanicModel, SoundModel, WatchdogAction};

    use super::*;
    use crate::launch::{Disk, sample};

    /// A VM with a NIC, an entropy device and an agent's port, and these disks.
    fn launch(virtio: usize, sata: usize, hotplug: bool) -> Launch {
        let disk =
            |bus| Disk { bus, source: DiskSource::Raw("/d".into()), ..sample::kernel_boot().disks.remove(0) };
        let disks = std::iter::repeat_n(disk(DiskBus::Virtio), virtio)
            .chain(std::iter::repeat_n(disk(DiskBus::Sata), sata))
            .collect();
        Launch { disks, hotplug, ..sample::kernel_boot() }
    }

    #[test]
    fn disks_share_slots_only_where_there_are_too_few() {
        use Layout::{OnePerSlot, Shared};
        for (virtio, sata, hotplug, expected) in [
            (0, 0, false, OnePerSlot),
            // 30 slots, of which the NIC, the entropy device and the agent's port have one each.
            (27, 0, false, OnePerSlot),
            (28, 0, false, Shared { first: 0x1f - 4 }),
            (27, 6, false, OnePerSlot),
            (27, 7, false, Shared { first: 0x1f - 4 }),
            (26, 12, false, OnePerSlot),
            // One slot for the ports, one for the SCSI controller.
            (25, 0, true, OnePerSlot),
            (26, 0, true, Shared { first: 0x1e - 4 }),
            (60, 0, true, Shared { first: 0x1e - 8 }),
            (200, 0, true, Shared { first: 0x1e - 25 }),
        ] {
            let layout = Layout::of(&launch(virtio, sata, hotplug), true);
            assert_eq!(layout, expected, "{virtio} virtio, {sata} sata, hotplug {hotplug}");
        }
    }

    #[test]
    fn functions_are_counted_in_the_order_of_the_disks() {
        let layout = Layout::of(&launch(60, 0, true), true);
        let address = |index| {
            let mut device = json!({});
            layout.assign(&mut device, index);
            device["addr"].as_str().unwrap_or_default().to_owned()
        };
        assert_eq!([0, 7, 8, 59].map(address), ["16.0", "16.7", "17.0", "1d.3"]);
        let mut device = json!({});
        Layout::OnePerSlot.assign(&mut device, 3);
        assert_eq!(device, json!({}));
    }

    #[test]
    fn what_is_on_other_buses_takes_no_slot() {
        let mut launch = Launch { rng: false, ..launch(0, 0, false) };
        launch.interfaces.clear();
        for (device, slots) in [
            (ExtraDevice::Watchdog(WatchdogAction::Reset), 1),
            (ExtraDevice::UsbTablet, 1),
            (ExtraDevice::UsbRedirection, 1),
            (ExtraDevice::Sound(SoundModel::Ich9), 1),
            (ExtraDevice::Panic(PanicModel::Isa), 0),
            (ExtraDevice::Hpet, 0),
        ] {
            launch.extra_devices = vec![DeviceRequest { field: "spec.x".to_owned(), device }];
            assert_eq!(other_devices(&launch, false), slots, "{device}");
        }
        launch.extra_devices.clear();
        for (video, devices) in [(None, 0), (Some(Video::Vga), 1), (Some(Video::Ramfb), 0)] {
            launch.video = video;
            assert_eq!(other_devices(&launch, false), devices, "{video:?}");
        }
    }
}
