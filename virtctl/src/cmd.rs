//! One verb, one file.

pub(crate) mod console;
pub(crate) mod lifecycle;
pub(crate) mod version;
pub(crate) mod vnc;

/// What a verb ends with when it does not succeed.
pub(crate) type Failure = Box<dyn std::error::Error>;
