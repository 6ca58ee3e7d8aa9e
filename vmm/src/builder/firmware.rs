//! What a VM has on top when firmware starts it.

use std::fs::File;
use std::sync::Arc;

use vireo_vmconfig::PanicModel;

use super::{Assembly, BuildError};
use crate::arch::x86_64::acpi::{Blobs, Platform, Windows};
use crate::arch::x86_64::smbios;
use crate::bus::BusRange;
use crate::config::{Firmware, VmConfig};
use crate::firmware::{
    AcpiFiles, BootOrder, Contents, DebugConsole, Dma, Flash, FwCfg, Image, Key, NothingToStart, Ports, e820,
    shadow,
};
use crate::kvm::{Rom, RomSlot};
use crate::layout::{self, COM1_PORT};
use crate::memory::{GuestMemory, RamRange, ram_ranges};
use crate::state::SharedSection;

/// What is already there of the VM, for firmware to learn.
pub(super) struct VmFacts<'a> {
    pub(super) memory: &'a GuestMemory,
    pub(super) apic_ids: &'a [u8],
    pub(super) boot_order: BootOrder,
    /// Notified when firmware finds no boot device.
    pub(super) nothing: NothingToStart,
    /// The VM is loaded, and not booted.
    pub(super) loads: bool,
}

/// What firmware brings.
pub(super) struct Installed {
    /// Has to live as long as the VM.
    pub(super) rom: Rom,
    /// Devices that have state.
    pub(super) sections: Vec<(&'static str, SharedSection)>,
}

/// Adds firmware to `assembly`, with the devices that it needs. With `loads`, RAM stays as it is.
pub(super) fn install(
    config: &VmConfig,
    firmware: &Firmware,
    assembly: &Assembly,
    VmFacts { memory, apic_ids, boot_order, nothing, loads }: VmFacts<'_>,
) -> Result<Installed, BuildError> {
    let image = Image::at_reset_vector(&firmware.code)?;
    if !loads {
        shadow(&firmware.code, memory)?;
    }
    let mut sections: Vec<(_, SharedSection)> = Vec::new();
    if let Some(file) = &firmware.variables {
        sections.push(("flash", variables(file, image.start, assembly)?));
    }
    let rom = Rom::map(assembly.vm.fd.clone(), RomSlot::Code, image.start, image.region)?;

    let mut contents = Contents::new();
    vcpus(&mut contents, apic_ids);
    contents.file("etc/e820", e820(config.memory))?;
    contents.file("bootorder", boot_order.file())?;
    settings(&mut contents, firmware)?;
    identity(&mut contents, config)?;
    acpi(&mut contents, config, assembly, apic_ids)?;

    let device = Arc::new(FwCfg::new(contents, memory.clone()));
    sections.push(("firmware configuration", device.clone()));
    let buses = &assembly.buses;
    buses.port("firmware configuration", (layout::FW_CFG_PORT, 2), Arc::new(Ports(device.clone())))?;
    buses.port("firmware configuration", (layout::FW_CFG_DMA_PORT, 8), Arc::new(Dma(device)))?;
    let log = DebugConsole::new(nothing);
    buses.port("firmware log", (layout::FIRMWARE_LOG_PORT, 1), Arc::new(log))?;
    Ok(Installed { rom, sections })
}

/// The flash with the variables, which ends where the code starts.
fn variables(file: &File, end: u64, assembly: &Assembly) -> Result<Arc<Flash>, BuildError> {
    let Image { start, region } = Image::map(file, end)?;
    let size = region.size();
    let rom = Rom::map(assembly.vm.fd.clone(), RomSlot::Variables, start, region)?;
    let file = file.try_clone().map_err(super::device("flash"))?;
    let flash = Arc::new(Flash::new(file, size, Box::new(rom)));
    match BusRange::new(start, end - start).map(|range| assembly.buses.mmio.insert(range, flash.clone())) {
        Some(Err(source)) => Err(BuildError::Place { device: "flash", source }),
        Some(Ok(())) | None => Ok(flash),
    }
}

fn vcpus(contents: &mut Contents, apic_ids: &[u8]) {
    let count = u16::try_from(apic_ids.len()).unwrap_or(u16::MAX);
    let limit = apic_ids.iter().max().map_or(1, |highest| u16::from(*highest) + 1);
    contents.item(Key::VcpuPool, &count.to_le_bytes());
    contents.item(Key::MaxCpus, &limit.to_le_bytes());
}

/// How firmware behaves: it does not wait for keys, and does not start over when there is nothing to start.
fn settings(contents: &mut Contents, firmware: &Firmware) -> Result<(), BuildError> {
    const FOR_EVER: u32 = u32::MAX;
    contents.item(Key::BootMenu, &0_u16.to_le_bytes());
    contents.item(Key::NoGraphics, &u16::from(firmware.on_serial).to_le_bytes());
    contents.file("etc/show-boot-menu", vec![0])?;
    contents.file("etc/boot-fail-wait", FOR_EVER.to_le_bytes().to_vec())?;
    if firmware.on_serial {
        contents.file("etc/sercon-port", COM1_PORT.to_le_bytes().to_vec())?;
    }
    Ok(())
}

fn identity(contents: &mut Contents, config: &VmConfig) -> Result<(), BuildError> {
    let identity = config.smbios.clone().unwrap_or_default();
    let (anchor, tables) =
        smbios::for_firmware(&identity, config.cpus, config.memory).ok_or(BuildError::SmbiosTooLong)?;
    contents.item(Key::Uuid, &identity.uuid.unwrap_or_default());
    contents.file("etc/smbios/smbios-anchor", anchor)?;
    contents.file("etc/smbios/smbios-tables", tables)?;
    Ok(())
}

/// The tables are made when they are first read: by then firmware has placed configuration space and BARs. Their
/// sizes have to be known before that.
fn acpi(
    contents: &mut Contents,
    config: &VmConfig,
    assembly: &Assembly,
    apic_ids: &[u8],
) -> Result<(), BuildError> {
    let ranges = ram_ranges(config.memory);
    let end = |range: Option<&RamRange>| range.map_or(0, |range| range.start + range.len);
    let (low_end, memory_end) = (end(ranges.first()), end(ranges.last()));
    let apic_ids = apic_ids.to_vec();
    let programmed = assembly.pci.programmed();
    let (ps2, panic_port) = (config.graphics.is_some(), config.panic_devices.contains(&PanicModel::Isa));
    let (hotplug, tables) = (assembly.hotplug_slots(), config.acpi_tables.clone());
    let numa = super::numa(config);
    let make = move || {
        let windows = Windows::chosen(low_end, memory_end, programmed.ecam(), &programmed.high_bars());
        tracing::debug!(?windows, "what firmware has chosen");
        let apic_ids = &apic_ids;
        let (numa, tables) = (numa.as_ref(), &*tables);
        let platform = Platform { apic_ids, windows, ps2, panic_port, hotplug, numa, tables };
        AcpiFiles::new(&Blobs::new(&platform))
    };
    let sizes = make().sizes();
    let late = move || {
        let files = make();
        if !files.fits(&sizes) {
            tracing::error!("the ACPI tables exceed the size that was reported to firmware");
        }
        files.into_files()
    };
    contents.files_made_late(&sizes, late)?;
    Ok(())
}
