//! The console device (section 5.3): port 0, its output to a sink, its input from a bounded queue.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::notifier::Notifier;
use super::{
    Chain, Device, DeviceInfo, DeviceState, GuestMemory, Lane, Queues, Request, RingError, Segments,
    VirtQueue,
};
use crate::serial::SerialOutput;
use crate::state::SectionError;

/// Section 5.
const DEVICE_ID: u16 = 3;
const QUEUE_SIZE: u16 = 64;
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
/// How much input waits for a guest that does not read.
const INPUT_ROOM: usize = 4096;
/// How much of a guest's output is copied at a time, and the most one chain is listened to.
const PIECE: u64 = 4096;
const MAX_OUTPUT: u64 = 1 << 20;

/// A console.
pub struct Console {
    output: Box<dyn SerialOutput>,
    input: ConsoleInput,
}

/// Where a console's input is put.
#[derive(Clone)]
pub struct ConsoleInput(Arc<Shared>);

struct Shared {
    waiting: Mutex<VecDeque<u8>>,
    /// Rings when something waits.
    ready: Notifier,
}

impl ConsoleInput {
    /// Offers `bytes` and returns how many were taken, from the front: a guest that does not read makes nothing grow.
    pub fn push(&self, bytes: &[u8]) -> usize {
        let mut waiting = self.waiting();
        let count = bytes.len().min(INPUT_ROOM.saturating_sub(waiting.len()));
        waiting.extend(bytes.iter().take(count));
        drop(waiting);
        if count > 0 {
            self.0.ready.ring();
        }
        count
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<u8>> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Console {
    /// A console whose output goes to `output`, and the way to its input.
    pub fn new(output: Box<dyn SerialOutput>) -> io::Result<(Self, ConsoleInput)> {
        let ready = Notifier::new()?;
        let input = ConsoleInput(Arc::new(Shared { waiting: Mutex::default(), ready }));
        Ok((Self { output, input: input.clone() }, input))
    }

    fn write_out(&mut self, memory: &GuestMemory, mut readable: Segments) {
        let mut left = readable.len().min(MAX_OUTPUT);
        let mut piece = Vec::new();
        while left > 0 {
            let count = left.min(PIECE);
            left -= count;
            piece.resize(usize::try_from(count).unwrap_or(0), 0);
            let Some(part) = readable.take_front(count) else { return };
            match part.read(memory, &mut piece) {
                Ok(()) => self.output.write(&piece),
                Err(error) => tracing::debug!(%error, "console output could not be read"),
            }
        }
    }

    /// Gives the guest what waits, as far as it has buffers.
    fn feed(&mut self, queue: &mut VirtQueue) -> Result<(), RingError> {
        self.input.0.ready.settle();
        let mut waiting = self.input.waiting();
        while !waiting.is_empty() {
            let Some(Request { pending, chain }) = queue.pop()? else { break };
            let written = match chain {
                Ok(Chain { writable, .. }) => {
                    let room = usize::try_from(writable.len()).unwrap_or(usize::MAX);
                    let bytes: Vec<u8> = waiting.iter().copied().take(room).collect();
                    let done = writable.write(queue.memory(), &bytes).map_or(0, |()| bytes.len());
                    waiting.drain(..done);
                    done
                }
                Err(error) => {
                    tracing::debug!(%error, "invalid descriptor chain");
                    0
                }
            };
            queue.push(pending.finish(u32::try_from(written).unwrap_or(0)))?;
        }
        drop(waiting);
        queue.publish()
    }
}

impl Device for Console {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "console",
            id: DEVICE_ID,
            class: 0x07_80_00,
            features: 0,
            queues: vec![QUEUE_SIZE; 2],
            // cols, rows, max_nr_ports, emerg_wr: none of them offered.
            config: Arc::new(vec![0; 12]),
            state: DeviceState::None,
        }
    }

    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
        vec![self]
    }
}

impl Lane for Console {
    fn process_queue(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        let ring = queues.get(queue)?;
        match queue {
            RECEIVE => self.feed(ring),
            TRANSMIT => ring.drain(|memory, pending, chain| {
                match chain {
                    Ok(Chain { readable, .. }) => self.write_out(memory, readable),
                    Err(error) => tracing::debug!(%error, "invalid descriptor chain"),
                }
                pending.finish(0)
            }),
            other => Err(RingError::Absent(other)),
        }
    }

