//! Requests that are carried out beside each other.

use std::io;
use std::os::fd::BorrowedFd;

use super::engine::{CAPACITY, Completion, Engine, FileOperation};

/// A request that is over, with the bytes that its operation moved.
#[derive(Debug)]
pub(crate) struct Landed<T> {
    pub(crate) request: T,
    pub(crate) moved: io::Result<u64>,
}

/// Requests in flight, by the tags of their operations.
pub(crate) struct Flight<T> {
    engine: Box<dyn Engine>,
    requests: Vec<Option<T>>,
    free: Vec<usize>,
    completed: Vec<Completion>,
}

impl<T> Flight<T> {
    /// With this engine.
    pub(crate) fn on(engine: Box<dyn Engine>) -> Self {
        let requests = (0..CAPACITY).map(|_| None).collect();
        Self { engine, requests, free: (0..CAPACITY).rev().collect(), completed: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == CAPACITY
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Begins the operation of a request on one of the engine's files, with the next [`Self::commit`].
    ///
    /// # Errors
    /// With the request, when the engine does not take it.
    pub(crate) fn begin(
        &mut self,
        request: T,
        file: usize,
        operation: impl for<'a> FnOnce(&'a T) -> FileOperation<'a>,
    ) -> Result<(), T> {
        let Some(tag) = self.free.pop() else { return Err(request) };
        if let Err(error) = self.engine.prepare(tag, file, operation(&request)) {
            tracing::debug!(%error, "a disk request is carried out by itself");
            self.free.push(tag);
            return Err(request);
        }
        if let Some(slot) = self.requests.get_mut(tag) {
            *slot = Some(request);
        }
        Ok(())
    }

    /// As [`Engine::commit`].
    pub(crate) fn commit(&mut self) -> io::Result<()> {
        self.engine.commit()
    }

    /// What is over by now.
    pub(crate) fn landed(&mut self) -> Vec<Landed<T>> {
        self.engine.take_completed(&mut self.completed);
        let (requests, free) = (&mut self.requests, &mut self.free);
        let landed = self.completed.drain(..).filter_map(|Completion { tag, moved }| {
            let request = requests.get_mut(tag)?.take()?;
            free.push(tag);
            Some(Landed { request, moved })
        });
        landed.collect()
    }

    /// Waits until all are over.
    ///
    /// # Errors
    /// When the host's means fail.
    pub(crate) fn land_all(&mut self) -> io::Result<Vec<Landed<T>>> {
        self.commit()?;
        let mut landed = self.landed();
        while !self.is_empty() {
            self.engine.wait()?;
            landed.extend(self.landed());
        }
        Ok(landed)
    }

    /// Readable when a request is over.
    pub(crate) fn source(&self) -> BorrowedFd<'_> {
        self.engine.source()
    }
}
