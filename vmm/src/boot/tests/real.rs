//! A distribution's kernel, where one is named.

use std::time::Instant;

use super::*;

/// Loads the kernels named by `VIREO_TEST_KERNELS` (paths separated by colons) with and without KASLR and compares
/// what is in memory: the random image, moved back by its relocations' slide, is the plain one.
#[test]
#[ignore = "needs VIREO_TEST_KERNELS=path[:path...] to bzImages"]
fn real_kernels_differ_only_by_their_slide() {
    let paths = std::env::var("VIREO_TEST_KERNELS").unwrap();
    for path in paths.split(':') {
        let kernel = |line: &str| KernelBoot {
            kernel: File::open(path).unwrap(),
            initrd: None,
            command_line: line.to_owned(),
        };
        let plain = memory(512 * MIB);
        let start = Instant::now();
        let fixed = load(&plain, &kernel("nokaslr"), RSDP).unwrap();
        let without = start.elapsed();
        let random = memory(512 * MIB);
        let start = Instant::now();
        // The second draw, the slide, is 200 MiB more or less; the first keeps the address.
        let mut draws = [0, u64::MAX / 5].into_iter();
        let entry = load_with(&random, &kernel(""), RSDP, &mut || Ok(draws.next().unwrap())).unwrap();
        let with = start.elapsed();
        assert_eq!(fixed, entry);
        let (rip, flags) = match entry {
            Entry::Linux64 { rip, .. } => (rip, zero_page(&random).hdr.loadflags),
            Entry::Pvh { .. } => panic!("a bzImage starts by the Linux protocol"),
        };
        assert_eq!(flags & 2, 2, "{path} has relocations");
        let changed = (rip.0..rip.0 + 48 * MIB)
            .step_by(8)
            .filter(|at| u64_at(&plain, *at) != u64_at(&random, *at))
            .count();
        assert!(changed > 10_000, "{path}: only {changed} words moved");
        println!("{path}: {without:?} without KASLR, {with:?} with, {changed} words moved");
    }
}
