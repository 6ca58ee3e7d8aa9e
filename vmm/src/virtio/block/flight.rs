//! The requests of a disk that are carried out beside each other.

use std::time::Instant;

use super::super::{Pending, Segments};
use super::request::Operation;
use crate::block::flight;

/// A request that was begun.
#[derive(Debug)]
pub(super) struct Started {
    /// The queue that it came from.
    pub(super) queue: usize,
    pub(super) pending: Pending,
    pub(super) status: Segments,
    /// How many writable bytes there are before the status.
    pub(super) data: u64,
    pub(super) operation: Operation,
    pub(super) since: Instant,
}

/// Those of one lane.
pub(super) type Parallel = flight::Parallel<Started>;
/// One that is over.
pub(super) type Landed = flight::Landed<Started>;
