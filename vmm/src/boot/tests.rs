//! Whole images through [`load_with`]: small synthetic ones made by `sample`, and real ones where they are named.

mod hostile;
mod real;

use std::io::Write;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use linux_loader::bootparam::boot_params;

use super::decompress::Compression;
use super::*;
use crate::config::KernelBoot;

use super::sample::{BASE, Sample};

const MIB: u64 = 1 << 20;
const RSDP: GuestAddress = GuestAddress(0xE_0000);

fn memory(size: u64) -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), usize::try_from(size).unwrap())]).unwrap()
}

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn boot(kernel: &[u8], initrd: Option<&[u8]>, command_line: &str) -> KernelBoot {
    KernelBoot { kernel: file(kernel), initrd: initrd.map(file), command_line: command_line.to_owned() }
}

fn zero_page(memory: &GuestMemoryMmap) -> boot_params {
    memory.read_obj(GuestAddress(BOOT_PARAMS)).unwrap()
}

fn u64_at(memory: &GuestMemoryMmap, address: u64) -> u64 {
    memory.read_obj(GuestAddress(address)).unwrap()
}

#[test]
fn every_compression_ends_in_the_same_memory() {
    let sample = Sample::default();
    for compression in Compression::ALL {
        let memory = memory(128 * MIB);
        let kernel = boot(&sample.bzimage(compression), None, "console=ttyS0 nokaslr");
        let entry = load_with(&memory, &kernel, RSDP, &mut || panic!("nokaslr draws nothing")).unwrap();
        let wanted =
            Entry::Linux64 { rip: GuestAddress(BASE + 0x40), boot_params: GuestAddress(BOOT_PARAMS) };
        assert_eq!(entry, wanted, "{compression}");
        let mut text = vec![0; sample.text.len()];
        memory.read_slice(&mut text, GuestAddress(BASE)).unwrap();
        assert!(text == sample.text, "{compression}: the first segment differs");
        let mut data = vec![0; sample.data.len()];
        memory.read_slice(&mut data, GuestAddress(BASE + sample::DATA)).unwrap();
        assert!(data == sample.data, "{compression}: the second segment differs");
        assert_eq!(zero_page(&memory).hdr.loadflags & 2, 0, "{compression}");
    }
}

#[test]
fn a_random_address_relocates_the_image() {
    let sample = Sample::default();
    let memory = memory(128 * MIB);
    let mut draws = [u64::MAX, 1 << 63].into_iter();
    let kernel = boot(&sample.bzimage(Compression::Gzip), None, "quiet");
    let entry = load_with(&memory, &kernel, RSDP, &mut || Ok(draws.next().unwrap())).unwrap();
    // 8 MiB are reserved, so 124 MiB is the last address but one that is aligned to 2 MiB.
    let physical = 120 * MIB;
    let boot_params = GuestAddress(BOOT_PARAMS);
    assert_eq!(entry, Entry::Linux64 { rip: GuestAddress(physical + 0x40), boot_params });
    // Half of the (1024 - 16 - 8) / 2 + 1 addresses in the kernel map.
    let slide = 250 * 2 * MIB;
    assert_eq!(u64_at(&memory, physical + sample::WIDE), sample::WIDE_VALUE + slide);
    let narrow = u64_at(&memory, physical + sample::NARROW) & 0xffff_ffff;
    assert_eq!(narrow, u64::from(sample::NARROW_VALUE) + slide);
    let inverse = u64_at(&memory, physical + sample::INVERSE) & 0xffff_ffff;
    assert_eq!(inverse, u64::from(sample::INVERSE_VALUE) - slide);
    assert_eq!(zero_page(&memory).hdr.loadflags & 2, 2, "the flag is set");
}

#[test]
fn a_kernel_without_relocations_stays_where_it_is_linked_in_virtual_memory() {
    let sample = Sample { relocations: Vec::new(), ..Sample::default() };
    let memory = memory(128 * MIB);
    let kernel = boot(&sample.bzimage(Compression::Zstd), None, "");
    let entry = load_with(&memory, &kernel, RSDP, &mut || Ok(0)).unwrap();
    assert!(matches!(entry, Entry::Linux64 { rip, .. } if rip.0 == BASE + 0x40));
    assert_eq!(u64_at(&memory, BASE + sample::WIDE), sample::WIDE_VALUE);
    assert_eq!(zero_page(&memory).hdr.loadflags & 2, 0);
}

#[test]
fn what_is_unknown_here_is_left_to_the_image_itself() {
    let sample = Sample::default();
    let unknown = sample.wrap(b"neither compressed nor an image", 100);
    let unknown_table = Sample { relocations: vec![1, 2, 3], ..Sample::default() };
    for image in [unknown, unknown_table.bzimage(Compression::Gzip), sample.wrap(b"", 0)] {
        let memory = memory(128 * MIB);
        let entry = load_with(&memory, &boot(&image, None, ""), RSDP, &mut || Ok(0)).unwrap();
        assert!(matches!(entry, Entry::Linux64 { rip, .. } if rip.0 == BASE + 0x200), "{entry:?}");
        let mut head = vec![0; image.len() - sample::PROTECTED];
        memory.read_slice(&mut head, GuestAddress(BASE)).unwrap();
        assert!(head == image[sample::PROTECTED..]);
        assert_eq!(zero_page(&memory).hdr.loadflags & 2, 0, "the kernel sets it itself");
    }
}

