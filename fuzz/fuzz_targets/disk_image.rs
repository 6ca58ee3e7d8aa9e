//! Headers of disk images, as the importer reads them.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_importer::fuzzing::disk(script));
