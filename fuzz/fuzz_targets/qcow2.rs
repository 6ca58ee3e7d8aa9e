//! Metadata of qcow2 images, with accesses to their disk.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_vmm::fuzzing::qcow2(script));
