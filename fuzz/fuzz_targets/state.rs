//! Saved VMs, and the states of their devices.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_vmm::fuzzing::state(script));
