//! Input devices (section 5.8): a tablet as pointer, and a keyboard.
//!
//! Input waits in a bounded queue for buffers of the guest. A guest that gives none loses events, always
//! whole packets, and never the release of a key whose press was reported.

mod config;
mod events;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use self::config::{Config, Kind};
use self::events::{Event, Events, SIZE};
use super::notifier::Notifier;
use super::{
    Chain, Device, DeviceInfo, DeviceState, GuestMemory, Lane, Queues, Request, RingError, Segments,
    VirtQueue,
};
use crate::display::{Key, Keyboard, Leds, Pointer, Pointing};
use crate::state::SectionError;

/// Section 5.
const DEVICE_ID: u16 = 18;
const QUEUE_SIZE: u16 = 64;
const EVENTS: usize = 0;
const STATUS: usize = 1;
/// How many buffers are used before the worker looks at everything else.
const BUDGET: usize = 256;
/// How much of one status buffer is listened to: more events than there are lights.
const MAX_STATUS: u64 = 64 * SIZE as u64;

/// A tablet or keyboard.
pub struct Input {
    kind: Kind,
    shared: Arc<Shared>,
}

/// The display whose input it gets.
struct Shared {
    state: Mutex<State>,
    notifier: Notifier,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    /// A driver is there.
    active: bool,
    events: Events,
    leds: Leds,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns input into events, if a driver is there.
    fn happen(&self, queue: impl FnOnce(&mut Events)) {
        let mut state = self.state();
        if state.active {
            queue(&mut state.events);
            drop(state);
            self.notifier.ring();
        }
    }
}

impl Pointer for Shared {
    fn active(&self) -> bool {
        self.state().active
    }

    fn point(&self, pointing: Pointing) {
        self.happen(|events| events.point(pointing));
    }
}

impl Keyboard for Shared {
    fn active(&self) -> bool {
        self.state().active
    }

    fn key(&self, key: Key, down: bool) {
        self.happen(|events| events.key(key, down));
    }

    fn leds(&self) -> Leds {
        self.state().leds
    }
}

impl Input {
    /// A tablet, and where it is pointed.
    pub fn tablet() -> io::Result<(Self, Arc<dyn Pointer>)> {
        let input = Self::new(Kind::Tablet)?;
        let pointer = input.shared.clone();
        Ok((input, pointer))
    }

    /// A keyboard, and where its keys are pressed.
    pub fn keyboard() -> io::Result<(Self, Arc<dyn Keyboard>)> {
        let input = Self::new(Kind::Keyboard)?;
        let keyboard = input.shared.clone();
        Ok((input, keyboard))
    }

    fn new(kind: Kind) -> io::Result<Self> {
        Ok(Self { kind, shared: Arc::new(Shared { state: Mutex::default(), notifier: Notifier::new()? }) })
    }

    /// Gives the guest what waits, as far as it has buffers.
    fn feed(&self, queue: &mut VirtQueue) -> Result<(), RingError> {
        self.shared.notifier.settle();
        for _ in 0..BUDGET {
            if !self.feed_one(queue)? {
                return queue.publish();
            }
        }
        queue.again();
        queue.publish()
    }

    /// Each event has a buffer of its own. `false` if there is no more of one or the other.
    fn feed_one(&self, queue: &mut VirtQueue) -> Result<bool, RingError> {
        let mut state = self.shared.state();
        let Some(event) = state.events.front() else { return Ok(false) };
        let Some(Request { pending, chain }) = queue.pop()? else { return Ok(false) };
        let written =
            chain.is_ok_and(|chain| chain.writable.write(queue.memory(), &event.to_bytes()).is_ok());
        if written {
            state.events.pop();
        } else {
            tracing::debug!("a buffer that holds no event is rejected");
        }
        queue.push(pending.finish(if written { SIZE } else { 0 }))?;
        Ok(true)
    }

