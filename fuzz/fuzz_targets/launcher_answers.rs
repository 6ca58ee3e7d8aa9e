//! Messages of a launcher, and of the importer.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_handler::fuzzing::launcher_answers(script));
