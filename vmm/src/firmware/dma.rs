use vm_memory::{Bytes, GuestAddress};

use crate::memory::GuestMemory;

const ERROR: u32 = 1 << 0;
const READ: u32 = 1 << 1;
const SKIP: u32 = 1 << 2;
const SELECT: u32 = 1 << 3;
const WRITE: u32 = 1 << 4;

/// The longest transfer. The largest file has some hundred KiB, and the vCPU waits while it is copied.
const LONGEST: u32 = 4 << 20;
const ZEROS: [u8; 4096] = [0; 4096];

/// The 16 bytes that the DMA register points to (`struct FWCfgDmaAccess`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    control: u32,
    len: u32,
    address: u64,
}

/// A transfer that cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rejected;

impl Transfer {
    /// `None` where there is no RAM.
    pub(super) fn read(memory: &GuestMemory, at: u64) -> Option<Self> {
        let mut bytes = [0; 16];
        memory.read_slice(&mut bytes, GuestAddress(at)).ok()?;
        let [a, b, c, d, e, f, g, h, address @ ..] = bytes;
        Some(Self {
            control: u32::from_be_bytes([a, b, c, d]),
            len: u32::from_be_bytes([e, f, g, h]),
            address: u64::from_be_bytes(address),
        })
    }

    /// The key to select first.
    pub(super) fn select(self) -> Option<u16> {
        let [high, low, ..] = self.control.to_be_bytes();
        (self.control & SELECT != 0).then_some(u16::from_be_bytes([high, low]))
    }

    /// Copies from `rest`, zeros behind its end, or skips; returns by how much the offset moves.
    pub(super) fn run(self, memory: &GuestMemory, rest: &[u8]) -> Result<usize, Rejected> {
        let len = usize::try_from(self.len).map_err(|_| Rejected)?;
        // As the device that firmware knows has it, reading comes before writing, and writing before skipping.
        if self.control & READ != 0 {
            if self.len > LONGEST {
                return Err(Rejected);
            }
            let there = rest.get(..len).unwrap_or(rest);
            write(memory, self.address, there, len - there.len()).ok_or(Rejected)?;
            Ok(len)
        } else if self.control & WRITE != 0 {
            Err(Rejected)
        } else if self.control & SKIP != 0 {
            Ok(len)
        } else {
            Ok(0)
        }
    }
}

/// `bytes`, then `zeros` zero bytes.
fn write(memory: &GuestMemory, address: u64, bytes: &[u8], zeros: usize) -> Option<()> {
    memory.write_slice(bytes, GuestAddress(address)).ok()?;
    let mut at = address.checked_add(u64::try_from(bytes.len()).ok()?)?;
    let mut left = zeros;
    while left > 0 {
        let chunk = ZEROS.get(..left).unwrap_or(&ZEROS);
        memory.write_slice(chunk, GuestAddress(at)).ok()?;
        at = at.checked_add(u64::try_from(chunk.len()).ok()?)?;
        left -= chunk.len();
    }
    Some(())
}

/// Reports the end of the transfer to the guest.
pub(super) fn answer(memory: &GuestMemory, at: u64, done: bool) {
    let control = if done { 0 } else { ERROR };
    if memory.write_slice(&control.to_be_bytes(), GuestAddress(at)).is_err() {
        tracing::debug!(at, "the end of a firmware configuration transfer cannot be reported");
    }
}
