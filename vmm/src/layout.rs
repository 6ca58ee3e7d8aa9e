//! The address map of the x86_64 VM, like that of a Q35, so that stock firmware finds what it expects.
//!
//! ```text
//! 0x0000_0000  RAM below the hole (at most 2 GiB once there is RAM above 4 GiB, else up to 0xB000_0000)
//! 0xB000_0000  PCIe ECAM, 256 buses (firmware may move it: see `pci`)
//! 0xC000_0000  32-bit PCI window
//! 0xFEC0_0000  IOAPIC
//! 0xFEE0_0000  local APICs
//! 0xFEFF_C000  KVM's identity map page and TSS pages (clear of the flash window above)
//! 0xFF00_0000  flash, top-aligned at 4 GiB
//! 0x1_0000_0000  RAM above 4 GiB, then the 64-bit PCI window
//! ```

/// Where RAM must stop below 4 GiB when all of it fits: the ECAM window starts here.
pub const RAM_BELOW_4G_MAX: u64 = 0xB000_0000;
/// Where low RAM stops when there is RAM above 4 GiB too (QEMU's Q35 split).
pub const RAM_BELOW_4G_SPLIT: u64 = 0x8000_0000;
/// Start of RAM above the hole.
pub const RAM_ABOVE_4G: u64 = 0x1_0000_0000;

/// PCIe enhanced configuration access: 1 MiB a bus.
pub const ECAM_START: u64 = 0xB000_0000;
/// 256 buses.
pub const ECAM_SIZE: u64 = 0x1000_0000;
/// The highest bus number in the guest's tables: there are no bridges. Linux looks for peer buses up to the number in
/// the MCFG, one configuration access after the other: with 255 that is 16 thousand exits in every boot.
pub const PCI_LAST_BUS: u8 = 0;
/// Window for 32-bit BARs.
pub const PCI32_START: u64 = 0xC000_0000;
/// Ends where the IOAPIC begins.
pub const PCI32_SIZE: u64 = 0xFEC0_0000 - PCI32_START;
/// Window for I/O BARs.
pub const PCI_IO_START: u16 = 0xC000;
/// Ends at the top of the port space.
pub const PCI_IO_SIZE: u32 = 0x4000;
/// The 64-bit window starts at the first multiple of this above RAM.
pub const PCI64_ALIGN: u64 = 1 << 32;
/// Size of the 64-bit window.
pub const PCI64_SIZE: u64 = 1 << 36;

/// The IOAPIC's registers.
pub const IOAPIC_START: u64 = 0xFEC0_0000;
/// The local APICs' registers.
pub const LAPIC_START: u64 = 0xFEE0_0000;
/// One page for `KVM_SET_IDENTITY_MAP_ADDR`.
pub const IDENTITY_MAP_START: u64 = 0xFEFF_C000;
/// Three pages for `KVM_SET_TSS_ADDR`.
pub const TSS_START: u64 = 0xFEFF_D000;

/// Where firmware images may be.
pub const FLASH_START: u64 = 0xFF00_0000;
/// Where they end: vCPUs start 16 bytes below.
pub const FLASH_END: u64 = 0x1_0000_0000;

/// First serial port: eight registers.
pub const COM1_PORT: u16 = 0x3F8;
/// Line of the first serial port.
pub const COM1_IRQ: u32 = 4;
/// RTC index and data.
pub const RTC_PORT: u16 = 0x70;
/// Line of the RTC.
pub const RTC_IRQ: u32 = 8;
/// Lines of the PS/2 keyboard and mouse.
pub const PS2_IRQS: (u32, u32) = (1, 12);
/// i8042 data (0x60) and command (0x64).
pub const I8042_PORT: u16 = 0x60;
/// PCI configuration address (0xCF8) and data (0xCFC).
pub const PCI_CONFIG_PORT: u16 = 0xCF8;
/// The reset control register; the ACPI reset register points here.
pub const RESET_PORT: u16 = 0xCF9;
/// The pvpanic device.
pub const PANIC_PORT: u16 = 0x505;
/// ICH9 power management block: PM1 event, PM1 control (+4), PM timer (+8), GPE0 (+0x20).
pub const PM_PORT: u16 = 0x600;
/// Size of the power management block.
pub const PM_SIZE: u16 = 0x80;
/// Offset and length of GPE0 in the power management block: half of it is status, half is enable.
pub const GPE0_OFFSET: u16 = 0x20;
/// As on an ICH9.
pub const GPE0_LENGTH: u8 = 16;
/// The general-purpose event of PCI hotplug.
pub const HOTPLUG_GPE: u8 = 1;
/// The PCI hotplug controller, where a Q35 of QEMU has its own.
pub const HOTPLUG_PORT: u16 = 0xCC0;
/// Size of the PCI hotplug controller.
pub const HOTPLUG_SIZE: u16 = 12;
/// ACPI's own line.
pub const SCI_IRQ: u32 = 9;
/// `fw_cfg`: selector, and data behind it.
pub const FW_CFG_PORT: u16 = 0x510;
/// `fw_cfg`: address of a DMA request, eight bytes.
pub const FW_CFG_DMA_PORT: u16 = 0x514;
/// What firmware does goes here as text.
pub const FIRMWARE_LOG_PORT: u16 = 0x402;
/// The debug port: writes show in the monitor's log; boot benchmarks mark their milestones here.
pub const DEBUG_PORT: u16 = 0x80;

/// Interrupt lines of the IOAPIC.
pub const IOAPIC_PINS: u32 = 24;
/// The PIRQ lines of the LPC bridge.
pub const PIRQS: usize = 8;
/// PIRQA is this pin of the IOAPIC, and the others follow.
pub const PIRQ_GSI_START: u32 = 16;
/// The PIC lines of PIRQA to PIRQD, and of PIRQE to PIRQH again: what firmware programs too.
pub const PIRQ_ISA: [u8; 4] = [10, 10, 11, 11];
/// First GSI that is not an IOAPIC pin: message-signalled vectors are routed from here.
pub const MSI_GSI_START: u32 = IOAPIC_PINS;
