//! Images that are damaged, too large, or not images.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;

fn rejection(kernel: &KernelBoot, size: u64) -> String {
    match load_with(&memory(size), kernel, RSDP, &mut || Ok(0)) {
        Err(err) => err.to_string(),
        Ok(entry) => panic!("started at {entry:?}"),
    }
}

#[test]
fn what_does_not_fit_is_refused_with_its_size() {
    let image = Sample::default().bzimage(Compression::Gzip);
    assert!(rejection(&boot(&image, None, ""), 8 * MIB).contains("memory is too small"));
    let initrd = vec![1; 6 << 20];
    assert!(rejection(&boot(&image, Some(&initrd), ""), 12 * MIB).contains("memory is too small"));
    let initrd = vec![1; 32 << 20];
    let text = rejection(&boot(&image, Some(&initrd), ""), 24 * MIB);
    assert!(text.contains("initrd does not fit: it has 33554432 bytes"), "{text}");
    assert!(rejection(&boot(&image, Some(&[]), ""), 64 * MIB).contains("initrd file is empty"));
    let long = "x".repeat(2048);
    let text = rejection(&boot(&image, None, &long), 64 * MIB);
    assert!(text.contains("2048 bytes and this kernel takes 2047"), "{text}");
    assert!(rejection(&boot(&image, None, "a\0b"), 64 * MIB).contains("NUL"));
    let elf = Sample::default().elf();
    assert!(rejection(&boot(&elf, None, ""), 16 * MIB).contains("linked for"));
    assert!(rejection(&boot(&elf, Some(&vec![1; 4 << 20]), ""), 20 * MIB).contains("initrd does not fit"));
}

#[test]
fn damaged_images_are_refused_by_what_is_wrong() {
    let sample = Sample::default();
    let good = sample.bzimage(Compression::Gzip);
    let with = |at: usize, bytes: &[u8]| {
        let mut image = good.clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        boot(&image, None, "")
    };
    let table: &[(KernelBoot, &str)] = &[
        (with(0x206, &[0, 2]), "boot protocol 2.0"),
        (with(0x214, &[0; 4]), "real mode"),
        (with(0x211, &[0]), "zImage"),
        (with(0x236, &[0]), "32-bit kernel"),
        (with(0x230, &[3, 0, 0, 0]), "alignment"),
        (with(0x258, &[1]), "neither a load address"),
        (with(0x260, &[0; 4]), "neither a load address"),
        (with(0x260, &[0, 0x10, 0, 0]), "decompresses to other than"),
        (boot(&good[..good.len() - 100], None, ""), "truncated"),
        (boot(&good[..0x210], None, ""), "truncated"),
        (with(good.len() - 4, &[1]), "damaged"),
        (with(good.len() - 900, &[0x55; 64]), "damaged"),
        (boot(b"", None, ""), "empty file"),
        (boot(b"#!/bin/sh", None, ""), "script"),
    ];
    for (kernel, part) in table {
        let text = rejection(kernel, 64 * MIB);
        assert!(text.contains(part), "{text:?} should mention {part:?}");
    }
}

#[test]
fn directories_and_programs_are_no_kernels() {
    let directory =
        KernelBoot { kernel: File::open("/").unwrap(), initrd: None, command_line: String::new() };
    assert!(rejection(&directory, 64 * MIB).contains("a directory"));
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let text = rejection(&boot(&program, None, ""), 64 * MIB);
    assert!(text.contains("ELF"), "{text}");
}

#[test]
fn a_payload_that_swells_is_stopped_at_what_it_declares() {
    let sample = Sample::default();
    for compression in
        [Compression::Gzip, Compression::Xz, Compression::Zstd, Compression::Lz4, Compression::Lzo]
    {
        let mut bomb = sample.elf();
        bomb.resize(64 << 20, 0);
        let mut packed = sample::pack(&bomb, compression);
        if compression != Compression::Gzip {
            packed.extend(0x4000_u32.to_le_bytes());
        }
        let text = rejection(&boot(&sample.wrap(&packed, packed.len()), None, ""), 128 * MIB);
        assert!(text.contains("decompresses to other than"), "{compression}: {text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_file_makes_loading_panic(bytes in prop::collection::vec(any::<u8>(), 0..4096), elf: bool) {
        let mut bytes = bytes;
        if elf && bytes.len() > 20 {
            bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
            bytes[16..20].copy_from_slice(&[2, 0, 62, 0]);
        } else if bytes.len() > 0x264 {
            bytes[0x202..0x208].copy_from_slice(b"HdrS\x0f\x02");
        }
        let _ = load_with(&memory(32 * MIB), &boot(&bytes, None, ""), RSDP, &mut || Ok(0));
    }

    #[test]
    fn no_change_to_an_image_makes_loading_panic(
        compression in select(&Compression::ALL[..]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        in_headers: bool,
    ) {
        let mut image = Sample::default().bzimage(compression);
        let range = if in_headers { 0x1f1..0x270 } else { 0..image.len() };
        for (index, byte) in changes {
            let at = range.start + index.index(range.len());
            image[at] = byte;
        }
        let _ = load_with(&memory(64 * MIB), &boot(&image, None, ""), RSDP, &mut || Ok(u64::MAX));
    }

    #[test]
    fn no_change_to_an_uncompressed_image_makes_loading_panic(
        changes in prop::collection::vec((0_usize..0x100, any::<u8>()), 1..8),
        tail in prop::collection::vec(any::<u32>(), 0..16),
    ) {
        let sample = Sample { relocations: tail, ..Sample::default() };
        let mut plain = sample.payload();
        for (at, byte) in changes {
            plain[at] = byte;
        }
        let declared = u32::try_from(plain.len()).unwrap().to_le_bytes();
        plain.extend(declared);
        let image = sample.wrap(&plain, plain.len());
        let _ = load_with(&memory(64 * MIB), &boot(&image, None, ""), RSDP, &mut || Ok(u64::MAX));
        let _ = load_with(&memory(64 * MIB), &boot(&plain, Some(b"i"), ""), RSDP, &mut || Ok(u64::MAX));
    }
}
