//! A port with a name (section 5.3, with multiport): bytes between a program of the guest and a socket of the host.
//!
//! What the guest writes goes to the socket, whose reader may be slower: what does not fit is lost, as on a line that
//! without a listener. What comes from the socket waits there until a program has opened the port and gives buffers.

mod control;
#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::control::{Control, SIZE};
use super::{
    Chain, Device, DeviceInfo, DeviceState, GuestMemory, Lane, Queues, Request, RingError, Segments,
    VirtQueue,
};
use crate::config::Port as Wanted;
use crate::state::SectionError;

/// Section 5.
const DEVICE_ID: u16 = 3;
/// `VIRTIO_CONSOLE_F_MULTIPORT`
const MULTIPORT: u64 = 1 << 1;
const QUEUE_SIZE: u16 = 64;
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const CONTROL_RECEIVE: usize = 2;
const CONTROL_TRANSMIT: usize = 3;
/// How much is copied at a time, and the most one chain is listened to.
const PIECE: usize = 4096;
const MAX_OUTPUT: u64 = 1 << 20;
/// How many buffers are used before the worker looks at everything else.
const BUDGET: usize = 256;
/// Columns and lines, which are not offered; how many ports there are; and what is not offered either.
const CONFIG: [u8; 12] = [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// A device with one port.
pub struct Port {
    line: UnixStream,
    opened: Arc<dyn Fn(bool) + Send + Sync>,
    control: Control,
    /// A program of the guest has it open.
    open: bool,
    /// Came from the socket, and waits for buffers.
    waiting: Vec<u8>,
    /// Nothing will come any more.
    ended: bool,
}

impl Port {
    /// A port as it is wanted.
    pub fn new(wanted: &Wanted) -> io::Result<Self> {
        let line = wanted.line.try_clone()?;
        line.set_nonblocking(true)?;
        Ok(Self {
            line,
            opened: Arc::clone(&wanted.opened.0),
            control: Control::new(&wanted.name),
            open: false,
            waiting: Vec::new(),
            ended: false,
        })
    }

    fn set_open(&mut self, open: bool) {
        if self.open != open {
            self.open = open;
            self.waiting.clear();
            (self.opened)(open);
        }
    }

    /// Passes on what the guest writes.
    fn write_out(&mut self, memory: &GuestMemory, mut readable: Segments) {
        let mut left = usize::try_from(readable.len().min(MAX_OUTPUT)).unwrap_or(0);
        let mut piece = Vec::new();
        while left > 0 && self.open {
            let count = left.min(PIECE);
            left -= count;
            piece.resize(count, 0);
            let Some(part) = readable.take_front(count as u64) else { return };
            if let Err(error) = part.read(memory, &mut piece) {
                tracing::debug!(%error, "what a port was written could not be read");
                return;
            }
            match self.line.write(&piece) {
                Ok(written) if written == count => {}
                lost => {
                    tracing::debug!(?lost, count, "output of a port is dropped: no reader");
                    return;
                }
            }
        }
    }

    /// A control message of the driver.
    fn obey(&mut self, memory: &GuestMemory, readable: Segments) {
        let mut message = [0; SIZE];
        let heard = readable.len() >= SIZE as u64 && readable.read(memory, &mut message).is_ok();
        if !heard {
            tracing::debug!("a control message that is none is passed over");
        } else if let Some(open) = self.control.handle(message) {
            self.set_open(open);
        }
    }

    /// Fetches what waits in the socket, once what was fetched before is gone.
    fn fetch(&mut self) {
        if !self.waiting.is_empty() || !self.open || self.ended {
            return;
        }
        self.waiting.resize(PIECE, 0);
        let count = match self.line.read(&mut self.waiting) {
            Ok(0) => {
                self.ended = true;
                0
            }
            Ok(count) => count,
            Err(error) => {
                self.ended = !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                0
            }
        };
        self.waiting.truncate(count);
    }

    /// Gives the guest what was fetched, as far as it has buffers.
    fn feed(&mut self, queue: &mut VirtQueue) -> Result<(), RingError> {
        for _ in 0..BUDGET {
            if self.waiting.is_empty() {
                return queue.publish();
            }
            let Some(done) = answer(queue, &self.waiting)? else { return queue.publish() };
            self.waiting.drain(..done.min(self.waiting.len()));
        }
        queue.again();
        queue.publish()
    }

    /// Gives the driver what it has to know, as far as it has buffers. A message that does not fit is lost.
    fn send_control(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        let Ok(queue) = queues.get(CONTROL_RECEIVE) else { return Ok(()) };
        while let Some(message) = self.control.next() {
            if answer(queue, message)?.is_none() {
                break;
            }
            self.control.sent();
        }
        queue.publish()
    }
}

/// A VM that is gone has no program that has it open.
impl Drop for Port {
    fn drop(&mut self) {
        self.set_open(false);
    }
}

/// Writes the beginning of `bytes` to the next chain, and returns how much that was; `None` without a chain.
fn answer(queue: &mut VirtQueue, bytes: &[u8]) -> Result<Option<usize>, RingError> {
    let Some(Request { pending, chain }) = queue.pop()? else { return Ok(None) };
    let written = match chain {
        Ok(Chain { writable, .. }) => {
            let room = usize::try_from(writable.len()).unwrap_or(usize::MAX);
            let bytes = bytes.get(..room).unwrap_or(bytes);
            writable.write(queue.memory(), bytes).map_or(0, |()| bytes.len())
        }
        Err(error) => {
            tracing::debug!(%error, "invalid descriptor chain");
            0
        }
    };
    queue.push(pending.finish(u32::try_from(written).unwrap_or(0)))?;
    Ok(Some(written))
}

impl Device for Port {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "port",
            id: DEVICE_ID,
            class: 0x07_80_00,
            features: MULTIPORT,
            queues: vec![QUEUE_SIZE; 4],
            config: Arc::new(CONFIG.to_vec()),
            state: DeviceState::None,
        }
    }

    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
        vec![self]
    }
}

