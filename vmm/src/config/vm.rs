use std::os::fd::OwnedFd;

use vireo_vmconfig::{
    AcpiTable, CpuTopology, GuestNuma, HugePage, NATIVE_NUMA_NODES, NATIVE_SLOTS, PanicModel, SATA_PORTS,
    Smbios,
};

use crate::hotplug::Hotplug;

use super::{
    Attachment, Balloon, Boot, ClockOffset, Disk, Filesystem, Graphics, Input, MemorySize, Net, Notices,
    Port, ThreadHook, Vsock, Watchdog,
};

const DEVICE_SLOTS: usize = VmConfig::DEVICE_SLOTS;
/// SCSI drives on the one controller.
pub const SCSI_TARGETS: usize = 256;

/// A whole VM, ready to be built.
#[derive(Debug)]
pub struct VmConfig {
    pub(crate) kvm: Option<OwnedFd>,
    pub(crate) cpus: CpuTopology,
    pub(crate) memory: MemorySize,
    pub(crate) huge_page: Option<HugePage>,
    pub(crate) numa: Option<GuestNuma>,
    pub(crate) pmu: bool,
    pub(crate) boot: Boot,
    pub(crate) disks: Vec<Disk>,
    pub(crate) nets: Vec<Net>,
    pub(crate) rng: bool,
    pub(crate) balloon: Option<Balloon>,
    pub(crate) panic_devices: Vec<PanicModel>,
    pub(crate) watchdog: Option<Watchdog>,
    pub(crate) vsock: Option<Vsock>,
    pub(crate) filesystems: Vec<Filesystem>,
    pub(crate) virtio_console: bool,
    pub(crate) port: Option<Port>,
    pub(crate) graphics: Option<Graphics>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) smbios: Option<Smbios>,
    pub(crate) acpi_tables: Vec<AcpiTable>,
    pub(crate) hotplug: Option<Hotplug>,
    pub(crate) notices: Notices,
    pub(crate) threads: ThreadHook,
    /// Set by the guest, for the VM that is built after its reset.
    pub(crate) clock: ClockOffset,
}

/// There are more devices than free slots.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TooManyDevices {
    /// On the root bus.
    #[error("{0} devices do not fit on the {DEVICE_SLOTS} free slots of the VM")]
    Slots(usize),
    /// On the SATA controller.
    #[error("{0} SATA drives do not fit on the {SATA_PORTS} ports of the VM")]
    SataPorts(usize),
    /// On the SCSI controller.
    #[error("{0} SCSI drives do not fit on the {SCSI_TARGETS} targets of the VM")]
    ScsiTargets(usize),
}

impl VmConfig {
    /// Slots on the root bus that are left for devices (the host bridge and the LPC bridge take two of 32). Every virtio
    /// disk, NIC, file system and input device, the controller of all SCSI drives, the port and the graphics adapter take one each.
    pub const DEVICE_SLOTS: usize = NATIVE_SLOTS;

    /// NUMA nodes that a guest may have: the tables that describe them have a place of limited size.
    pub const MAX_NUMA_NODES: usize = NATIVE_NUMA_NODES;

    /// A VM with a serial port and nothing else.
    pub fn new(cpus: CpuTopology, memory: MemorySize, boot: Boot) -> Self {
        Self {
            kvm: None,
            cpus,
            memory,
            huge_page: None,
            numa: None,
            pmu: true,
            boot,
            disks: Vec::new(),
            nets: Vec::new(),
            rng: false,
            balloon: None,
            panic_devices: Vec::new(),
            watchdog: None,
            vsock: None,
            filesystems: Vec::new(),
            virtio_console: false,
            port: None,
            graphics: None,
            inputs: Vec::new(),
            smbios: None,
            acpi_tables: Vec::new(),
            hotplug: None,
            notices: Notices::default(),
            threads: ThreadHook::default(),
            clock: ClockOffset::default(),
        }
    }

    /// Adds disks and NICs, in the order of their slots and ports.
    pub fn with_devices(mut self, disks: Vec<Disk>, nets: Vec<Net>) -> Result<Self, TooManyDevices> {
        let count = |on: fn(Attachment) -> bool| disks.iter().filter(|disk| on(disk.attachment())).count();
        let virtio = count(|at| at == Attachment::Virtio);
        let sata = count(|at| matches!(at, Attachment::Sata(_)));
        let scsi = count(|at| matches!(at, Attachment::Scsi(_)));
        let others = [
            self.rng,
            self.balloon.is_some(),
            self.virtio_console,
            self.port.is_some(),
            self.graphics.is_some(),
            self.watchdog.is_some(),
            self.vsock.is_some(),
            scsi > 0,
        ]
        .map(usize::from);
        let panic = self.panic_devices.iter().filter(|model| **model == PanicModel::Pci).count();
        let all = virtio
            + nets.len()
            + self.inputs.len()
            + self.filesystems.len()
            + panic
            + others.iter().sum::<usize>();
        if all > DEVICE_SLOTS {
            return Err(TooManyDevices::Slots(all));
        }
        if sata > SATA_PORTS {
            return Err(TooManyDevices::SataPorts(sata));
        }
        if scsi > SCSI_TARGETS {
            return Err(TooManyDevices::ScsiTargets(scsi));
        }
        self.disks = disks;
        self.nets = nets;
        Ok(self)
    }

    /// The counters of its disks, in their order.
    pub fn disk_counters(&self) -> Vec<std::sync::Arc<super::DiskCounters>> {
        self.disks.iter().map(|disk| disk.counters().clone()).collect()
    }

    /// The caller's side of its memory balloon.
    pub fn balloon(&self) -> Option<Balloon> {
        self.balloon.clone()
    }

