//! What depends on the processor architecture.

pub(crate) mod x86_64;