    /// The input that waits.
    fn save(&self) -> Result<Vec<u8>, SectionError> {
        Ok(self.input.waiting().iter().copied().collect())
    }

    fn load(&mut self, state: &[u8]) -> Result<(), SectionError> {
        if state.len() > INPUT_ROOM {
            return Err(SectionError::Invalid("more input waits than there is room for"));
        }
        *self.input.waiting() = state.iter().copied().collect();
        Ok(())
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.input.0.ready.as_fd())
    }

    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        match queues.get(RECEIVE) {
            Ok(queue) => self.feed(queue),
            Err(_) => {
                // No buffer; the bytes wait.
                self.input.0.ready.settle();
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use vm_memory::{Bytes, GuestAddress};

    use super::super::testing::{BUFFERS, Guest, VERSION_1};
    use super::*;

    fn guest() -> (Guest, ConsoleInput, mpsc::Receiver<Vec<u8>>) {
        let (send, receive) = mpsc::channel();
        let output = move |bytes: &[u8]| send.send(bytes.to_vec()).unwrap();
        let (console, input) = Console::new(Box::new(output)).unwrap();
        let mut guest = Guest::new(Box::new(console));
        guest.start(VERSION_1, 8);
        (guest, input, receive)
    }

    #[test]
    fn output_reaches_the_sink_in_order() {
        let (mut guest, _input, output) = guest();
        let text: Vec<u8> = (0..9000).map(|at| u8::try_from(at % 251).unwrap()).collect();
        guest.memory.write_slice(&text, GuestAddress(BUFFERS)).unwrap();
        guest.add(1, &[(BUFFERS, 10, false), (BUFFERS + 10, 8990, false)]);
        guest.kick(1);
        guest.wait(1, 1);
        assert_eq!(output.try_iter().flatten().collect::<Vec<_>>(), text);
    }

    #[test]
    fn input_waits_for_buffers_and_never_grows() {
        let (mut guest, input, _output) = guest();
        assert_eq!(input.push(b"hello"), 5);
        assert_eq!(input.push(&[b'x'; 5000]), INPUT_ROOM - 5);
        assert_eq!(input.push(b"y"), 0);
        guest.add(0, &[(BUFFERS, 3, true)]);
        guest.add(0, &[(BUFFERS + 16, 8, true)]);
        guest.kick(0);
        assert_eq!(guest.wait(0, 2), [(0, 3), (1, 8)]);
        let mut got = [0; 8];
        guest.memory.read_slice(&mut got, GuestAddress(BUFFERS + 16)).unwrap();
        assert_eq!(&got, b"loxxxxxx");
        assert_eq!(input.push(&[b'z'; 100]), 11);
    }

    #[test]
    fn input_that_waits_is_there_when_the_guest_goes_on() {
        let (guest, input, _output) = guest();
        assert_eq!(input.push(b"hello"), 5);
        let (console, input) = Console::new(Box::new(|_: &[u8]| {})).unwrap();
        let mut guest = guest.loaded_into(Box::new(console));
        guest.add(0, &[(BUFFERS, 3, true)]);
        guest.kick(0);
        assert_eq!(guest.wait(0, 1), [(0, 3)]);
        assert_eq!(input.push(b" world"), 6);
        guest.add(0, &[(BUFFERS + 16, 64, true)]);
        guest.kick(0);
        assert_eq!(guest.wait(0, 1), [(1, 8)]);
        let mut got = [0; 8];
        guest.memory.read_slice(&mut got, GuestAddress(BUFFERS + 16)).unwrap();
        assert_eq!(&got, b"lo world");
        let (mut console, _) = Console::new(Box::new(|_: &[u8]| {})).unwrap();
        assert!(console.load(&[0; INPUT_ROOM + 1]).is_err());
    }

    #[test]
    fn input_reaches_buffers_that_wait() {
        let (mut guest, input, _output) = guest();
        guest.add(0, &[(BUFFERS, 64, true)]);
        guest.kick(0);
        assert_eq!(input.push(b"key"), 3);
        assert_eq!(guest.wait(0, 1), [(0, 3)]);
    }
}
