//! What depends on the CPU architecture.

pub(crate) mod x86_64;
