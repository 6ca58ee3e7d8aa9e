//! Answers of the guest agent.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_launcher::fuzzing::guest_agent(script));
