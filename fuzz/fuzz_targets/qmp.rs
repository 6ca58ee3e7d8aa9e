//! What QEMU says.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_launcher::fuzzing::qmp(script));
