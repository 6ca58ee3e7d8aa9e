//! OCI images as archives.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_importer::fuzzing::archive(script));
