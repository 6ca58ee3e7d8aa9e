use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::contents::Contents;
use super::dma::{self, Transfer};
use crate::bus::BusDevice;
use crate::memory::GuestMemory;
use crate::state::{Section, SectionError};

/// What the DMA address register reads as.
const DMA_SIGNATURE: u64 = u64::from_be_bytes(*b"QEMU CFG");

/// `fw_cfg` on its ports: select a key at 0x510, read its bytes one by one at 0x511, or have them copied by the DMA
/// interface at 0x514. Nothing can be written through it.
pub(crate) struct FwCfg {
    state: Mutex<State>,
    memory: GuestMemory,
}

struct State {
    contents: Contents,
    key: u16,
    /// Into what is behind `key`; may point behind its end.
    offset: usize,
    /// The upper half of the DMA address, until the lower one comes.
    dma_high: u32,
}

impl FwCfg {
    /// Shows `contents`; DMA goes to `memory`.
    pub(crate) fn new(contents: Contents, memory: GuestMemory) -> Self {
        let state = State { contents, key: 0, offset: 0, dma_high: 0 };
        Self { state: Mutex::new(state), memory }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is selected, as it is saved.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FwCfgState {
    key: u16,
    offset: u64,
    dma_high: u32,
}

impl Section for FwCfg {
    const TAG: &'static str = "fw-cfg";
    const VERSION: u16 = 1;
    type State = FwCfgState;

    fn save(&self) -> Result<FwCfgState, SectionError> {
        let state = self.state();
        let offset = u64::try_from(state.offset).unwrap_or(u64::MAX);
        Ok(FwCfgState { key: state.key, offset, dma_high: state.dma_high })
    }

    fn load(&self, FwCfgState { key, offset, dma_high }: FwCfgState) -> Result<(), SectionError> {
        let mut state = self.state();
        state.key = key;
        state.offset = usize::try_from(offset).unwrap_or(usize::MAX);
        state.dma_high = dma_high;
        Ok(())
    }
}

/// The selector and data ports, 0x510 and 0x511.
pub(crate) struct Ports(pub(crate) std::sync::Arc<FwCfg>);

impl BusDevice for Ports {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        if let (1, [byte]) = (offset, data) {
            let mut state = self.0.state();
            *byte = state.contents.bytes(state.key).get(state.offset).copied().unwrap_or(0);
            state.offset = state.offset.saturating_add(1);
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        if let (0, &[low, high]) = (offset, data) {
            let mut state = self.0.state();
            state.select(u16::from_le_bytes([low, high]));
        }
    }
}

/// The DMA address register, eight big-endian bytes at 0x514: writing its last half starts a transfer.
pub(crate) struct Dma(pub(crate) std::sync::Arc<FwCfg>);

impl BusDevice for Dma {
    fn read(&self, offset: u64, data: &mut [u8]) {
        let signature = DMA_SIGNATURE.to_be_bytes();
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let register = signature.iter().skip(skip).copied().chain(std::iter::repeat(0xff));
        data.iter_mut().zip(register).for_each(|(to, from)| *to = from);
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let mut state = self.0.state();
        match (offset, data) {
            (0, &[a, b, c, d]) => state.dma_high = u32::from_be_bytes([a, b, c, d]),
            (4, &[a, b, c, d]) => {
                let address = u64::from(state.dma_high) << 32 | u64::from(u32::from_be_bytes([a, b, c, d]));
                state.transfer(&self.0.memory, address);
            }
            (0, &[a, b, c, d, e, f, g, h]) => {
                state.transfer(&self.0.memory, u64::from_be_bytes([a, b, c, d, e, f, g, h]));
            }
            _ => {}
        }
    }
}

impl State {
    fn select(&mut self, key: u16) {
        self.key = key;
        self.offset = 0;
    }

    fn transfer(&mut self, memory: &GuestMemory, address: u64) {
        self.dma_high = 0;
        let Some(transfer) = Transfer::read(memory, address) else {
            tracing::debug!(address, "a firmware configuration transfer lies outside of RAM");
            return;
        };
        if let Some(key) = transfer.select() {
            self.select(key);
        }
        let rest = self.contents.bytes(self.key).get(self.offset..).unwrap_or_default();
        let outcome = transfer.run(memory, rest);
        if let Ok(moved) = outcome {
            self.offset = self.offset.saturating_add(moved);
        }
        dma::answer(memory, address, outcome.is_ok());
    }
}

#[cfg(test)]
#[path = "fw_cfg_tests.rs"]
mod tests;
