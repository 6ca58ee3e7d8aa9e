//! Output on the guest's console.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_launcher::fuzzing::console(script));
