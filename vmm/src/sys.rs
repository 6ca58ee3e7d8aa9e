//! The system calls that have no safe wrapper: the only places, with `kvm`, where `unsafe` is expected.

pub mod tap;
pub(crate) mod vectored;
