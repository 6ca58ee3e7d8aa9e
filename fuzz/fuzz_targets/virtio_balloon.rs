//! A driver of the virtio balloon, and requests for its statistics.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_vmm::fuzzing::virtio_balloon(script));
