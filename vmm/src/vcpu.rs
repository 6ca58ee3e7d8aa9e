//! vCPUs: the loop each of them runs in, and how they are all stopped.

mod gate;
mod pool;
mod run;
mod state;

pub use pool::StartError;
pub(crate) use pool::{VcpuControl, VcpuPool};
pub(crate) use run::{Vcpu, identify};
