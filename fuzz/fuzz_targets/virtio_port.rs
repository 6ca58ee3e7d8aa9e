//! Control messages and output of a port.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_vmm::fuzzing::virtio_port(script));
