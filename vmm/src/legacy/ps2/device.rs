use std::collections::VecDeque;

/// Answers.
pub(super) const ACK: u8 = 0xfa;
pub(super) const RESEND: u8 = 0xfe;
pub(super) const SELF_TEST_PASSED: u8 = 0xaa;
/// How many bytes of events wait for a guest that does not read.
const ROOM: usize = 256;

/// What a device on the wire sends: answers before events, and never more than there is room for.
#[derive(Default)]
pub(super) struct Sender {
    answers: VecDeque<u8>,
    events: VecDeque<u8>,
    last: u8,
}

impl Sender {
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
            self.events.extend(bytes);
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

    pub(super) fn next(&mut self) -> Option<u8> {
        let byte = self.answers.pop_front().or_else(|| self.events.pop_front())?;
        self.last = byte;
        Some(byte)
    }
}
