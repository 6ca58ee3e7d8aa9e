//! System calls without a safe wrapper: the only modules, with `kvm`, where `unsafe` is expected.

pub(crate) mod numa;
pub mod schedule;
pub mod tap;
pub(crate) mod vectored;
pub mod vhost;
pub(crate) mod vhost_user;
