//! The launch message, checked: what the rest of the launcher works from.
//!
//! The wire allows an absent part, an unknown enum number, a MAC address that is none. Here every such thing is
//! refused once, all problems together, so that nobody further in asks again.

mod check;
#[cfg(test)]
pub(crate) mod sample;
mod types;

pub use check::{LaunchError, pluggable};
pub use types::*;
