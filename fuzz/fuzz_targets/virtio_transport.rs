//! Drivers of the other virtio devices: SCSI, port, display, keyboard, tablet, balloon, entropy.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_vmm::fuzzing::virtio_transport(script));
