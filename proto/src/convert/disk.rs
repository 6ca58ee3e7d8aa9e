use std::path::Path;

use vireo_vmconfig::{
    BlockSize, CacheMode, Disk, DiskBus, DiskDevice, DiskSource, DiskTuning, ErrorPolicy, IoMode, PciSlot,
};

use super::{Problems, enums};
use crate::launcher as wire;
use wire::disk::block_size::{Custom, Size, Volume};
use wire::disk_source::{NoMedium, Overlay, Qcow2, Raw, Source};

enums!(wire::disk::Bus, DiskBus, { Virtio = Virtio, Sata = Sata, Scsi = Scsi, Usb = Usb });
enums!(wire::disk::Cache, CacheMode, { None = None, Writethrough = WriteThrough, Writeback = WriteBack });
enums!(wire::disk::IoMode, IoMode, { Native = Native, Threads = Threads });
enums!(wire::disk::ErrorPolicy, ErrorPolicy, {
    Stop = Stop, Report = Report, Ignore = Ignore, Enospace = Enospace,
});

impl From<&Disk<DiskSource>> for wire::Disk {
    fn from(disk: &Disk<DiskSource>) -> Self {
        Self {
            name: disk.name.clone(),
            field: disk.field.clone(),
            bus: wire::disk::Bus::from(disk.bus).into(),
            read_only: disk.read_only,
            cdrom: disk.is_cdrom(),
            serial: disk.serial.clone(),
            boot_order: disk.boot_order.unwrap_or(0),
            source: Some((&disk.source).into()),
            cache: wire::disk::Cache::from(disk.cache).into(),
            error_policy: wire::disk::ErrorPolicy::from(disk.error_policy).into(),
            io: disk.io.map_or(wire::disk::IoMode::Unspecified, Into::into).into(),
            block_size: block_size_message(disk.tuning.block_size),
            dedicated_io_thread: disk.tuning.dedicated_io_thread,
            multi_queue: disk.tuning.multi_queue,
            pci_slot: disk.tuning.pci_slot.map_or(0, |slot| slot.number().into()),
            shareable: disk.tuning.shareable,
            scsi_passthrough: disk.tuning.scsi_passthrough,
        }
    }
}

/// A disk from its message at the path `at`; `None` if a required part has a problem.
pub fn disk(problems: &mut Problems, at: &str, disk: wire::Disk) -> Option<Disk<DiskSource>> {
    let bus = problems.value::<wire::disk::Bus, _>(&format!("{at}.bus"), disk.bus)?;
    if bus.is_none() {
        problems.add(at, "no bus");
    }
    let cache = problems.value::<wire::disk::Cache, _>(&format!("{at}.cache"), disk.cache)?;
    let cache: CacheMode = cache.unwrap_or_default();
    let io_at = format!("{at}.io");
    let io = problems.value::<wire::disk::IoMode, _>(&io_at, disk.io)?;
    if !cache.supports(io) {
        problems.add(&io_at, format_args!("the cache mode {cache} does not support it"));
        return None;
    }
    let policy_at = format!("{at}.error_policy");
    let error_policy = problems.value::<wire::disk::ErrorPolicy, _>(&policy_at, disk.error_policy)?;
    let block_size = block_size(problems, &format!("{at}.block_size"), disk.block_size)?;
    let pci_slot = pci_slot(problems, &format!("{at}.pci_slot"), disk.pci_slot)?;
    let source = source(problems, at, (disk.source, disk.cdrom))?;
    if disk.shareable && !(matches!(source, DiskSource::Raw(_)) && cache == CacheMode::None) {
        problems.add(&format!("{at}.shareable"), "it needs a raw source and no cache");
        return None;
    }
    if disk.scsi_passthrough
        && (bus != Some(DiskBus::Scsi) || disk.cdrom || !matches!(source, DiskSource::Raw(_)))
    {
        problems.add(&format!("{at}.scsi_passthrough"), "it needs a disk on the bus scsi with a raw source");
        return None;
    }
    Some(Disk {
        name: disk.name,
        field: disk.field,
        bus: bus?,
        device: if disk.cdrom { DiskDevice::CdRom } else { DiskDevice::Disk },
        read_only: disk.read_only || disk.cdrom,
        serial: disk.serial,
        boot_order: (disk.boot_order != 0).then_some(disk.boot_order),
        cache,
        io,
        error_policy: error_policy.unwrap_or_default(),
        tuning: DiskTuning {
            block_size,
            dedicated_io_thread: disk.dedicated_io_thread,
            multi_queue: disk.multi_queue,
            pci_slot,
            shareable: disk.shareable,
            scsi_passthrough: disk.scsi_passthrough,
        },
        source,
    })
}

