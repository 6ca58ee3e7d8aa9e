//! Requests that are carried out beside each other.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;

use super::engine::{self, CAPACITY, Completion, Engine, FileOperation};
use crate::memory::GuestMemory;

/// A request that is over, with the bytes that its operation moved.
#[derive(Debug)]
pub(crate) struct Landed<T> {
    pub(crate) request: T,
    pub(crate) moved: io::Result<u64>,
}

/// How a lane carries out requests beside each other, by an engine that is made when it is first needed, on the thread that uses
/// it.
pub(crate) struct Parallel<T>(State<T>);

enum State<T> {
    /// Nothing was begun yet, on these files.
    Unused(Vec<File>),
    Flight(Flight<T>),
    /// The host has no means: one request at a time.
    Impossible,
}

impl<T> Parallel<T> {
    /// On these files.
    pub(crate) fn new(files: Vec<File>) -> Self {
        Self(State::Unused(files))
    }

    /// With this engine.
    #[cfg(test)]
    pub(crate) fn on(engine: Box<dyn Engine>) -> Self {
        Self(State::Flight(Flight::on(engine)))
    }

    /// Begins the operation of a request on one of the files, with the next [`Self::landed`].
    ///
    /// # Errors
    /// With the request, when it has to be carried out by itself.
    pub(crate) fn begin(
        &mut self,
        request: T,
        (file, memory): (usize, &GuestMemory),
        operation: impl for<'a> FnOnce(&'a T) -> FileOperation<'a>,
    ) -> Result<(), T> {
        if let State::Unused(files) = &mut self.0 {
            self.0 = match engine::start(std::mem::take(files), memory) {
                Ok(engine) => State::Flight(Flight::on(engine)),
                Err(error) => {
                    tracing::warn!(%error, "a disk serves one request at a time");
                    State::Impossible
                }
            };
        }
        match &mut self.0 {
            State::Flight(flight) => flight.begin(request, file, operation),
            State::Unused(_) | State::Impossible => Err(request),
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.flight().is_some_and(Flight::is_full)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.flight().is_none_or(Flight::is_empty)
    }

    /// Begins what was prepared; what is over by now.
    ///
    /// # Errors
    /// When the host's means fail.
    pub(crate) fn landed(&mut self) -> io::Result<Vec<Landed<T>>> {
        let State::Flight(flight) = &mut self.0 else { return Ok(Vec::new()) };
        flight.engine.commit()?;
        Ok(flight.landed())
    }

    /// Waits until nothing is in flight.
    ///
    /// # Errors
    /// As [`Self::landed`].
    pub(crate) fn land_all(&mut self) -> io::Result<Vec<Landed<T>>> {
        let State::Flight(flight) = &mut self.0 else { return Ok(Vec::new()) };
        flight.land_all()
    }

    /// Waits until nothing is in flight, of which nothing is answered.
    pub(crate) fn abandon(&mut self) {
        if let Err(error) = self.land_all() {
            tracing::error!(%error, "requests of a disk cannot be waited for");
            self.0 = State::Impossible;
        }
    }

    /// Readable when a request is over.
    pub(crate) fn source(&self) -> Option<BorrowedFd<'_>> {
        self.flight().map(|flight| flight.engine.source())
    }

    fn flight(&self) -> Option<&Flight<T>> {
        match &self.0 {
            State::Flight(flight) => Some(flight),
            State::Unused(_) | State::Impossible => None,
        }
    }
}

/// Requests in flight, by the tags of their operations.
struct Flight<T> {
    engine: Box<dyn Engine>,
    requests: Vec<Option<T>>,
    free: Vec<usize>,
    completed: Vec<Completion>,
}

impl<T> Flight<T> {
    fn on(engine: Box<dyn Engine>) -> Self {
        let requests = (0..CAPACITY).map(|_| None).collect();
        Self { engine, requests, free: (0..CAPACITY).rev().collect(), completed: Vec::new() }
    }

    fn is_empty(&self) -> bool {
        self.free.len() == CAPACITY
    }

    fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Gives the request back when the engine does not take it.
    fn begin(
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

    /// What is over by now.
    fn landed(&mut self) -> Vec<Landed<T>> {
        self.engine.take_completed(&mut self.completed);
        let (requests, free) = (&mut self.requests, &mut self.free);
        let landed = self.completed.drain(..).filter_map(|Completion { tag, moved }| {
            let request = requests.get_mut(tag)?.take()?;
            free.push(tag);
            Some(Landed { request, moved })
        });
        landed.collect()
    }

    fn land_all(&mut self) -> io::Result<Vec<Landed<T>>> {
        self.engine.commit()?;
        let mut landed = self.landed();
        while !self.is_empty() {
            self.engine.wait()?;
            landed.extend(self.landed());
        }
        Ok(landed)
    }
}
