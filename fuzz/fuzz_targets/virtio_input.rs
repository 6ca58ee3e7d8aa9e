//! Configuration and status of input devices.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_vmm::fuzzing::virtio_input(script));
