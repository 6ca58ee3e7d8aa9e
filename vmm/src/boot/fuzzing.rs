//! Entry point to kernels, and kernels to begin with.

use std::fs::File;

use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::decompress::Compression;
use super::{Entry, load_with, ram, sample};
use crate::config::KernelBoot;

/// A kernel in fresh memory of 32 MiB, with random numbers that are none.
pub(crate) fn run(kernel: File, initrd: Option<File>) {
    const RAM: usize = 32 << 20;
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), RAM)]).expect("address space");
    let kernel = KernelBoot { kernel, initrd, command_line: "console=ttyS0".to_owned() };
    let Ok(entry) = load_with(&memory, &kernel, GuestAddress(0xE_0000), &mut || Ok(1 << 62)) else { return };
    let (Entry::Linux64 { rip, boot_params: data } | Entry::Pvh { rip, start_info: data }) = entry;
    assert!(rip.0 >= ram::HIGH_START, "the entry lies in what is not the kernel's");
    assert!(data.0 < ram::HIGH_START, "the parameters are where the kernel may be");
}

/// Small kernels of each kind.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let small = || sample::Sample {
        text: (0..0x800_u32).map(|at| at.to_le_bytes()[0]).collect(),
        data: vec![7; 0x100],
        ..sample::Sample::default()
    };
    let mut seeds: Vec<_> = Compression::ALL.into_iter().map(|kind| small().bzimage(kind)).collect();
    seeds.push(small().elf());
    seeds.push(sample::Sample { pvh_entry: Some(0x100_0080), ..small() }.elf());
    seeds
}
