//! From what is wanted to what is there: one task per VMI, so that nobody's slow step holds another.
//!
//! Each task goes round: `observe` what is there, [`decide`] the next step, `act` it out,
//! write the [`status`], wait for a change.

mod act;
mod backoff;
mod deadline;
pub mod decide;
mod desired;
mod end;
mod health;
mod machine;
mod plug;
mod publish;
mod record;
pub mod status;
pub mod supervise;
mod volumes;

pub(crate) use deadline::{EXIT_TIMEOUT, time_to_end};
pub(crate) use record::grace;
