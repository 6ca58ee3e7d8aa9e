//! A driver of a NIC: registers, rings and frames.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_vmm::fuzzing::virtio_net(script));