fn block_size_message(size: BlockSize) -> Option<wire::disk::BlockSize> {
    let size = match size {
        BlockSize::Default => return None,
        BlockSize::Volume => Size::Volume(Volume {}),
        BlockSize::Custom { logical, physical, discard_granularity } => {
            Size::Custom(Custom { logical, physical, discard_granularity: discard_granularity.unwrap_or(0) })
        }
    };
    Some(wire::disk::BlockSize { size: Some(size) })
}

fn block_size(problems: &mut Problems, at: &str, size: Option<wire::disk::BlockSize>) -> Option<BlockSize> {
    match size.and_then(|size| size.size) {
        None => Some(BlockSize::Default),
        Some(Size::Volume(_)) => Some(BlockSize::Volume),
        Some(Size::Custom(Custom { logical, physical, .. }))
            if !BlockSize::is_valid(logical) || !BlockSize::is_valid(physical) =>
        {
            problems.add(at, format_args!("{logical} and {physical} bytes are no sizes of blocks"));
            None
        }
        Some(Size::Custom(Custom { logical, physical, discard_granularity })) => Some(BlockSize::Custom {
            logical,
            physical,
            discard_granularity: (discard_granularity != 0).then_some(discard_granularity),
        }),
    }
}

/// A slot of the root PCI bus; 0 is none.
pub fn pci_slot(problems: &mut Problems, at: &str, number: u32) -> Option<Option<PciSlot>> {
    match number {
        0 => Some(None),
        number => PciSlot::try_from(number).map_err(|error| problems.add(at, error)).ok().map(Some),
    }
}

impl From<&DiskSource> for wire::DiskSource {
    fn from(source: &DiskSource) -> Self {
        let source = match source {
            DiskSource::Raw(path) => Source::Raw(Raw { path: text(path) }),
            DiskSource::Qcow2 { path, backing: None } => Source::Qcow2(Qcow2 { path: text(path) }),
            DiskSource::Qcow2 { path, backing: Some(backing) } => {
                Source::Overlay(Overlay { path: text(path), backing_raw_path: text(backing) })
            }
            DiskSource::NoMedium => Source::NoMedium(NoMedium {}),
        };
        Self { source: Some(source) }
    }
}

