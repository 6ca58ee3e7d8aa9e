//! From a [`VmConfig`] to a VM that is ready to run: the only module that knows the order and the addresses.

mod drives;
mod error;
mod firmware;
mod graphics;
mod hotplug;
mod vcpus;
mod video_bios;

use std::io;
use std::sync::Arc;

use vireo_vmconfig::PanicModel;
use vm_memory::{Bytes, GuestAddress};

pub use self::error::BuildError;
use crate::ahci;
use crate::arch::x86_64::acpi::{self, Blobs, Numa, Platform, Windows};
use crate::arch::x86_64::reset_vector;
use crate::arch::x86_64::smbios;
use crate::arch::x86_64::topology::Topology;
use crate::boot::{self, Entry};
use crate::bus::{Bus, BusDevice, BusRange};
use crate::config::{Attachment, Boot, ThreadHook, VmConfig};
use crate::exit::Outcome;
use crate::firmware::{BootOrder, NothingToStart, ScannedOutput, cmos};
use crate::hotplug::Slots;
use crate::i6300esb::I6300Esb;
use crate::irq::IrqLine;
use crate::kvm::{self, KvmDoorbells, KvmLine, KvmPins, KvmRouter, KvmVm, Rom};
use crate::layout;
use crate::legacy::{DebugPort, I8042, PowerManagement, ResetControl, Rtc, SystemControlA};
use crate::memory::{self, GuestMemory, ram_ranges};
use crate::pci::{Root, RootError};
use crate::pvpanic::{PanicEvents, PvPanic};
use crate::serial::Uart;
use crate::serial::{SerialOutput, SharedOutput};
use crate::state::{SavedVm, Saver, SharedSection};
use crate::vcpu::Vcpu;
use crate::virtio;
use crate::virtio::net::NetDevice;

/// All of a VM but its vCPUs.
pub(crate) struct Assembly {
    pub(crate) outcome: Arc<Outcome>,
    pub(crate) uart: Arc<Uart>,
    pub(crate) power: Arc<PowerManagement>,
    pub(crate) pci: Arc<Root>,
    /// For the threads of the vCPUs.
    pub(crate) threads: ThreadHook,
    /// Its hotplug slots, if it has any.
    hotplug: Option<Arc<Slots>>,
    /// Set once everything is built.
    pub(crate) saver: Option<Arc<Saver>>,
    buses: Buses,
    /// Firmware where the VM has any.
    rom: Option<Rom>,
    /// Last, so that no device outlives the memory it works on.
    vm: KvmVm,
}

/// Memory addresses and ports.
#[derive(Default)]
struct Buses {
    mmio: Arc<Bus>,
    pio: Arc<Bus>,
}

impl Assembly {
    /// The hotplug slots, a bit for each.
    fn hotplug_slots(&self) -> u32 {
        self.hotplug.as_ref().map_or(0, |slots| slots.controller.mask())
    }
}

impl Drop for Assembly {
    fn drop(&mut self) {
        self.pci.stop();
        self.uart.close();
        self.buses.mmio.clear();
        self.buses.pio.clear();
    }
}

impl Buses {
    fn port(&self, device: &'static str, at: (u16, u16), what: Arc<dyn BusDevice>) -> Result<(), BuildError> {
        let range = BusRange::new(at.0.into(), at.1.into());
        match range.map(|range| self.pio.insert(range, what)) {
            Some(Err(source)) => Err(BuildError::Place { device, source }),
            Some(Ok(())) | None => Ok(()),
        }
    }
}