/// What a port has beside its queues, as it is saved. What is in the socket is the host's.
#[derive(Debug, Serialize, Deserialize)]
struct PortState {
    open: bool,
    waiting: Vec<u8>,
    control: (bool, Vec<Vec<u8>>),
}

impl Lane for Port {
    fn save(&self) -> Result<Vec<u8>, SectionError> {
        let (waiting, control) = (self.waiting.clone(), self.control.save());
        let state = PortState { open: self.open, waiting, control };
        postcard::to_allocvec(&state).map_err(SectionError::Encoding)
    }

    fn load(&mut self, state: &[u8]) -> Result<(), SectionError> {
        let state: PortState = postcard::from_bytes(state).map_err(SectionError::Encoding)?;
        if state.waiting.len() > PIECE || !self.control.load(state.control) {
            return Err(SectionError::Invalid("more waits in a port than there is room for"));
        }
        self.set_open(state.open);
        self.waiting = state.waiting;
        Ok(())
    }

    fn activate(&mut self, features: u64) -> io::Result<()> {
        self.deactivate();
        self.control.begin(features & MULTIPORT != 0);
        Ok(())
    }

    fn deactivate(&mut self) {
        self.set_open(false);
        self.control.begin(false);
    }

    fn process_queue(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        let ring = queues.get(queue)?;
        match queue {
            RECEIVE => self.feed(ring),
            CONTROL_RECEIVE => self.send_control(queues),
            TRANSMIT | CONTROL_TRANSMIT => {
                ring.drain(|memory, pending, chain| {
                    match chain {
                        Ok(Chain { readable, .. }) if queue == TRANSMIT => self.write_out(memory, readable),
                        Ok(Chain { readable, .. }) => self.obey(memory, readable),
                        Err(error) => tracing::debug!(%error, "invalid descriptor chain"),
                    }
                    pending.finish(0)
                })?;
                self.send_control(queues)
            }
            other => Err(RingError::Absent(other)),
        }
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        (self.open && self.waiting.is_empty() && !self.ended).then(|| self.line.as_fd())
    }

    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        self.fetch();
        match queues.get(RECEIVE) {
            Ok(queue) => self.feed(queue),
            // No buffer; it waits.
            Err(_) => Ok(()),
        }
    }
}

/// For fuzzing: control messages and output, each a buffer of the memory.
#[cfg(fuzzing)]
pub(crate) fn fuzz(memory: &GuestMemory, buffers: impl Iterator<Item = (bool, Segments)>) {
    let (_reader, line) = UnixStream::pair().expect("a socket");
    let wanted = Wanted::new("fuzz", line, crate::config::Opened::new(|_| {}));
    let mut port = Port::new(&wanted).expect("a port");
    port.activate(MULTIPORT).expect("it starts");
    for (control, buffer) in buffers {
        if control {
            port.obey(memory, buffer);
        } else {
            port.write_out(memory, buffer);
        }
    }
    let mut waiting = 0;
    while port.control.next().is_some() {
        port.control.sent();
        waiting += 1;
    }
    assert!(waiting <= 8, "more messages than there is room for");
}
