//! From a launch message and its open files to the monitor's VM: the single translation.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use vireo_proto::launcher::Fault;
use vireo_vmconfig::{
    BlockSize, BootSource, DeviceRequest, DiskSource, ExtraDevice, FieldPaths, KernelFiles, PanicModel,
    Smbios,
};
use vireo_vmm::config::{
    Balloon, Blocks as MonitorBlocks, Boot as MonitorBoot, Disk as MonitorDisk, DiskError, DiskImage,
    Filesystem, Firmware, Input, KernelBoot, MemorySize, MemorySizeError, Net, Opened, Port, TooManyDevices,
    VmConfig, Vsock, VsockError, Watchdog,
};

use crate::agent::{self, AgentPort};
use crate::blocks::{self, Blocks, ChosenBlocks};
use crate::fault::{Code, chain, fault_at};
use crate::host::{DiskFiles, HostFirmware, HostResources};
use crate::launch::{Disk, Interface, Launch, NicPeer};

/// Why a launch message has no monitor configuration.
#[derive(Debug, thiserror::Error)]
enum PlanError {
    /// Not a size of guest memory.
    #[error("the monitor has no such amount of memory")]
    Memory(#[from] MemorySizeError),
    /// What it starts from was not opened.
    #[error("no kernel or firmware was opened for the VM")]
    NothingToStart,
    /// A disk it cannot have.
    #[error("the monitor has no such disk as {name}")]
    Disk {
        /// The volume's name.
        name: String,
        /// The manifest's field.
        field: String,
        /// Why.
        #[source]
        source: DiskError,
    },
    /// The host does not say what blocks a volume has.
    #[error("the block sizes of the volume of the disk {name} cannot be read")]
    Volume {
        /// The disk's name.
        name: String,
        /// The manifest's field.
        field: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Only a CD-ROM drive can be without a medium.
    #[error("the disk {name} has no image")]
    NoImage {
        /// The disk's name.
        name: String,
        /// The manifest's field.
        field: String,
    },
    /// Not a guest's context ID.
    #[error("the monitor has no such socket device")]
    Vsock(#[from] VsockError),
    /// More than there are slots for.
    #[error("too many devices for the monitor")]
    TooManyDevices(#[from] TooManyDevices),
}

impl PlanError {
    fn fault(&self, fields: &FieldPaths) -> Fault {
        let field = match self {
            Self::Memory(_) => &fields.memory,
            Self::NothingToStart => &fields.firmware,
            Self::Disk { field, .. } | Self::NoImage { field, .. } | Self::Volume { field, .. } => field,
            Self::TooManyDevices(_) | Self::Vsock(_) => &fields.devices,
        };
        fault_at(Code::Unsupported, field, chain(self))
    }
}

/// Translates. Features that the monitor does not support were rejected by
/// [`choose`](crate::hypervisor::choose); the errors here come from the monitor's own types.
///
/// # Errors
/// What the monitor does not have, at the field that asks for it.
pub fn vm_config(
    launch: &Launch,
    host: HostResources,
    filesystems: Vec<Filesystem>,
) -> Result<VmConfig, Fault> {
    plan(launch, host, filesystems).map_err(|error| error.fault(&launch.fields))
}

/// Translates a disk that is attached to a VM that runs.
///
/// # Errors
/// What the monitor does not have, at the field of the disk.
pub fn attached_disk(launch: &Launch, wanted: &Disk, files: DiskFiles) -> Result<MonitorDisk, Fault> {
    // A launcher whose guest runs may not ask for the blocks of a volume.
    disk(launch, wanted, Some(files), None).map_err(|error| error.fault(&launch.fields))
}

/// A NIC on the queues of its tap, or on the socket to its passt; none without.
pub fn net(wanted: &Interface, files: Vec<OwnedFd>, vhost: Vec<OwnedFd>) -> Option<Net> {
    let mut files = files.into_iter();
    let first = files.next()?;
    let net = match wanted.peer {
        NicPeer::Tap { .. } => Net::new(first, wanted.mac).more_queues(files).vhost(vhost),
        NicPeer::Passt => Net::stream(first, wanted.mac),
    };
    Some(net.mtu(wanted.mtu).boot_order(wanted.boot_order).link_up(wanted.link_up))
}

fn plan(launch: &Launch, host: HostResources, filesystems: Vec<Filesystem>) -> Result<VmConfig, PlanError> {
    let boot = boot(&launch.boot, host.kernel, host.firmware)?;
    let memory = MemorySize::from_bytes(launch.memory_bytes)?;
    let disks = launch.disks.iter().zip(host.disks).map(|(wanted, files)| {
        let volume = volume_blocks(wanted, files.as_ref())?;
        disk(launch, wanted, files, volume)
    });
    let disks = disks.collect::<Result<_, _>>()?;
    let nets = launch
        .interfaces
        .iter()
        .zip(host.nics.into_iter().zip(host.vhost))
        .filter_map(|(wanted, (files, vhost))| net(wanted, files, vhost))
        .collect();
    let config = VmConfig::new(launch.cpu.topology(), memory, boot)
        .with_kvm(host.kvm)
        .with_huge_pages(launch.huge_page)
        .with_pmu(!launch.is_realtime())
        .with_rng(launch.rng)
        .with_balloon(launch.memory_balloon.then(|| Balloon::new(launch.keep_free_pages)))
        .with_panic_devices(panic_devices(launch))
        .with_watchdog(watchdog(launch))
        .with_vsock(host.vsock.map(|vsock| Vsock::new(vsock.device, vsock.cid)).transpose()?)
        .with_filesystems(filesystems)
        .with_clock_offset(launch.clock_offset)
        .with_inputs((0..launch.tablets).map(|_| Input::Tablet).collect())
        .with_smbios(Some(launch.smbios.clone()).filter(|smbios| *smbios != Smbios::default()))
        .with_acpi_tables(launch.acpi_tables.clone())
        .with_port(host.agent.map(port))
        .with_devices(disks, nets)?;
    Ok(config)
}

/// Those that the VMI requests, in their order.
fn panic_devices(launch: &Launch) -> Vec<PanicModel> {
    let model = |request: &DeviceRequest| match request.device {
        ExtraDevice::Panic(model) => Some(model),
        _ => None,
    };
    launch.extra_devices.iter().filter_map(model).collect()
}

/// The one that the VMI requests.
fn watchdog(launch: &Launch) -> Option<Watchdog> {
    let action = |request: &DeviceRequest| match request.device {
        ExtraDevice::Watchdog(action) => Some(action),
        _ => None,
    };
    launch.extra_devices.iter().find_map(action).map(Watchdog::new)
}

fn boot(
    wanted: &BootSource,
    kernel: Option<(File, Option<File>)>,
    firmware: Option<HostFirmware>,
) -> Result<MonitorBoot, PlanError> {
    match (wanted, kernel, firmware) {
        (BootSource::Kernel(KernelFiles { command_line, .. }), Some((kernel, initrd)), _) => {
            Ok(MonitorBoot::Kernel(KernelBoot { kernel, initrd, command_line: command_line.clone() }))
        }
        (BootSource::Bios { use_serial }, _, Some(HostFirmware::Files(code, _))) => {
            Ok(MonitorBoot::Firmware(Firmware::new(code).on_serial(*use_serial)))
        }
        (BootSource::Efi { secure_boot: false, .. }, _, Some(HostFirmware::Files(code, variables))) => {
            Ok(MonitorBoot::Firmware(Firmware::new(code).variables(variables)))
        }
        _ => Err(PlanError::NothingToStart),
    }
}

fn port(port: AgentPort) -> Port {
    let AgentPort { stream, open } = port;
    let opened = Opened::new(move |now| {
        open.send_replace(now);
    });
    Port::new(agent::PORT, stream, opened)
}

/// The blocks of what a disk is stored on, where they are to be its own.
fn volume_blocks(wanted: &Disk, files: Option<&DiskFiles>) -> Result<Option<Blocks>, PlanError> {
    let files = files.filter(|_| wanted.tuning.block_size == BlockSize::Volume);
    let blocks = files.map(|files| Blocks::of(&files.image)).transpose();
    blocks.map_err(|source| PlanError::Volume {
        name: wanted.name.clone(),
        field: wanted.field.clone(),
        source,
    })
}

/// `volume` are the blocks of what it is stored on, where they are known.
fn disk(
    launch: &Launch,
    wanted: &Disk,
    files: Option<DiskFiles>,
    volume: Option<Blocks>,
) -> Result<MonitorDisk, PlanError> {
    let image = match (&wanted.source, files) {
        (DiskSource::Raw(_), Some(DiskFiles { image, .. })) => DiskImage::Raw(image),
        (DiskSource::Qcow2 { .. }, Some(DiskFiles { image, backing })) => DiskImage::Qcow2 { image, backing },
        (DiskSource::NoMedium, _) if wanted.is_cdrom() => DiskImage::Drive(Arc::default()),
        (DiskSource::Raw(_) | DiskSource::Qcow2 { .. } | DiskSource::NoMedium, _) => {
            return Err(PlanError::NoImage { name: wanted.name.clone(), field: wanted.field.clone() });
        }
    };
    let rejected =
        |source| PlanError::Disk { name: wanted.name.clone(), field: wanted.field.clone(), source };
    let disk = MonitorDisk::try_from(wanted.with_source(image)).map_err(rejected)?;
    let disk = match blocks::chosen(wanted, volume) {
        Some(ChosenBlocks { blocks: Blocks { logical, physical }, discard_granularity }) => {
            let blocks = MonitorBlocks::new(logical, physical, discard_granularity);
            disk.with_blocks(blocks.map_err(|error| rejected(error.into()))?)
        }
        None => disk,
    };
    // A guest with more vCPUs shares the queues out.
    let queues = if wanted.tuning.multi_queue { launch.cpu.topology().count() } else { 1 };
    Ok(disk.queues(queues.into()))
}

#[cfg(test)]
mod tests {
    use vireo_vmconfig::{CacheMode, DiskBus, DiskDevice};

    use super::*;
    use crate::launch::sample;

    fn any_file() -> File {
        File::open("/dev/null").unwrap()
    }

    fn host(launch: &Launch) -> HostResources {
        let files = |_: &Disk| Some(DiskFiles { image: any_file(), backing: Some(any_file()) });
        HostResources {
            kvm: None,
            kernel: Some((any_file(), None)),
            firmware: None,
            disks: launch.disks.iter().map(files).collect(),
            nics: launch.interfaces.iter().map(|_| vec![any_file().into(), any_file().into()]).collect(),
            vhost: launch.interfaces.iter().map(|_| Vec::new()).collect(),
            tpm_state: None,
            metrics: None,
            metrics_port: None,
            pinning: None,
            vsock: None,
            agent: Some(AgentPort {
                stream: std::os::unix::net::UnixStream::pair().unwrap().0,
                open: tokio::sync::watch::Sender::new(false),
            }),
        }
    }

    #[test]
    fn everything_requested_is_in_the_vm() {
        let mut launch = sample::kernel_boot();
        launch.smbios.product = "Vireo".into();
        launch.interfaces[0].link_up = false;
        launch.interfaces.push(Interface { peer: NicPeer::Passt, ..launch.interfaces[0].clone() });
        launch.tablets = 1;
        launch.disks[0].tuning.multi_queue = true;
        launch.smbios.chassis.asset = "A-1".into();
        launch.disks.push(Disk {
            source: DiskSource::Raw("/x".into()),
            read_only: true,
            serial: "s-1".into(),
            cache: CacheMode::WriteThrough,
            ..launch.disks[0].clone()
        });
        launch.disks.push(Disk { bus: DiskBus::Sata, ..launch.disks[0].clone() });
        let empty =
            Disk { device: DiskDevice::CdRom, source: DiskSource::NoMedium, ..launch.disks[2].clone() };
        launch.disks.push(empty);
        launch.disks.push(Disk { bus: DiskBus::Scsi, device: DiskDevice::CdRom, ..launch.disks[0].clone() });
        let config = vm_config(&launch, host(&launch), Vec::new()).unwrap();
        // The VM's parts are private to the monitor; what it prints shows that they arrived.
        let text = format!("{config:?}");
        for part in [
            "Qcow2",
            "Raw",
            "attachment: Virtio",
            "attachment: Sata(Disk)",
            "Drive(CdDrive",
            "attachment: Sata(CdRom)",
            "attachment: Scsi(CdRom)",
            "read_only: true",
            "write_through: true",
            "queues: 2",
            "errors: Stop",
            "mtu: Some(1450)",
            "Link { up: false",
            "peer: Tap {",
            "peer: Stream(",
            "rng: true",
            "name: \"org.qemu.guest_agent.0\"",
            "inputs: [Tablet]",
            "MemorySize(268435456)",
            "cores: 2",
            "product: \"Vireo\"",
            "asset: \"A-1\"",
            "a=b,c",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }

    #[test]
    fn what_only_the_monitor_knows_is_refused_by_field() {
        type Change = fn(&mut Launch);
        let table: [(Change, &str); 5] = [
            (|l| l.disks[0].source = DiskSource::NoMedium, "spec.domain.devices.disks[0].disk.bus"),
            (|l| l.memory_bytes = 1, "memory"),
            (|l| l.boot = BootSource::Bios { use_serial: false }, "firmware"),
            (|l| l.disks[0].serial = "x".repeat(21), "spec.domain.devices.disks[0].disk.bus"),
            (|l| l.disks = vec![l.disks[0].clone(); 40], "devices"),
        ];
        for (change, field) in table {
            let mut launch = sample::kernel_boot();
            change(&mut launch);
            let fault = vm_config(&launch, host(&launch), Vec::new()).unwrap_err();
            assert_eq!((fault.code(), fault.field.as_str()), (Code::Unsupported, field));
        }
    }
}