/// Builds everything; nothing runs yet. What was made is unmade if a later step fails. With `saved`, the VM has that state
/// and its devices are paused.
pub(crate) fn build(
    config: &VmConfig,
    output: Box<dyn SerialOutput>,
    saved: Option<&SavedVm>,
) -> Result<(Assembly, Vec<Vcpu>), BuildError> {
    saved.map_or(Ok(()), |saved| saved.check(config))?;
    let kvm = Arc::new(kvm::open(config.kvm.as_ref())?);
    let topology = Topology::new(config.cpus)?;
    let apic_ids = topology.apic_ids();
    vcpus::check_count(&kvm, config, &apic_ids)?;

    let memory = match saved {
        Some(saved) => saved.map_ram(config.memory)?,
        None if config.filesystems.is_empty() => memory::create(config.memory, config.huge_page)?,
        None => memory::create_shared(config.memory, config.huge_page)?,
    };
    if let (Some(numa), None) = (&config.numa, saved) {
        memory::bind(&memory, config.memory, numa.nodes())?;
    }
    let ram_end = ram_ranges(config.memory).last().map_or(0, |range| range.start + range.len);
    let vm = KvmVm::new(&kvm, memory.clone())?;
    if !config.pmu {
        vm.disable_pmu(&kvm)?;
    }
    let outcome = Arc::new(Outcome::default());
    let buses = Buses::default();
    let nothing = NothingToStart::new(config.notices.clone());
    let output: Box<dyn SerialOutput> = match &config.boot {
        Boot::Kernel(_) => output,
        Boot::Firmware(_) => Box::new(ScannedOutput::new(output, nothing.clone())),
    };
    let output = SharedOutput::new(output);
    let Legacy { uart, power, mut sections } =
        legacy_devices(config, &vm, &buses, &outcome, Box::new(output.clone()))?;
    let pins = Arc::new(KvmPins(vm.fd.clone()));
    let pci =
        Root::new((&buses.mmio, &buses.pio), &ram_ranges(config.memory), pins).map_err(pci("PCI bus"))?;
    let pci = Arc::new(pci);
    let reset = Arc::new(ResetControl::new(outcome.clone()));
    pci.claim_reset_port(reset.clone());
    sections.extend([("reset control", reset as SharedSection), ("PCI ports", pci.ports())]);
    let threads = config.threads.clone();
    let mut assembly =
        Assembly { outcome, uart, power, pci, threads, hotplug: None, saver: None, buses, rom: None, vm };
    let host = virtio_host(&assembly, &memory)?;
    let boot_order = pci_devices(config, &assembly, &host, Box::new(output))?;
    let graphics = config.graphics.as_ref();
    let adapter = graphics.map(|graphics| graphics::install(graphics, &assembly, &host)).transpose()?;
    assembly.hotplug =
        config.hotplug.as_ref().map(|slots| hotplug::install(slots, &assembly, &host)).transpose()?;
    if let Some(slots) = &assembly.hotplug {
        sections.push(("PCI hotplug", slots.controller.clone()));
    }
    let vcpus = vcpus::create(&kvm, &assembly, (topology, config.pmu), &apic_ids)?;
    match &config.boot {
        Boot::Kernel(_) if saved.is_some() => {}
        Boot::Kernel(kernel) => {
            let ps2 = config.graphics.is_some();
            let panic_port = config.panic_devices.contains(&PanicModel::Isa);
            let (windows, tables) = (Windows::above(ram_end), config.acpi_tables.as_slice());
            let hotplug = assembly.hotplug_slots();
            let (apic_ids, numa) = (apic_ids.as_slice(), numa(config));
            let numa = numa.as_ref();
            let platform = Platform { apic_ids, windows, ps2, panic_port, hotplug, numa, tables };
            write_acpi(&memory, &platform)?;
            write_bios_area(config, &memory)?;
            vcpus.iter().try_for_each(|vcpu| vcpus::skip_firmware(vcpu.fd()))?;
            let entry = boot::load(&memory, kernel, GuestAddress(acpi::RSDP_ADDRESS))?;
            if let (Some(adapter), Entry::Linux64 { boot_params, .. }) = (&adapter, entry) {
                graphics::announce(adapter, &memory, boot_params)?;
            }
            if let Some(first) = vcpus.first() {
                vcpus::enter_at(first.fd(), entry, &memory)?;
            }
        }
        // The first vCPU starts at the reset vector, as KVM makes it.
        Boot::Firmware(firmware) => {
            let facts = firmware::VmFacts {
                memory: &memory,
                apic_ids: &apic_ids,
                boot_order,
                nothing,
                loads: saved.is_some(),
            };
            let installed = firmware::install(config, firmware, &assembly, facts)?;
            assembly.rom = Some(installed.rom);
            sections.extend(installed.sections);
        }
    }
    let vm = &assembly.vm.fd;
    let kernel = (kvm::state::sections(vm), kvm::state::clock(vm));
    let saver = Saver::new(config, (memory, assembly.pci.clone()), sections, kernel);
    saved.map_or(Ok(()), |saved| saver.load(saved, &vcpus))?;
    assembly.saver = Some(Arc::new(saver));
    Ok((assembly, vcpus))
}

