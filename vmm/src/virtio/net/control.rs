//! The control queue (section 5.1.6.5): queue pairs in use, the guest's address, and acknowledgements.

use std::sync::Arc;

use super::super::{Chain, GuestMemory, Lane, Queues, RingError, Segments};
use super::offload::{CTRL_VQ, MQ};
use super::shared::Shared;

const OK: u8 = 0;
const ERR: u8 = 1;

// Classes and their commands.
const RX: u8 = 0;
const RX_LAST: u8 = 5;
const MAC: u8 = 1;
const MAC_TABLE_SET: u8 = 0;
const MAC_ADDR_SET: u8 = 1;
const ANNOUNCE: u8 = 3;
const ANNOUNCE_ACK: u8 = 0;
const PAIRS: u8 = 4;
const PAIRS_SET: u8 = 0;

/// The control queue's lane.
pub(super) struct Control {
    shared: Arc<Shared>,
    multiqueue: bool,
}

impl Control {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, multiqueue: false }
    }

    /// Carries out a command.
    fn execute(&self, memory: &GuestMemory, command: Segments) -> u8 {
        self.try_execute(memory, command).map_or(ERR, |()| OK)
    }

    fn try_execute(&self, memory: &GuestMemory, mut rest: Segments) -> Option<()> {
        match read(memory, &mut rest)? {
            // Which frames the guest wants: it gets all of them, which is at least that (section 5.1.6.5.1).
            [RX, ..=RX_LAST] => read::<1>(memory, &mut rest).map(drop),
            [MAC, MAC_TABLE_SET] => {
                // Unicast addresses, then multicast ones.
                for _ in 0..2 {
                    let count = u32::from_le_bytes(read(memory, &mut rest)?);
                    rest.take_front(u64::from(count).checked_mul(6)?)?;
                }
                rest.is_empty().then_some(())
            }
            [MAC, MAC_ADDR_SET] => {
                let address = read(memory, &mut rest)?;
                rest.is_empty().then(|| self.shared.config().set_address(address))
            }
            [ANNOUNCE, ANNOUNCE_ACK] => {
                self.shared.config().link().acknowledge();
                Some(())
            }
            [PAIRS, PAIRS_SET] if self.multiqueue => {
                let pairs = usize::from(u16::from_le_bytes(read(memory, &mut rest)?));
                let set = self.shared.use_pairs(pairs);
                set.inspect_err(|error| tracing::warn!(%error, pairs, "queues of a tap cannot be switched"))
                    .ok()
            }
            _ => None,
        }
    }
}

/// Takes off the first bytes.
fn read<const N: usize>(memory: &GuestMemory, from: &mut Segments) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let first = from.take_front(u64::try_from(N).ok()?)?;
    first.read(memory, &mut bytes).ok()?;
    Some(bytes)
}

impl Lane for Control {
    fn serves(&self, queue: usize, features: u64) -> bool {
        features & CTRL_VQ != 0 && queue == 2 * self.shared.usable_pairs(features)
    }

    fn activate(&mut self, features: u64) -> std::io::Result<()> {
        self.multiqueue = features & MQ != 0;
        self.shared.config().begin(features);
        // Until the driver sets another number.
        self.shared.use_pairs(self.shared.config().first_pairs())
    }

    fn deactivate(&mut self) {
        self.shared.config().end();
    }

    fn process_queue(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        queues.get(queue)?.drain(|memory, pending, chain| match chain {
            Ok(Chain { readable, writable }) if !writable.is_empty() => {
                let answer = self.execute(memory, readable);
                match writable.write(memory, &[answer]) {
                    Ok(()) => pending.finish(1),
                    Err(_) => pending.finish(0),
                }
            }
            Ok(_) | Err(_) => {
                tracing::debug!("a command without room for its answer is rejected");
                pending.finish(0)
            }
        })?;
        // Receive lanes look again whether theirs is in use.
        (0..self.shared.pairs()).for_each(|pair| queues.wake(2 * pair));
        Ok(())
    }
}
