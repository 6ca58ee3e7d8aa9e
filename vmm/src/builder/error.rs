use std::io;

use vm_memory::GuestMemoryError;

use crate::ahci::AhciError;
use crate::arch::x86_64::acpi::PlaceError;
use crate::arch::x86_64::topology::TopologyError;
use crate::block::ImageError;
use crate::boot::LoadError as KernelError;
use crate::bus::BusError;
use crate::firmware::{FileError, ImageError as FirmwareError};
use crate::hotplug::HotplugError;
use crate::kvm::{KvmError, KvmUnusable};
use crate::memory::MemoryError;
use crate::pci::RootError;
use crate::state::LoadError;
use crate::virtio::DeviceError;
use crate::virtio::net::NetError;

/// Why a VM cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// This host cannot run VMs.
    #[error("KVM is not usable")]
    Kvm(#[from] KvmUnusable),
    /// The kernel rejected a step.
    #[error("cannot make the VM")]
    VmConfig(#[from] KvmError),
    /// No guest memory.
    #[error("cannot make the guest's memory")]
    Memory(#[from] MemoryError),
    /// The vCPUs cannot be numbered.
    #[error("cannot lay out the vCPUs")]
    Topology(#[from] TopologyError),
    /// More vCPUs than this host's KVM has.
    #[error("{wanted} vCPUs are more than the {max} this host's KVM has")]
    TooManyVcpus {
        /// The requested number.
        wanted: u8,
        /// KVM's limit.
        max: usize,
    },
    /// A device could not be made.
    #[error("cannot make the {device}")]
    Device {
        /// What it is to the user.
        device: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Two devices claim an address.
    #[error("cannot place the {device}")]
    Place {
        /// What it is to the user.
        device: &'static str,
        /// Which address.
        #[source]
        source: BusError,
    },
    /// The PCI bus, or a function on it.
    #[error("cannot place the {device}")]
    Pci {
        /// What it is to the user.
        device: &'static str,
        /// Why.
        #[source]
        source: RootError,
    },
    /// A disk's image cannot be used.
    #[error("cannot use disk number {number}")]
    Disk {
        /// Counted from 1, in the VM's order.
        number: usize,
        /// Why.
        #[source]
        source: ImageError,
    },
    /// A disk that was attached to the VM before its reset.
    #[error("cannot attach a disk again")]
    Hotplug(#[from] HotplugError),
    /// A virtio device could not be made.
    #[error("cannot make a device")]
    Virtio(#[from] DeviceError),
    /// The SATA controller could not be made.
    #[error("cannot make the SATA drives")]
    Sata(#[from] AhciError),
    /// A NIC's tap device cannot be used.
    #[error("cannot make a NIC")]
    Net(#[from] NetError),
    /// The saved VM cannot be loaded.
    #[error("cannot load the saved VM")]
    Saved(#[from] LoadError),
    /// The kernel, its initrd or its command line.
    #[error("cannot load the kernel")]
    Load(#[from] KernelError),
    /// The firmware's image.
    #[error("cannot use the firmware")]
    Firmware(#[from] FirmwareError),
    /// The firmware's configuration.
    #[error("cannot describe the VM to the firmware")]
    FirmwareFile(#[from] FileError),
    /// ACPI tables cannot be placed.
    #[error("cannot place the ACPI tables")]
    Acpi(#[from] PlaceError),
    /// The texts for SMBIOS leave no room for each other.
    #[error("the SMBIOS texts are longer than 64 KiB in all")]
    SmbiosTooLong,
    /// Something outside guest memory was to be written there.
    #[error("cannot write the {what} to guest memory")]
    Write {
        /// What was to be written.
        what: &'static str,
        /// Why.
        #[source]
        source: GuestMemoryError,
    },
}
