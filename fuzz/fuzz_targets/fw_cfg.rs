//! Accesses to `fw_cfg`'s ports, and DMA requests in guest memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_vmm::fuzzing::fw_cfg(script));
