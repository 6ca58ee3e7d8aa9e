//! The validated parts of a VM.
//!
//! The API's specification, the launch message, the launcher and the monitor share these types. A part is declared
//! here once; its conversion to and from the launch message is in `vireo-proto`. The crate has no dependencies and
//! does no I/O: paths are values.

mod acpi_table;
mod boot;
mod cpu;
mod cpu_placement;
mod disk;
mod extra;
mod fields;
mod host_device;
mod huge_page;
mod hyperv;
mod io_threads;
mod name;
mod native;
mod nic;
mod numa;
mod pci_slot;
mod platform;
mod reboot;
mod smbios;
mod video;

pub use acpi_table::{AcpiTable, InvalidAcpiTable};
pub use boot::{BootSource, KernelFiles};
pub use cpu::{Cpu, CpuFeature, CpuModel, CpuTopology, CpuTopologyError, InvalidCpuName, is_cpu_name};
pub use cpu_placement::CpuPlacement;
pub use disk::{
    BlockSize, CacheMode, Disk, DiskBus, DiskDevice, DiskSource, DiskTuning, ErrorPolicy, IoMode,
    VIRTIO_SERIAL_LEN,
};
pub use extra::{DeviceRequest, ExtraDevice, PanicModel, SoundModel, WatchdogAction};
pub use fields::FieldPaths;
pub use host_device::{HostDevice, MdevUuid, ParseAddressError, PciAddress, UsbAddress};
pub use huge_page::HugePage;
pub use hyperv::{HyperV, HyperVFeature, HyperVVendor, InvalidVendor};
pub use io_threads::IoThreads;
pub use name::UnknownName;
pub use native::{
    NATIVE_HOTPLUG_SLOTS, NATIVE_MEMORY, NATIVE_NUMA_NODES, NATIVE_SLOTS, NativeNic, NativeRequest,
    Requirement, SATA_PORTS, unsupported_by_native,
};
pub use nic::{MAX_QUEUE_PAIRS, MacAddr, NicModel, ParseMacError};
pub use numa::{GuestNode, GuestNuma, HostNode, NumaError};
pub use pci_slot::{InvalidPciSlot, PciSlot};
pub use platform::PlatformFeature;
pub use reboot::RebootPolicy;
pub use smbios::{Chassis, Smbios};
pub use video::Video;
