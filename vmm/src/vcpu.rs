//! Processors: the loop each of them runs in, and how they are all stopped.

mod kick;
mod run;

pub(crate) use kick::Processors;
pub use kick::StartError;
pub use run::RunError;
pub(crate) use run::Vcpu;
