//! Processors: the loop each of them runs in, and how they are all stopped.

mod gate;
mod kick;
mod run;

pub use kick::StartError;
pub(crate) use kick::{Crew, Processors};
pub use run::RunError;
pub(crate) use run::Vcpu;
