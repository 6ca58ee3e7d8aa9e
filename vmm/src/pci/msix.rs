//! MSI-X (PCI 3.0, section 6.8.2): a table of vectors the guest programs, with masks and pending bits.
//!
//! Signalling takes no lock: it looks at one atomic and writes one eventfd. Changes to the table are serialised.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use vmm_sys_util::eventfd::EventFd;

use super::ConfigSpace;
use crate::irq::{MsiMessage, MsiRouter, MsiVector};
use crate::state::SectionError;

/// Capability id.
pub const MSIX_CAPABILITY: u8 = 0x11;
const ENTRY_SIZE: u64 = 16;
/// Message control, in the upper byte: enable and function mask.
const CONTROL_ENABLE: u8 = 1 << 7;
const CONTROL_MASK: u8 = 1 << 6;
const VECTOR_MASKED: u32 = 1;

/// The vectors of one function.
pub struct Msix {
    entries: Vec<Entry>,
    state: Mutex<State>,
}

struct Entry {
    vector: Arc<dyn MsiVector>,
    /// Masked in any way; a signal sets `pending` instead.
    blocked: AtomicBool,
    pending: AtomicBool,
}

struct State {
    enabled: bool,
    masked: bool,
    /// Address low, address high, data, vector control.
    table: Vec<[u32; 4]>,
    /// What each unblocked vector is routed to.
    routed: Vec<Option<MsiMessage>>,
}

/// The table and the pending bits, as they are saved. Message control is in configuration space.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MsixState {
    table: Vec<[u32; 4]>,
    pending: Vec<bool>,
}

impl Msix {
    /// `count` vectors, masked.
    pub fn new(router: &dyn MsiRouter, count: u16) -> io::Result<Self> {
        let entries = (0..count)
            .map(|_| {
                let vector = router.allocate()?;
                Ok(Entry { vector, blocked: AtomicBool::new(true), pending: AtomicBool::new(false) })
            })
            .collect::<io::Result<Vec<_>>>()?;
        let table = vec![[0, 0, 0, VECTOR_MASKED]; entries.len()];
        let routed = vec![None; entries.len()];
        Ok(Self { entries, state: Mutex::new(State { enabled: false, masked: false, table, routed }) })
    }

    /// How many vectors.
    pub fn count(&self) -> u16 {
        // `new` made them from a u16.
        u16::try_from(self.entries.len()).unwrap_or(u16::MAX)
    }

    /// Appends the capability: the table at `table` and the pending bits at `pending` of BAR 0. Answers where the
    /// capability begins.
    pub fn add_capability(&self, config: &mut ConfigSpace, table: u32, pending: u32) -> u8 {
        let mut body = [0; 10];
        body[..2].copy_from_slice(&self.count().saturating_sub(1).to_le_bytes());
        body[2..6].copy_from_slice(&table.to_le_bytes());
        body[6..].copy_from_slice(&pending.to_le_bytes());
        config.add_capability(MSIX_CAPABILITY, &body, &[0, CONTROL_ENABLE | CONTROL_MASK])
    }

    /// Takes the upper byte of message control after the guest wrote the capability.
    pub fn set_control(&self, upper: u8) {
        let mut state = self.lock();
        state.enabled = upper & CONTROL_ENABLE != 0;
        state.masked = upper & CONTROL_MASK != 0;
        for index in 0..self.entries.len() {
            self.apply(&mut state, index);
        }
    }

    /// Whether the guest switched it on.
    pub fn is_enabled(&self) -> bool {
        self.lock().enabled
    }

    /// Signals a vector; one that is masked becomes pending. A vector that does not exist is ignored.
    pub fn trigger(&self, index: u16) {
        let Some(entry) = self.entries.get(usize::from(index)) else { return };
        if entry.blocked.load(Ordering::SeqCst) {
            entry.pending.store(true, Ordering::SeqCst);
            // Unblocked in between: the thread that clears the pending bit signals.
            if entry.blocked.load(Ordering::SeqCst) || !entry.pending.swap(false, Ordering::SeqCst) {
                return;
            }
        }
        if let Err(error) = entry.vector.trigger() {
            tracing::warn!(%error, index, "an interrupt could not be signalled");
        }
    }

    /// Another descriptor of the eventfd that signals a vector, for kernel helpers. While the vector is masked, a signal
    /// stays in it.
    pub fn eventfd(&self, index: u16) -> Option<io::Result<EventFd>> {
        self.entries.get(usize::from(index)).map(|entry| entry.vector.eventfd().try_clone())
    }

    /// Reads the table.
    pub fn read_table(&self, offset: u64, data: &mut [u8]) {
        let state = self.lock();
        for (step, byte) in (0..).zip(data) {
            *byte = table_byte(&state.table, offset.saturating_add(step)).unwrap_or(0xff);
        }
    }

    /// Writes the table: aligned dwords and qwords, as the specification requires; anything else is ignored.
    pub fn write_table(&self, offset: u64, data: &[u8]) {
        let (words, []) = data.as_chunks::<4>() else { return };
        if !offset.is_multiple_of(4) {
            return;
        }
        let mut state = self.lock();
        for (step, word) in (0..).step_by(4).zip(words) {
            let at = offset.saturating_add(step);
            let (Ok(index), Ok(field)) =
                (usize::try_from(at / ENTRY_SIZE), usize::try_from(at % ENTRY_SIZE / 4))
            else {
                return;
            };
            let Some(register) = state.table.get_mut(index).and_then(|entry| entry.get_mut(field)) else {
                return;
            };
            *register = u32::from_le_bytes(*word);
            self.apply(&mut state, index);
        }
    }

