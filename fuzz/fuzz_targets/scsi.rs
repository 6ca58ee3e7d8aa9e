//! SCSI commands to a disk and to a CD-ROM drive.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_vmm::fuzzing::scsi(script));
