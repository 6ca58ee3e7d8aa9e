//! Disks of files and of cloud-init.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_handler::fuzzing::iso(script));
