//! Manifests and indexes of registries.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_importer::fuzzing::registry(script));
