//! Devices on ports.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_vmm::fuzzing::ports(script));