/// The NUMA nodes, for their tables.
fn numa(config: &VmConfig) -> Option<Numa> {
    let nodes = config.numa.clone()?;
    let ram = memory::node_ranges(config.memory, nodes.nodes());
    Some(Numa { nodes, ram })
}

/// What a BIOS would leave in its area: the SMBIOS tables, and code at the reset vector.
fn write_bios_area(config: &VmConfig, memory: &GuestMemory) -> Result<(), BuildError> {
    let identity = config.smbios.clone().unwrap_or_default();
    let tables = smbios::tables(&identity, config.cpus, config.memory).ok_or(BuildError::SmbiosTooLong)?;
    memory
        .write_slice(&tables, GuestAddress(smbios::ADDRESS))
        .map_err(|source| BuildError::Write { what: "SMBIOS tables", source })?;
    memory
        .write_slice(&reset_vector::CODE, GuestAddress(reset_vector::ADDRESS))
        .map_err(|source| BuildError::Write { what: "reset vector", source })
}

/// What virtio devices need of the VM around them.
fn virtio_host(assembly: &Assembly, memory: &GuestMemory) -> Result<virtio::DeviceContext, BuildError> {
    let vm = &assembly.vm;
    Ok(virtio::DeviceContext {
        memory: memory.clone(),
        router: Arc::new(KvmRouter::new(vm.fd.clone()).map_err(device("interrupt routing"))?),
        doorbells: Arc::new(KvmDoorbells(vm.fd.clone())),
        threads: assembly.threads.clone(),
    })
}

/// The functions on the PCI bus, in slot order. Returns what firmware may start from.
fn pci_devices(
    config: &VmConfig,
    assembly: &Assembly,
    host: &virtio::DeviceContext,
    output: Box<dyn SerialOutput>,
) -> Result<BootOrder, BuildError> {
    let add = |name, model: Box<dyn virtio::Device>| {
        let function = virtio::PciDevice::new(model, host.clone())?;
        assembly.pci.add(function).map_err(pci(name))
    };
    let mut boot_order = BootOrder::default();
    drives::add_sata(config, assembly, host)?;
    let scsi = drives::add_scsi(config, &add)?;
    let (mut sata_ports, mut scsi_targets) = (0.., 0..);
    for (number, disk) in config.disks.iter().enumerate() {
        match disk.attachment() {
            Attachment::Virtio => {
                let block = virtio::block::Block::new(disk)
                    .map_err(|source| BuildError::Disk { number: number + 1, source })?;
                boot_order.virtio_disk(add("disk", Box::new(block))?, disk.boots_at());
            }
            Attachment::Sata(_) => {
                let port = sata_ports.next().unwrap_or(0);
                boot_order.sata_drive(ahci::ADDRESS, port, disk.boots_at());
            }
            Attachment::Scsi(_) => {
                if let (Some(at), Some(target)) = (scsi, scsi_targets.next()) {
                    boot_order.scsi_drive(at, target, disk.boots_at());
                }
            }
        }
    }
    for net in &config.nets {
        boot_order.nic(add("NIC", Box::new(NetDevice::new(net)?))?, net.boots_at());
    }
    if config.virtio_console {
        let (console, _input) = virtio::console::Console::new(output).map_err(device("virtio console"))?;
        add("virtio console", Box::new(console))?;
    }
    if config.rng {
        add("entropy device", Box::new(virtio::rng::Rng))?;
    }
    for input in &config.inputs {
        add("input device", Box::new(graphics::input(*input, config.graphics.as_ref())?))?;
    }
    // After every other device, none of which it shall move to another slot.
    if let Some(port) = &config.port {
        let port = virtio::port::Port::new(port).map_err(device("port"))?;
        add("port", Box::new(port))?;
    }
    if let Some(balloon) = &config.balloon {
        let balloon = virtio::balloon::BalloonDevice::new(balloon).map_err(device("balloon"))?;
        add("balloon", Box::new(balloon))?;
    }
    for _ in config.panic_devices.iter().filter(|model| **model == PanicModel::Pci) {
        let events = PanicEvents::new(assembly.outcome.clone(), config.notices.clone());
        assembly.pci.add(Arc::new(PvPanic::new(Arc::new(events)))).map_err(pci("pvpanic"))?;
    }
    if let Some(watchdog) = &config.watchdog {
        let watchdog = I6300Esb::new(watchdog, assembly.outcome.clone(), assembly.power.clone());
        let watchdog = watchdog.map_err(device("watchdog"))?;
        assembly.pci.add(Arc::new(watchdog)).map_err(pci("watchdog"))?;
    }
    if let Some(vsock) = &config.vsock {
        let vsock = virtio::vsock::Vsock::new(vsock).map_err(device("socket device"))?;
        add("socket device", Box::new(vsock))?;
    }
    for filesystem in &config.filesystems {
        let filesystem = virtio::fs::Filesystem::new(filesystem).map_err(device("file system"))?;
        add("file system", Box::new(filesystem))?;
    }
    Ok(boot_order)
}

