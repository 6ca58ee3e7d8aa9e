use std::io;
use std::sync::Arc;

use vireo_vmconfig::ErrorPolicy;

use super::Backend;
use super::engine::ImageFile;
use crate::config::{Answer, LaneStall, answer};
use crate::memory::{GuestMemory, Segments};

/// A backend whose failures are answered by a policy: what the host cannot carry out may be held until it can.
///
/// All of a request's buffers are tried again, also what went before the failure: the same bytes to the same offset.
pub(super) struct Held {
    pub(super) backend: Box<dyn Backend>,
    pub(super) policy: ErrorPolicy,
    pub(super) stall: Arc<LaneStall>,
    pub(super) is_patient: bool,
}

impl Held {
    fn attempt(&mut self, mut operation: impl FnMut(&mut dyn Backend) -> io::Result<()>) -> io::Result<()> {
        let mut times = 0;
        let done = loop {
            let error = match operation(&mut *self.backend) {
                Ok(()) => break Ok(()),
                Err(error) => error,
            };
            match answer(self.policy, &error) {
                Answer::Report => break Err(error),
                Answer::Ignore => break Ok(()),
                Answer::Hold if !self.is_patient => break Err(error),
                Answer::Hold => {
                    if times == 0 {
                        tracing::warn!(%error, "a disk request is held: the host cannot carry it out");
                    }
                    let again = self.stall.hold(&error, times);
                    times += 1;
                    if !again {
                        break Err(error);
                    }
                }
            }
        };
        if times > 0 {
            tracing::info!(times, succeeded = done.is_ok(), "a disk request that was held is over");
            self.stall.over();
        }
        done
    }
}

impl Backend for Held {
    fn sectors(&self) -> u64 {
        self.backend.sectors()
    }

    fn read(&mut self, memory: &GuestMemory, to: &Segments, offset: u64) -> io::Result<()> {
        self.attempt(|backend| backend.read(memory, to, offset))
    }

    fn write(&mut self, memory: &GuestMemory, from: &Segments, offset: u64) -> io::Result<()> {
        self.attempt(|backend| backend.write(memory, from, offset))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.attempt(|backend| backend.flush())
    }

    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.attempt(|backend| backend.discard(offset, len))
    }

    fn write_zeroes(&mut self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.attempt(|backend| backend.write_zeroes(offset, len, unmap))
    }

    fn locate(&mut self, offset: u64, buffers: &Segments, write: bool) -> Option<(ImageFile, u64)> {
        self.backend.locate(offset, buffers, write)
    }

    fn grow(&mut self, sectors: u64) -> io::Result<()> {
        self.backend.grow(sectors)
    }

    fn runs_alone(&self) -> bool {
        self.backend.runs_alone()
    }

    fn set_patient(&mut self, yes: bool) {
        self.is_patient = yes;
    }

    fn prepare_flush(&mut self) -> bool {
        self.backend.prepare_flush()
    }

    fn flush_failed(&mut self, error: &io::Error) {
        self.backend.flush_failed(error);
    }

    fn open_beside(&self) -> io::Result<Option<Box<dyn Backend>>> {
        self.backend.open_beside()
    }
}
