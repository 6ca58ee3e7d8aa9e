use std::fs::File;

/// How the VM starts.
#[derive(Debug)]
#[non_exhaustive]
pub enum Boot {
    /// The monitor loads a kernel.
    Kernel(KernelBoot),
    /// Firmware looks for something to start.
    Firmware(Firmware),
}

/// A kernel to load directly: a bzImage as a distribution ships it, or an ELF image with a PVH entry.
#[derive(Debug)]
pub struct KernelBoot {
    /// Read from the start; regular file.
    pub kernel: File,
    /// Read from the start; regular file.
    pub initrd: Option<File>,
    /// Checked against the kernel's own limit when it is loaded. No NUL byte.
    pub command_line: String,
}

/// Firmware to start, which then starts something from a device.
#[derive(Debug)]
pub struct Firmware {
    pub(crate) code: File,
    pub(crate) variables: Option<File>,
    pub(crate) on_serial: bool,
}

impl Firmware {
    /// `code` is an image that ends at 4 GiB and starts at its last 16 bytes, such as Debian's `bios-256k.bin`:
    /// whole pages, at most 16 MiB. What is in it must not change while a VM runs.
    pub fn new(code: File) -> Self {
        Self { code, variables: None, on_serial: false }
    }

    /// `variables` lies in the guest's memory right below the code, and is written as the guest writes it, such as a
    /// copy of Debian's `OVMF_VARS_4M.fd`. It must have no other writer.
    #[must_use]
    pub fn variables(mut self, file: Option<File>) -> Self {
        self.variables = file;
        self
    }

    /// A BIOS shows itself on the serial port and takes keys from there. EFI does so in any case.
    #[must_use]
    pub fn on_serial(mut self, yes: bool) -> Self {
        self.on_serial = yes;
        self
    }
}
