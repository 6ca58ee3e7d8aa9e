//! DHCP, DHCPv6 and router solicitations.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| vireo_launcher::fuzzing::dhcp(script));