#[test]
fn a_program_for_one_address_is_put_there() {
    // The header of memtest86+: pages of 4 KiB, at 1 MiB, not relocatable, and no payload.
    let mut image = Sample::default().wrap(b"", 0);
    image[0x230..0x236].copy_from_slice(&[0, 0x10, 0, 0, 0, 12]);
    image[0x248..0x24c].fill(0);
    image[0x258..0x260].copy_from_slice(&MIB.to_le_bytes());
    let memory = memory(64 * MIB);
    let entry =
        load_with(&memory, &boot(&image, None, ""), RSDP, &mut || panic!("nothing is random")).unwrap();
    assert!(matches!(entry, Entry::Linux64 { rip, .. } if rip.0 == MIB + 0x200), "{entry:?}");
    assert_eq!({ zero_page(&memory).hdr.pref_address }, MIB);
}

#[test]
fn the_zero_page_describes_the_vm() {
    let sample = Sample::default();
    let memory = memory(128 * MIB);
    let initrd = vec![7; 5000];
    let kernel = boot(&sample.bzimage(Compression::Xz), Some(&initrd), "console=ttyS0");
    load(&memory, &kernel, RSDP).unwrap();
    let page = zero_page(&memory);
    let hdr = page.hdr;
    assert_eq!({ page.acpi_rsdp_addr }, RSDP.0);
    assert_eq!({ hdr.type_of_loader }, 0xff);
    // What the kernel takes, not what it got: memtest86+ reads as much, and a NUL ends the last word.
    assert_eq!({ hdr.cmdline_size }, 2047);
    assert_eq!({ hdr.ramdisk_image }, u32::try_from(128 * MIB - 8192).unwrap());
    assert_eq!({ hdr.ramdisk_size }, 5000);
    let mut copy = vec![0; initrd.len()];
    memory.read_slice(&mut copy, GuestAddress(u64::from(hdr.ramdisk_image))).unwrap();
    assert_eq!(copy, initrd);
    let mut text = [0; 14];
    memory.read_slice(&mut text, GuestAddress(u64::from(hdr.cmd_line_ptr))).unwrap();
    assert_eq!(&text, b"console=ttyS0\0");
    let map: Vec<_> = page.e820_table[..usize::from(page.e820_entries)]
        .iter()
        .map(|row| (row.addr, row.size, row.r#type))
        .collect();
    let rows = [(0, 0x9_FC00, 1), (0x9_FC00, 0x6_0400, 2), (MIB, 127 * MIB, 1), (0xB000_0000, 256 * MIB, 2)];
    assert_eq!(map, rows);
}

#[test]
fn loading_again_from_the_same_files_gives_the_same() {
    let sample = Sample::default();
    let kernel = boot(&sample.bzimage(Compression::Lz4), Some(&[9; 100]), "");
    for _ in 0..2 {
        let memory = memory(64 * MIB);
        load_with(&memory, &kernel, RSDP, &mut || Ok(0)).unwrap();
        assert_eq!(u64_at(&memory, 64 * MIB - 4096), 0x0909_0909_0909_0909);
        assert_eq!(u64_at(&memory, BASE), u64::from_le_bytes(sample.text[..8].try_into().unwrap()));
    }
}

#[test]
fn elf_kernels_start_by_pvh_or_by_the_64_bit_protocol() {
    let plain = Sample::default().elf();
    let pvh = Sample { pvh_entry: Some(u32::try_from(BASE).unwrap() + 0x80), ..Sample::default() }.elf();
    let memory = memory(64 * MIB);
    let entry = load(&memory, &boot(&plain, None, "a"), RSDP).unwrap();
    let boot_params = GuestAddress(BOOT_PARAMS);
    assert_eq!(entry, Entry::Linux64 { rip: GuestAddress(BASE + 0x40), boot_params });
    assert_eq!({ zero_page(&memory).hdr.header }, 0x5372_6448);

    let entry = load(&memory, &boot(&pvh, Some(b"initrd"), "hello"), RSDP).unwrap();
    let start_info = GuestAddress(START_INFO);
    assert_eq!(entry, Entry::Pvh { rip: GuestAddress(BASE + 0x80), start_info });
    assert_eq!(u64_at(&memory, START_INFO) & 0xffff_ffff, 0x336e_c578);
    let module = u64_at(&memory, START_INFO + 16);
    assert_eq!(u64_at(&memory, module), 64 * MIB - 4096);
    assert_eq!(u64_at(&memory, module + 8), 6);
    assert_eq!(u64_at(&memory, START_INFO + 24), COMMAND_LINE);
    assert_eq!(u64_at(&memory, START_INFO + 32), RSDP.0);
}
