//! Bytes of a VNC viewer.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_vmm::fuzzing::rfb(script));
