//! Command lists and tables of the SATA controller.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_vmm::fuzzing::ahci(script));
