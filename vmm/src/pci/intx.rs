//! Interrupt lines of functions (PCI 3.0, section 2.2.6) and how they reach the interrupt controllers: INTA# of a
//! slot is one of the eight PIRQs of the LPC bridge, which are pins 16 to 23 of the IOAPIC and, where the bridge's
//! registers say so, lines of the two PICs as well (ICH9 datasheet, sections 5.8.6 and 13.1.8).
//!
//! Lines are a fall-back: guests that can use messages do. So a lock is good enough.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{Address, ConfigSpace};
use crate::irq::IrqPins;
use crate::layout::{PIRQ_GSI_START, PIRQS};

/// A routing register that leaves the PICs alone.
const ROUTE_DISABLED: u8 = 1 << 7;
/// The PIC lines that a PIRQ may be routed to.
const ROUTABLE: [u8; 11] = [3, 4, 5, 6, 7, 9, 10, 11, 12, 14, 15];
const PIC_LINES: usize = 16;

/// The PIRQ that INTA# of a function is wired to, as on a Q35: firmware and `_PRT` count on it.
pub(crate) fn pirq(address: Address) -> u8 {
    match address.device() {
        device @ 0..25 => 4 + device % 4,
        _ => 0,
    }
}

/// The eight lines and where they lead.
pub(super) struct Pirqs {
    pins: Arc<dyn IrqPins>,
    state: Mutex<Levels>,
}

struct Levels {
    /// How many functions hold each PIRQ.
    holders: [u32; PIRQS],
    /// The bridge's registers.
    routes: [u8; PIRQS],
    /// The levels that the PICs have.
    pic: [bool; PIC_LINES],
}

impl Pirqs {
    pub(super) fn new(pins: Arc<dyn IrqPins>) -> Self {
        let routes = [ROUTE_DISABLED; PIRQS];
        let state = Mutex::new(Levels { holders: [0; PIRQS], routes, pic: [false; PIC_LINES] });
        Self { pins, state }
    }

    /// Takes the bridge's registers.
    pub(super) fn route(&self, routes: [u8; PIRQS]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.routes = routes;
        self.update_pics(&mut state);
    }

    /// One more function holds the line, or one less.
    fn hold(&self, pirq: u8, yes: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(holders) = state.holders.get_mut(usize::from(pirq)) else { return };
        let before = *holders;
        *holders = if yes { before.saturating_add(1) } else { before.saturating_sub(1) };
        let after = *holders;
        if (before > 0) != (after > 0) {
            self.set(PIRQ_GSI_START + u32::from(pirq), after > 0);
            self.update_pics(&mut state);
        }
    }

    fn update_pics(&self, state: &mut Levels) {
        let mut levels = [false; PIC_LINES];
        for (route, _) in state.routes.iter().zip(state.holders).filter(|(_, holders)| *holders > 0) {
            // With the disable bit set, the register holds no line number.
            if ROUTABLE.contains(route)
                && let Some(level) = levels.get_mut(usize::from(*route))
            {
                *level = true;
            }
        }
        for ((line, new), old) in (0..).zip(levels).zip(&mut state.pic) {
            if std::mem::replace(old, new) != new {
                self.set(line, new);
            }
        }
    }

    fn set(&self, gsi: u32, high: bool) {
        if let Err(error) = self.pins.set_level(gsi, high) {
            tracing::warn!(%error, gsi, "an interrupt line could not be set");
        }
    }
}

/// The interrupt line of one function: INTA#.
#[derive(Default)]
pub struct Intx {
    wire: OnceLock<(Arc<Pirqs>, u8)>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The function wants attention.
    wanted: bool,
    /// COMMAND forbids it.
    disabled: bool,
    /// The function is off the bus.
    cut: bool,
    /// The line is held.
    held: bool,
}

impl Intx {
    /// Connects the line.
    pub(super) fn connect(&self, pirqs: Arc<Pirqs>, address: Address) {
        // A function is on one bus, and stays there.
        let _ = self.wire.set((pirqs, pirq(address)));
    }

    /// Sets the level to what `wanted` answers. Asked under the lock of the level, so that who looks at
    /// the newest state last wins.
    pub fn set(&self, wanted: impl FnOnce() -> bool) {
        self.change(|state| state.wanted = wanted());
    }

    /// Follows COMMAND after a write to the configuration space.
    pub fn follow(&self, space: &ConfigSpace) {
        self.change(|state| state.disabled = space.is_intx_disabled());
    }

    /// Releases the line for good.
    pub(crate) fn cut(&self) {
        self.change(|state| state.cut = true);
    }

    /// The interrupt status bit: an interrupt is pending, also while it is disabled.
    pub fn is_wanted(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).wanted
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        let held = state.wanted && !state.disabled && !state.cut;
        if state.held != held
            && let Some((pirqs, pirq)) = self.wire.get()
        {
            state.held = held;
            pirqs.hold(*pirq, held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::FakePins;
    use super::*;

    fn wired() -> (FakePins, Arc<Pirqs>, [Intx; 3]) {
        let pins = FakePins::default();
        let pirqs = Arc::new(Pirqs::new(Arc::new(pins.clone())));
        let functions: [Intx; 3] = std::array::from_fn(|_| Intx::default());
        for (function, device) in functions.iter().zip([1, 5, 31]) {
            function.connect(pirqs.clone(), Address::root(device));
        }
        (pins, pirqs, functions)
    }

    #[test]
    fn a_shared_line_is_up_while_anyone_holds_it() {
        let (pins, _, [first, second, other]) = wired();
        first.set(|| true);
        second.set(|| true);
        other.set(|| true);
        assert_eq!(pins.high(), [16, 21]);
        first.set(|| false);
        first.set(|| false);
        assert_eq!(pins.high(), [16, 21]);
        second.set(|| false);
        assert_eq!(pins.high(), [16]);
    }

    #[test]
    fn command_keeps_a_function_quiet_and_its_status_true() {
        let (pins, _, [function, ..]) = wired();
        let identity =
            super::super::Identity { vendor: 1, device: 1, revision: 0, class: 0, subsystem: (0, 0) };
        let mut space = ConfigSpace::new(identity);
        space.write(4, &0x400_u16.to_le_bytes());
        function.follow(&space);
        function.set(|| true);
        assert!(pins.high().is_empty());
        assert!(function.is_wanted());
        space.write(4, &[0, 0]);
        function.follow(&space);
        assert_eq!(pins.high(), [21]);
    }

    #[test]
    fn the_pics_see_what_is_routed_to_them() {
        let (pins, pirqs, [first, _, other]) = wired();
        first.set(|| true);
        other.set(|| true);
        pirqs.route([10, 10, 11, 11, 10, 10, 11, 11]);
        assert_eq!(pins.high(), [10, 16, 21]);
        first.set(|| false);
        assert_eq!(pins.high(), [10, 16]);
        pirqs.route([0x8a, 10, 11, 11, 10, 10, 11, 11]);
        assert_eq!(pins.high(), [16], "disabled");
        for reserved in [0, 1, 2, 8, 13, 0x1a, 0xff] {
            pirqs.route([reserved; 8]);
            assert_eq!(pins.high(), [16], "{reserved}");
        }
    }
}
