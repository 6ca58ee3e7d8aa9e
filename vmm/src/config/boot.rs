use std::fs::File;

/// How the machine starts.
#[derive(Debug)]
#[non_exhaustive]
pub enum Boot {
    /// The monitor loads a kernel.
    Kernel(KernelBoot),
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