    /// The links of its NICs, in their order.
    pub fn links(&self) -> Vec<std::sync::Arc<super::Link>> {
        self.nets.iter().map(|net| net.link().clone()).collect()
    }

    /// The requests that are held, disk by disk in their order.
    pub fn disk_stalls(&self) -> Vec<std::sync::Arc<super::DiskStall>> {
        self.disks.iter().map(|disk| disk.stall().clone()).collect()
    }

    /// Its drives whose media change while it runs, with their positions in the list of disks.
    pub fn cd_drives(&self) -> Vec<(usize, std::sync::Arc<super::CdDrive>)> {
        let disks = self.disks.iter().enumerate();
        disks
            .filter_map(|(index, disk)| match disk.image() {
                super::DiskImage::Drive(drive) => Some((index, drive.clone())),
                super::DiskImage::Raw(_) | super::DiskImage::Qcow2 { .. } => None,
            })
            .collect()
    }

    /// What has its disks look whether their images have grown: those whose images can.
    pub fn disk_growths(&self) -> Vec<std::sync::Arc<super::DiskGrowth>> {
        let can = |disk: &&super::Disk| {
            matches!((disk.attachment(), disk.image()), (Attachment::Virtio, super::DiskImage::Raw(_)))
        };
        self.disks.iter().filter(can).map(|disk| disk.growth().clone()).collect()
    }

    /// Adds a virtio entropy device.
    #[must_use]
    pub fn with_rng(mut self, yes: bool) -> Self {
        self.rng = yes;
        self
    }

    /// Adds a memory balloon.
    #[must_use]
    pub fn with_balloon(mut self, balloon: Option<Balloon>) -> Self {
        self.balloon = balloon;
        self
    }

    /// Adds pvpanic devices, by which the guest reports that its kernel panicked. There is one I/O port at most.
    #[must_use]
    pub fn with_panic_devices(mut self, models: Vec<PanicModel>) -> Self {
        self.panic_devices = models;
        self
    }

    /// Adds a watchdog, an i6300esb.
    #[must_use]
    pub fn with_watchdog(mut self, watchdog: Option<Watchdog>) -> Self {
        self.watchdog = watchdog;
        self
    }

    /// Adds a socket device.
    #[must_use]
    pub fn with_vsock(mut self, vsock: Option<Vsock>) -> Self {
        self.vsock = vsock;
        self
    }

    /// Adds file systems of the host, in the order of their slots. RAM is shared with the processes that serve them.
    #[must_use]
    pub fn with_filesystems(mut self, filesystems: Vec<Filesystem>) -> Self {
        self.filesystems = filesystems;
        self
    }

    /// Sets how many seconds the real-time clock is ahead of UTC until the guest sets it.
    #[must_use]
    pub fn with_clock_offset(self, seconds: i64) -> Self {
        self.clock.set(i128::from(seconds) * 1_000_000_000);
        self
    }

    /// Adds a virtio console; its output joins the serial port's, and input stays the serial port's.
    #[must_use]
    pub fn with_virtio_console(mut self, yes: bool) -> Self {
        self.virtio_console = yes;
        self
    }

    /// Adds a port with a name.
    #[must_use]
    pub fn with_port(mut self, port: Option<Port>) -> Self {
        self.port = port;
        self
    }

    /// Adds hotplug slots: as many of those that its devices leave free, [`HOTPLUG_SLOTS`](crate::hotplug::HOTPLUG_SLOTS) at
    /// most.
    #[must_use]
    pub fn with_hotplug(mut self, hotplug: Option<Hotplug>) -> Self {
        self.hotplug = hotplug;
        self
    }

    /// Registers the listener for notices.
    #[must_use]
    pub fn with_notices(mut self, notices: Notices) -> Self {
        self.notices = notices;
        self
    }

    /// Has each thread of a vCPU or a device call `hook` before it works for the guest.
    #[must_use]
    pub fn with_thread_hook(mut self, hook: ThreadHook) -> Self {
        self.threads = hook;
        self
    }

    /// Runs the VM on an open `/dev/kvm`. Otherwise the monitor opens it.
    #[must_use]
    pub fn with_kvm(mut self, device: Option<OwnedFd>) -> Self {
        self.kvm = device;
        self
    }

    /// Backs its memory with huge pages that the host has reserved.
    #[must_use]
    pub fn with_huge_pages(mut self, size: Option<HugePage>) -> Self {
        self.huge_page = size;
        self
    }

    /// Gives the guest NUMA nodes, each with memory of a node of the host. Default: one node, with memory of any.
    #[must_use]
    pub fn with_numa(mut self, numa: Option<GuestNuma>) -> Self {
        self.numa = numa;
        self
    }

    /// Whether vCPUs have performance counters, where the host lets them. Default: they have.
    #[must_use]
    pub fn with_pmu(mut self, yes: bool) -> Self {
        self.pmu = yes;
        self
    }

    /// Adds a display.
    #[must_use]
    pub fn with_graphics(mut self, graphics: Option<Graphics>) -> Self {
        self.graphics = graphics;
        self
    }

    /// Adds virtio input devices. They receive input of viewers of the display.
    #[must_use]
    pub fn with_inputs(mut self, inputs: Vec<Input>) -> Self {
        self.inputs = inputs;
        self
    }

    /// Adds ACPI tables to those that describe the VM. Two of them fit.
    #[must_use]
    pub fn with_acpi_tables(mut self, tables: Vec<AcpiTable>) -> Self {
        self.acpi_tables = tables;
        self
    }

    /// Sets what the guest reads about the VM.
    #[must_use]
    pub fn with_smbios(mut self, smbios: Option<Smbios>) -> Self {
        self.smbios = smbios;
        self
    }
}
