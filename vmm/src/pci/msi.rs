use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::ConfigSpace;
use crate::irq::{MsiMessage, MsiRouter, MsiVector};

const CAPABILITY: u8 = 0x05;
/// Message control: 64-bit addresses; one vector.
const CONTROL_64BIT: u8 = 1 << 7;
const CONTROL_ENABLE: u16 = 1;

/// One message-signalled vector in configuration space (PCI 3.0, section 6.8.1), without masking.
pub struct Msi {
    vector: Arc<dyn MsiVector>,
    enabled: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// Where the capability is.
    at: usize,
    routed: Option<MsiMessage>,
}

impl Msi {
    /// Takes a vector and adds the capability, switched off.
    pub fn new(router: &dyn MsiRouter, space: &mut ConfigSpace) -> io::Result<Self> {
        let vector = router.allocate()?;
        let body = [CONTROL_64BIT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let writable = [1, 0, 0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        let at = usize::from(space.add_capability(CAPABILITY, &body, &writable));
        Ok(Self { vector, enabled: AtomicBool::new(false), state: Mutex::new(State { at, routed: None }) })
    }

    /// Follows the capability after a write to the configuration space.
    pub fn follow(&self, space: &ConfigSpace) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let at = state.at;
        let enabled = space.u16(at + 2) & CONTROL_ENABLE != 0;
        let message = MsiMessage { address: space.u64(at + 4), data: space.u16(at + 12).into() };
        let wanted = enabled.then_some(message);
        if state.routed != wanted {
            let outcome = match wanted {
                Some(message) => self.vector.route(message),
                None => self.vector.mask(),
            };
            match outcome {
                Ok(()) => state.routed = wanted,
                Err(error) => tracing::warn!(%error, ?wanted, "a vector could not be routed"),
            }
        }
        self.enabled.store(enabled, Ordering::SeqCst);
    }

    /// Whether the guest switched it on; interrupt lines are not used then.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::SeqCst)
    }

    /// Signals. Only while it is on.
    pub fn trigger(&self) {
        if self.is_enabled()
            && let Err(error) = self.vector.trigger()
        {
            tracing::warn!(%error, "an interrupt could not be signalled");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pci::Identity;
    use crate::pci::tests::FakeRouter;

    #[test]
    fn messages_go_to_the_configured_address_while_enabled() {
        let router = FakeRouter::default();
        let identity = Identity { vendor: 1, device: 1, revision: 0, class: 0, subsystem: (0, 0) };
        let mut space = ConfigSpace::new(identity);
        let msi = Msi::new(&router, &mut space).unwrap();
        msi.trigger();
        space.write(0x44, &0xfee0_1003_u64.to_le_bytes());
        space.write(0x4c, &[0x31, 0x40]);
        msi.follow(&space);
        msi.trigger();
        assert!(router.delivered().is_empty() && !msi.is_enabled());
        space.write(0x42, &[0xff, 0xff]);
        assert_eq!(space.u16(0x42), 0x81, "one vector, 64 bits");
        msi.follow(&space);
        msi.trigger();
        assert_eq!(router.delivered(), [(0xfee0_1000, 0x4031)]);
    }
}