    fn set_status(&self, memory: &GuestMemory, mut events: Segments) {
        let count = events.len().min(MAX_STATUS) / u64::from(SIZE);
        for _ in 0..count {
            let mut bytes = [0; SIZE as usize];
            let Some(event) = events.take_front(SIZE.into()) else { return };
            if event.read(memory, &mut bytes).is_ok() {
                Event::from_bytes(bytes).light(&mut self.shared.state().leds);
            }
        }
    }
}

impl Device for Input {
    fn info(&self) -> DeviceInfo {
        let config = Arc::new(Config::new(self.kind));
        DeviceInfo {
            name: self.kind.name(),
            id: DEVICE_ID,
            class: self.kind.class(),
            features: 0,
            queues: vec![QUEUE_SIZE; 2],
            config: config.clone(),
            state: DeviceState::Section(config),
        }
    }

    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
        vec![self]
    }
}

impl Lane for Input {
    fn activate(&mut self, _features: u64) -> io::Result<()> {
        *self.shared.state() = State { active: true, ..State::default() };
        Ok(())
    }

    fn deactivate(&mut self) {
        *self.shared.state() = State::default();
    }

    fn save(&self) -> Result<Vec<u8>, SectionError> {
        postcard::to_allocvec(&*self.shared.state()).map_err(SectionError::Encoding)
    }

    /// No viewer holds a key or a button of a VM that was loaded.
    fn load(&mut self, state: &[u8]) -> Result<(), SectionError> {
        let mut loaded: State = postcard::from_bytes(state).map_err(SectionError::Encoding)?;
        let mut state = self.shared.state();
        if !loaded.events.is_possible() {
            return Err(SectionError::Invalid("more waits in it than an input device keeps"));
        }
        if loaded.active != state.active {
            return Err(SectionError::Invalid(
                "its driver is ready, and that of the device is not, or the reverse",
            ));
        }
        loaded.events.release_all();
        *state = loaded;
        drop(state);
        self.shared.notifier.ring();
        Ok(())
    }

    fn process_queue(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        let ring = queues.get(queue)?;
        match queue {
            EVENTS => self.feed(ring),
            STATUS => ring.drain(|memory, pending, chain| {
                match chain {
                    Ok(Chain { readable, .. }) => self.set_status(memory, readable),
                    Err(error) => tracing::debug!(%error, "invalid descriptor chain"),
                }
                pending.finish(0)
            }),
            other => Err(RingError::Absent(other)),
        }
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.notifier.as_fd())
    }

    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        match queues.get(EVENTS) {
            Ok(queue) => self.feed(queue),
            Err(_) => {
                // No buffer; they wait.
                self.shared.notifier.settle();
                Ok(())
            }
        }
    }
}

/// For fuzzing: accesses to the configuration, input, and a buffer of the status queue.
#[cfg(fuzzing)]
pub(crate) fn fuzz(memory: &GuestMemory, script: &[u8], status: Segments) {
    use super::DeviceConfig;

    for kind in [Kind::Tablet, Kind::Keyboard] {
        let mut input = Input::new(kind).expect("an eventfd");
        input.activate(0).expect("it starts");
        let config = Config::new(kind);
        for pair in script.chunks_exact(2) {
            config.write(usize::from(pair[0] % 4), &pair[1..]);
            let mut answer = [0; 136];
            config.read(0, &mut answer);
            assert!(answer[2] <= 128 && answer[8 + usize::from(answer[2])..].iter().all(|byte| *byte == 0));
            let (x, y) = (u16::from(pair[0]), u16::from(pair[1]));
            input.shared.point(Pointing { x, y, width: 200, height: 0, buttons: pair[0] ^ pair[1] });
            Key::from_xt(x.into()).into_iter().for_each(|key| input.shared.key(key, y & 1 == 0));
        }
        assert!(input.shared.state().events.is_possible());
        input.set_status(memory, status.clone());
    }
}
