//! Texts of API objects and their values.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_fuzz::api(script));
