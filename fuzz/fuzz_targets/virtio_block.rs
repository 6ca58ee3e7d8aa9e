//! A driver of a disk: registers, rings and requests.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_vmm::fuzzing::virtio_block(script));
