use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Answers.
pub(super) const ACK: u8 = 0xfa;
pub(super) const RESEND: u8 = 0xfe;
pub(super) const SELF_TEST_PASSED: u8 = 0xaa;
/// How many bytes of events wait for a guest that does not read: a pasted page.
pub(super) const ROOM: usize = 4096;
/// More than any command is answered with.
const MOST_ANSWERS: usize = 16;

/// Bytes that a device sends: responses before events, in a bounded buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sender {
    answers: VecDeque<u8>,
    events: VecDeque<Sent>,
    last: u8,
}

/// A byte from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sent {
    pub(super) byte: u8,
    /// The last one of an event.
    pub(super) ends: bool,
}

impl Sender {
    /// Whether no more waits than a device keeps.
    pub(super) fn is_possible(&self) -> bool {
        self.answers.len() <= MOST_ANSWERS && self.events.len() <= ROOM
    }

    /// A new command takes back what was answered to the one before.
    pub(super) fn begin_answer(&mut self) {
        self.answers.clear();
    }

    pub(super) fn answer(&mut self, bytes: &[u8]) {
        self.answers.extend(bytes);
    }

    /// Queues an event, whole or not at all, leaving `reserve` bytes free; whether there was room.
    pub(super) fn event(&mut self, bytes: &[u8], reserve: usize) -> bool {
        let fits = self.events.len() + bytes.len() + reserve <= ROOM;
        if fits {
            let last = bytes.len().saturating_sub(1);
            self.events.extend(bytes.iter().enumerate().map(|(at, &byte)| Sent { byte, ends: at == last }));
        }
        fits
    }

    pub(super) fn forget_events(&mut self) {
        self.events.clear();
    }

    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The last byte again.
    pub(super) fn resend(&mut self) {
        self.answers.push_back(self.last);
    }

    /// The next byte, of an answer only if the device `rests`.
    pub(super) fn next(&mut self, rests: bool) -> Option<Sent> {
        let answer = self.answers.pop_front().map(|byte| Sent { byte, ends: false });
        let sent = answer.or_else(|| if rests { None } else { self.events.pop_front() })?;
        self.last = sent.byte;
        Some(sent)
    }
}