    /// Reads the pending bits: one a vector, in qwords.
    pub fn read_pending(&self, offset: u64, data: &mut [u8]) {
        for (step, byte) in (0..).zip(data) {
            *byte = (0..8).fold(0, |bits, bit| {
                let at = offset.saturating_add(step);
                let entry = at.checked_mul(8).and_then(|at| usize::try_from(at + bit).ok());
                let pending = entry
                    .and_then(|entry| self.entries.get(entry))
                    .is_some_and(|entry| entry.pending.load(Ordering::SeqCst));
                bits | u8::from(pending) << bit
            });
        }
    }

    /// The state now.
    pub(crate) fn save(&self) -> MsixState {
        let pending = self.entries.iter().map(|entry| entry.pending.load(Ordering::SeqCst)).collect();
        MsixState { table: self.lock().table.clone(), pending }
    }

    /// Takes a state over, before message control: pending vectors are signalled when they are unmasked.
    pub(crate) fn load(&self, MsixState { table, pending }: MsixState) -> Result<(), SectionError> {
        let mut state = self.lock();
        if table.len() != self.entries.len() || pending.len() != self.entries.len() {
            return Err(SectionError::Invalid("it has another number of interrupt vectors"));
        }
        state.table = table;
        for (entry, pending) in self.entries.iter().zip(pending) {
            entry.pending.store(pending, Ordering::SeqCst);
        }
        for index in 0..self.entries.len() {
            self.apply(&mut state, index);
        }
        Ok(())
    }

    /// Applies the registers to one vector.
    fn apply(&self, state: &mut State, index: usize) {
        let open = state.enabled && !state.masked;
        let (Some(entry), Some(&[low, high, data, control]), Some(routed)) =
            (self.entries.get(index), state.table.get(index), state.routed.get_mut(index))
        else {
            return;
        };
        if !open || control & VECTOR_MASKED != 0 {
            entry.blocked.store(true, Ordering::SeqCst);
            if routed.take().is_some()
                && let Err(error) = entry.vector.mask()
            {
                tracing::warn!(%error, index, "a vector could not be masked");
            }
            return;
        }
        let message = MsiMessage { address: u64::from(high) << 32 | u64::from(low), data };
        if *routed != Some(message) {
            match entry.vector.route(message) {
                Ok(()) => *routed = Some(message),
                Err(error) => tracing::warn!(%error, index, ?message, "a vector could not be routed"),
            }
        }
        entry.blocked.store(false, Ordering::SeqCst);
        if entry.pending.swap(false, Ordering::SeqCst)
            && let Err(error) = entry.vector.trigger()
        {
            tracing::warn!(%error, index, "a pending interrupt could not be signalled");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn table_byte(table: &[[u32; 4]], at: u64) -> Option<u8> {
    let entry = table.get(usize::try_from(at / ENTRY_SIZE).ok()?)?;
    let word = entry.get(usize::try_from(at % ENTRY_SIZE / 4).ok()?)?;
    word.to_le_bytes().get(usize::try_from(at % 4).ok()?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pci::tests::FakeRouter;

    fn unmask(msix: &Msix, vector: u64, data: u32) {
        msix.write_table(vector * 16, &0xfee0_1000_u64.to_le_bytes());
        msix.write_table(vector * 16 + 8, &u64::from(data).to_le_bytes());
    }

    #[test]
    fn a_vector_signals_only_enabled_and_unmasked() {
        let router = FakeRouter::default();
        let msix = Msix::new(&router, 2).unwrap();
        msix.trigger(0);
        assert_eq!(router.delivered(), []);
        msix.set_control(0x80);
        unmask(&msix, 0, 0x41);
        assert_eq!(router.delivered(), [(0xfee0_1000, 0x41)], "the pending one is delivered on unmask");
        msix.trigger(0);
        msix.trigger(1);
        msix.trigger(77);
        assert_eq!(router.delivered().len(), 2);
    }

    #[test]
    fn masking_the_function_collects_pending_bits() {
        let router = FakeRouter::default();
        let msix = Msix::new(&router, 70).unwrap();
        msix.set_control(0x80);
        unmask(&msix, 69, 0x55);
        msix.set_control(0xc0);
        msix.trigger(69);
        let mut bits = [0; 8];
        msix.read_pending(8, &mut bits);
        assert_eq!(u64::from_le_bytes(bits), 1 << 5);
        assert_eq!(router.delivered(), []);
        msix.set_control(0x80);
        assert_eq!(router.delivered(), [(0xfee0_1000, 0x55)]);
        msix.read_pending(8, &mut bits);
        assert_eq!(bits, [0; 8]);
    }

    #[test]
    fn odd_accesses_to_the_table_are_harmless() {
        let msix = Msix::new(&FakeRouter::default(), 1).unwrap();
        let mut data = [0; 8];
        msix.read_table(12, &mut data);
        assert_eq!(data, [1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        msix.write_table(0, &[1; 3]);
        msix.write_table(2, &[1; 4]);
        msix.write_table(12, &[0xff; 8]);
        msix.write_table(u64::MAX - 3, &[0xff; 4]);
        msix.read_table(u64::MAX - 3, &mut data);
        msix.read_pending(u64::MAX - 7, &mut data);
        assert_eq!(data, [0; 8]);
    }
}