fn write_acpi(memory: &GuestMemory, platform: &Platform<'_>) -> Result<(), BuildError> {
    let acpi = Blobs::new(platform).place(acpi::TABLES_ADDRESS)?;
    for (what, bytes, at) in [
        ("ACPI root pointer", &acpi.rsdp, acpi::RSDP_ADDRESS),
        ("ACPI tables", &acpi.tables, acpi::TABLES_ADDRESS),
    ] {
        memory.write_slice(bytes, GuestAddress(at)).map_err(|source| BuildError::Write { what, source })?;
    }
    Ok(())
}

fn pci(device: &'static str) -> impl FnOnce(RootError) -> BuildError {
    move |source| BuildError::Pci { device, source }
}

fn device(device: &'static str) -> impl FnOnce(io::Error) -> BuildError {
    move |source| BuildError::Device { device, source }
}

/// Devices on ports.
struct Legacy {
    uart: Arc<Uart>,
    power: Arc<PowerManagement>,
    /// Those that have state.
    sections: Vec<(&'static str, SharedSection)>,
}

fn legacy_devices(
    config: &VmConfig,
    vm: &KvmVm,
    buses: &Buses,
    outcome: &Arc<Outcome>,
    output: Box<dyn SerialOutput>,
) -> Result<Legacy, BuildError> {
    let line = |gsi, name| -> Result<Arc<dyn IrqLine>, BuildError> {
        Ok(Arc::new(KvmLine::new(vm.fd.clone(), gsi).map_err(device(name))?))
    };
    let uart = Uart::new(line(layout::COM1_IRQ, "serial port")?, output).map_err(device("serial port"))?;
    let uart = Arc::new(uart);
    let sci = line(layout::SCI_IRQ, "power management")?;
    let power = Arc::new(PowerManagement::new(sci, outcome.clone()));
    let memory = cmos(config.memory, config.cpus.count());
    let clock = line(layout::RTC_IRQ, "real-time clock")?;
    let clock =
        Rtc::new(clock, power.clone(), config.clock.clone(), &memory).map_err(device("real-time clock"))?;
    let clock = Arc::new(clock);
    let mut sections: Vec<(_, SharedSection)> = vec![
        ("serial port", uart.clone()),
        ("power management", power.clone()),
        ("real-time clock", clock.clone()),
    ];

    buses.port("serial port", (layout::COM1_PORT, 8), uart.clone())?;
    buses.port("power management", (layout::PM_PORT, layout::PM_SIZE), power.clone())?;
    buses.port("real-time clock", (layout::RTC_PORT, 2), clock)?;
    let keys: Arc<dyn BusDevice> = match &config.graphics {
        Some(graphics) => {
            let controller = graphics::keyboard(graphics, vm, outcome)?;
            sections.push(("keyboard controller", controller.clone()));
            controller
        }
        None => Arc::new(I8042::new(outcome.clone())),
    };
    buses.port("keyboard controller", (layout::I8042_PORT, 5), keys)?;
    buses.port("debug port", (layout::DEBUG_PORT, 1), Arc::new(DebugPort::new()))?;
    buses.port("system control port", (0x92, 1), Arc::new(SystemControlA::new(outcome.clone())))?;
    if config.panic_devices.contains(&PanicModel::Isa) {
        let events = PanicEvents::new(outcome.clone(), config.notices.clone());
        buses.port("pvpanic", (layout::PANIC_PORT, 1), Arc::new(events))?;
    }
    Ok(Legacy { uart, power, sections })
}
