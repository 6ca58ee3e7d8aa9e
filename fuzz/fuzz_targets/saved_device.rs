//! The saved states of devices, which go on from there.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_vmm::fuzzing::saved_device(script));
