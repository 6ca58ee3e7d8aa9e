//! The requests of a disk that are carried out beside each other.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::super::{GuestMemory, Pending, Segments};
use super::request::Operation;
use crate::block::engine::{self, CAPACITY, Completion, Engine, FileOperation, ImageFile};

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

/// A request that is over, with the bytes that its operation moved.
#[derive(Debug)]
pub(super) struct Landed {
    pub(super) started: Started,
    pub(super) moved: io::Result<u64>,
}

/// Requests in flight, by the tags of their operations.
pub(super) struct Flight {
    engine: Box<dyn Engine>,
    requests: Vec<Option<Started>>,
    free: Vec<usize>,
    completed: Vec<Completion>,
}

impl Flight {
    /// With an engine for the files of a disk.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn new(disk: Vec<std::fs::File>, memory: &GuestMemory) -> io::Result<Self> {
        Ok(Self::on(engine::start(disk, memory)?))
    }

    /// With this engine.
    pub(super) fn on(engine: Box<dyn Engine>) -> Self {
        let requests = (0..CAPACITY).map(|_| None).collect();
        Self { engine, requests, free: (0..CAPACITY).rev().collect(), completed: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == CAPACITY
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Begins a request, with the next [`Self::commit`]. `place` is where the operation's bytes are.
    ///
    /// # Errors
    /// With the request, when the engine does not take it.
    pub(super) fn begin(
        &mut self,
        started: Started,
        (file, offset): (ImageFile, u64),
        durable: bool,
    ) -> Result<(), Started> {
        let operation = match &started.operation {
            Operation::Read { to, .. } => FileOperation::Read { offset, to },
            Operation::Write { from, .. } => FileOperation::Write { offset, from, durable },
            Operation::Flush => FileOperation::Sync,
            Operation::Id { .. } | Operation::Discard(_) | Operation::WriteZeroes(_) => return Err(started),
        };
        let Some(tag) = self.free.pop() else { return Err(started) };
        if let Err(error) = self.engine.prepare(tag, file, operation) {
            tracing::debug!(%error, "a disk request is carried out by itself");
            self.free.push(tag);
            return Err(started);
        }
        if let Some(slot) = self.requests.get_mut(tag) {
            *slot = Some(started);
        }
        Ok(())
    }

    /// As [`Engine::commit`].
    pub(super) fn commit(&mut self) -> io::Result<()> {
        self.engine.commit()
    }

    /// What is over by now.
    pub(super) fn landed(&mut self) -> Vec<Landed> {
        self.engine.take_completed(&mut self.completed);
        let (requests, free) = (&mut self.requests, &mut self.free);
        let landed = self.completed.drain(..).filter_map(|Completion { tag, moved }| {
            let started = requests.get_mut(tag)?.take()?;
            free.push(tag);
            Some(Landed { started, moved })
        });
        landed.collect()
    }

    /// Waits until all are over.
    ///
    /// # Errors
    /// When the host's means fail.
    pub(super) fn land_all(&mut self) -> io::Result<Vec<Landed>> {
        self.commit()?;
        let mut landed = self.landed();
        while !self.is_empty() {
            self.engine.wait()?;
            landed.extend(self.landed());
        }
        Ok(landed)
    }

    /// Readable when a request is over.
    pub(super) fn source(&self) -> BorrowedFd<'_> {
        self.engine.source()
    }
}
