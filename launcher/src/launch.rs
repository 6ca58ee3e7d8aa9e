//! The launch message, checked: what the rest of the launcher works from.
//!
//! The protocol allows an absent part, an unknown enum number, an invalid MAC address. All such problems are
//! reported here, together, so that no later code checks again.

mod check;
#[cfg(any(test, fuzzing))]
pub(crate) mod sample;
mod types;

pub use check::{LaunchError, disk_to_attach, nic_to_attach};
pub use types::*;
