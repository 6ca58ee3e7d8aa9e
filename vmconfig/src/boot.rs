use std::path::PathBuf;

/// What a VM boots from.
///
/// `K` is the kernel of a direct boot. `V` are the persistent variables of EFI: in a specification whether there are any,
/// for a launcher their file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootSource<K = KernelFiles, V = Option<PathBuf>> {
    /// A kernel, without firmware.
    Kernel(K),
    /// SeaBIOS, which boots the first bootable device.
    Bios {
        /// The firmware's console is the serial port.
        use_serial: bool,
    },
    /// OVMF, which boots the first bootable device.
    Efi {
        /// With enrolled keys, so that unsigned loaders are rejected.
        secure_boot: bool,
        /// The variables that outlive the VM; without, they are reset at every start.
        persistent: V,
    },
}

/// The files of a direct kernel boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFiles {
    /// The kernel image.
    pub kernel: PathBuf,
    /// The initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// The kernel command line.
    pub command_line: String,
}
