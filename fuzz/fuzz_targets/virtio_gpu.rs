//! Requests to the graphics adapter.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_vmm::fuzzing::virtio_gpu(script));
