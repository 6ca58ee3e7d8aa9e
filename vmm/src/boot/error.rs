use std::io;

use vm_memory::GuestMemoryError;

use super::decompress::Compression;

/// Why a kernel cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The kernel file cannot be read.
    #[error("the kernel file cannot be read")]
    ReadKernel(#[source] io::Error),
    /// The initrd file cannot be read.
    #[error("the initrd file cannot be read")]
    ReadInitrd(#[source] io::Error),
    /// The file is something else; the text names it, and a remedy where one is known.
    #[error("the kernel file is not a bootable x86_64 kernel: it is {0}")]
    NotAKernel(String),
    /// A kernel image that ends too early.
    #[error("the kernel file is truncated: its headers describe {expected} bytes, it has {actual}")]
    Truncated {
        /// Bytes the headers describe.
        expected: u64,
        /// Bytes there are.
        actual: u64,
    },
    /// A kernel image whose headers contradict themselves.
    #[error("the kernel file is damaged: {0}")]
    Damaged(&'static str),
    /// The compressed payload of a bzImage does not decompress.
    #[error("the kernel's {compression} payload is damaged")]
    Payload {
        /// How it is compressed.
        compression: Compression,
        /// What the decompressor found.
        #[source]
        source: io::Error,
    },
    /// The payload decompresses to another size than its header has, or to more than the image reserves.
    #[error(
        "the kernel's payload is damaged: it decompresses to other than the {expected} bytes it declares"
    )]
    PayloadSize {
        /// What it declares.
        expected: u64,
    },
    /// The kernel needs more memory than the VM has below 4 GiB.
    #[error(
        "memory is too small for this kernel: it needs {needed} bytes from address {from:#x}, and there are {ram} \
         bytes of RAM below 4 GiB"
    )]
    MemoryTooSmall {
        /// What the kernel reserves.
        needed: u64,
        /// The lowest address it can be at.
        from: u64,
        /// RAM below 4 GiB.
        ram: u64,
    },
    /// An ELF kernel is linked to run at addresses without RAM.
    #[error(
        "the kernel is linked for {start:#x}-{end:#x}, and RAM for it spans 0x100000-{ram:#x}: give more memory"
    )]
    KernelOutsideMemory {
        /// First address of the kernel.
        start: u64,
        /// End of the kernel.
        end: u64,
        /// End of low RAM.
        ram: u64,
    },
    /// The initrd does not fit beside the kernel.
    #[error(
        "the initrd does not fit: it has {size} bytes and {room} bytes are free beside the kernel; give more memory or \
         a smaller initrd"
    )]
    InitrdTooLarge {
        /// Size of the file.
        size: u64,
        /// Free bytes.
        room: u64,
    },
    /// The initrd file has no content.
    #[error("the initrd file is empty")]
    InitrdEmpty,
    /// The command line is longer than this kernel takes.
    #[error("the command line has {length} bytes and this kernel takes {limit}")]
    CommandLineTooLong {
        /// Bytes given.
        length: usize,
        /// Bytes this kernel takes, without the NUL.
        limit: usize,
    },
    /// The command line has a NUL byte.
    #[error("the command line contains a NUL byte")]
    CommandLineNul,
    /// The system gave no random numbers for KASLR.
    #[error("no random numbers for the kernel's address; `nokaslr` on its command line does without")]
    Random(#[source] io::Error),
    /// Guest memory does not cover what has just been checked to fit.
    #[error("guest memory cannot be written")]
    Memory(#[source] GuestMemoryError),
}
