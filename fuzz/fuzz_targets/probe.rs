//! Answers to probes, by HTTP.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_launcher::fuzzing::probe(script));
