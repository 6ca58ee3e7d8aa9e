//! Layers of OCI images.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_importer::fuzzing::layer(script));
