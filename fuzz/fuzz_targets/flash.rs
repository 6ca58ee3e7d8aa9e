//! Commands to the flash that holds firmware's variables.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_vmm::fuzzing::flash(script));
