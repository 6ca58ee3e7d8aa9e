//! Descriptor chains (section 2.7.4), walked and checked once, before any device looks at them.

use virtio_queue::DescriptorChain;
use virtio_queue::desc::split::Descriptor;

use super::{GuestMemory, Segments};
use crate::memory::OutsideMemory;

/// The most buffers in a chain: what one vectored system call takes.
const MAX_SEGMENTS: usize = 1024;

/// The obligation to answer a chain that was taken from a queue.
#[derive(Debug)]
#[must_use = "every chain is answered exactly once"]
pub struct Pending {
    head: u16,
}

/// An answered chain, for [`super::VirtQueue::push`].
#[derive(Debug)]
#[must_use = "the driver learns of the answer when it is pushed"]
pub struct Finished {
    head: u16,
    written: u32,
}

impl Pending {
    pub(super) fn new(head: u16) -> Self {
        Self { head }
    }

    /// Answers: `written` bytes were written into the chain, from the first writable one.
    pub fn finish(self, written: u32) -> Finished {
        Finished { head: self.head, written }
    }
}

impl Finished {
    pub(super) fn head(&self) -> u16 {
        self.head
    }

    pub(super) fn written(&self) -> u32 {
        self.written
    }
}

/// Why invalid descriptor chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// Its last descriptor has the NEXT flag: a bad index, a loop, or a bad indirect table.
    #[error("the chain breaks off")]
    Broken,
    /// More than 1024 buffers.
    #[error("the chain has too many buffers")]
    TooLong,
    /// A buffer for the device to read behind one for it to write.
    #[error("a readable buffer follows a writable one")]
    Disordered,
    /// A buffer is not in RAM.
    #[error("a buffer lies outside of RAM")]
    OutsideMemory,
}

/// The buffers of one chain.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// What the device reads.
    pub readable: Segments,
    /// What the device writes.
    pub writable: Segments,
}

impl Chain {
    /// Walks all of the chain, and takes its buffers in place of those before.
    pub(super) fn fill(
        &mut self,
        memory: &GuestMemory,
        mut descriptors: DescriptorChain<&GuestMemory>,
    ) -> Result<(), ChainError> {
        self.readable.clear();
        self.writable.clear();
        let mut last: Option<Descriptor> = None;
        for descriptor in &mut descriptors {
            last = Some(descriptor);
            self.add(memory, &descriptor)?;
        }
        // The iterator stops in silence at whatever it cannot follow.
        match last {
            Some(last) if !last.has_next() => Ok(()),
            Some(_) | None => Err(ChainError::Broken),
        }
    }

    fn add(&mut self, memory: &GuestMemory, descriptor: &Descriptor) -> Result<(), ChainError> {
        let list = if descriptor.is_write_only() {
            &mut self.writable
        } else if self.writable.is_empty() {
            &mut self.readable
        } else {
            return Err(ChainError::Disordered);
        };
        if descriptor.len() == 0 {
            return Ok(());
        }
        if list.count() >= MAX_SEGMENTS {
            return Err(ChainError::TooLong);
        }
        list.push(memory, descriptor.addr(), descriptor.len())
            .map_err(|OutsideMemory| ChainError::OutsideMemory)
    }
}