fn source(
    problems: &mut Problems,
    at: &str,
    (source, cdrom): (Option<wire::DiskSource>, bool),
) -> Option<DiskSource> {
    let path = format!("{at}.source");
    match source.and_then(|source| source.source) {
        Some(Source::Raw(raw)) => Some(DiskSource::Raw(problems.path(&path, raw.path))),
        Some(Source::Qcow2(image)) => {
            Some(DiskSource::Qcow2 { path: problems.path(&path, image.path), backing: None })
        }
        Some(Source::Overlay(overlay)) => Some(DiskSource::Qcow2 {
            path: problems.path(&path, overlay.path),
            backing: Some(problems.path(&path, overlay.backing_raw_path)),
        }),
        Some(Source::NoMedium(_)) if cdrom => Some(DiskSource::NoMedium),
        Some(Source::NoMedium(_)) => {
            problems.add(&path, "only a CD-ROM drive can be empty");
            None
        }
        None => {
            problems.add(at, "no source");
            None
        }
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disks() -> impl Iterator<Item = Disk<DiskSource>> {
        let first = Disk {
            name: "root".to_owned(),
            field: "spec.domain.devices.disks[0].disk.bus".to_owned(),
            bus: DiskBus::Virtio,
            device: DiskDevice::Disk,
            read_only: false,
            serial: "S1".to_owned(),
            boot_order: Some(2),
            cache: CacheMode::None,
            io: Some(IoMode::Native),
            error_policy: ErrorPolicy::Report,
            tuning: DiskTuning::default(),
            source: DiskSource::Qcow2 { path: "/a".into(), backing: Some("/b".into()) },
        };
        let again = first.clone();
        let buses =
            DiskBus::ALL.iter().map(move |&bus| Disk { bus, boot_order: None, io: None, ..again.clone() });
        let again = first.clone();
        let caches = CacheMode::ALL.iter().map(move |&cache| Disk {
            cache,
            io: Some(IoMode::Threads),
            ..again.clone()
        });
        let again = first.clone();
        let policies =
            ErrorPolicy::ALL.iter().map(move |&error_policy| Disk { error_policy, ..again.clone() });
        let custom =
            |discard_granularity| BlockSize::Custom { logical: 512, physical: 4096, discard_granularity };
        let sizes = [BlockSize::Volume, custom(None), custom(Some(4096))];
        let slot = PciSlot::try_from(7).ok();
        let tuned = sizes.map(|block_size| {
            let tuning = DiskTuning {
                block_size,
                dedicated_io_thread: true,
                multi_queue: true,
                pci_slot: slot,
                shareable: false,
                scsi_passthrough: false,
            };
            Disk { tuning, ..first.clone() }
        });
        let sources = [DiskSource::Raw("/c".into()), DiskSource::Qcow2 { path: "/d".into(), backing: None }]
            .map(|source| Disk { source, ..first.clone() });
        let lun = Disk {
            bus: DiskBus::Scsi,
            tuning: DiskTuning { scsi_passthrough: true, ..DiskTuning::default() },
            source: DiskSource::Raw("/e".into()),
            ..first.clone()
        };
        let empty =
            Disk { device: DiskDevice::CdRom, read_only: true, source: DiskSource::NoMedium, ..first };
        buses.chain(caches).chain(policies).chain(sources).chain(tuned).chain([lun, empty])
    }

    #[test]
    fn every_disk_survives_the_message() {
        for expected in disks() {
            let mut problems = Problems::default();
            let got = disk(&mut problems, "disk", wire::Disk::from(&expected));
            assert_eq!((got, problems.into_texts()), (Some(expected), Vec::new()));
        }
    }

    #[test]
    fn absent_enums_have_defaults_and_unknown_numbers_are_problems() {
        let message =
            || wire::Disk { cache: 0, error_policy: 0, ..wire::Disk::from(&disks().next().expect("a disk")) };
        let mut problems = Problems::default();
        let got = disk(&mut problems, "disk", message()).unwrap();
        assert_eq!((got.cache, got.error_policy), (CacheMode::WriteBack, ErrorPolicy::Stop));
        for (message, text) in [
            (wire::Disk { bus: 0, ..message() }, "disk: no bus"),
            (wire::Disk { bus: 77, ..message() }, "disk.bus: no such value: 77"),
            (wire::Disk { cache: 77, ..message() }, "disk.cache: no such value: 77"),
            (wire::Disk { io: 77, ..message() }, "disk.io: no such value: 77"),
            (
                wire::Disk { io: wire::disk::IoMode::Native.into(), ..message() },
                "disk.io: the cache mode writeback does not support it",
            ),
            (wire::Disk { error_policy: 77, ..message() }, "disk.error_policy: no such value: 77"),
            (wire::Disk { source: None, ..message() }, "disk: no source"),
            (
                wire::Disk { scsi_passthrough: true, ..message() },
                "disk.scsi_passthrough: it needs a disk on the bus scsi with a raw source",
            ),
            (
                wire::Disk {
                    block_size: Some(wire::disk::BlockSize {
                        size: Some(Size::Custom(Custom {
                            logical: 512,
                            physical: 77,
                            discard_granularity: 0,
                        })),
                    }),
                    ..message()
                },
                "disk.block_size: 512 and 77 bytes are no sizes of blocks",
            ),
            (
                wire::Disk { pci_slot: 0x1e, ..message() },
                "disk.pci_slot: must be an address on the root bus, 0000:00:01.0 to 0000:00:1d.0",
            ),
        ] {
            let mut problems = Problems::default();
            assert_eq!(disk(&mut problems, "disk", message), None);
            assert_eq!(problems.into_texts(), [text]);
        }
    }
}
