//! What is saved of the adapter: its registers, and the pages of video memory that are not zero.

use serde::{Deserialize, Serialize};
use vm_memory::Bytes as _;

use super::registers::COUNT;
use super::{Bochs, Head, PAGE, VIDEO_MEMORY, lock};
use crate::pci::ConfigState;
use crate::state::{Section, SectionError};

/// As it is saved.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeadState {
    pub(super) registers: [u16; COUNT],
    /// By their numbers.
    pub(super) pages: Vec<(u16, Vec<u8>)>,
}

impl Section for Head {
    const TAG: &'static str = "bochs-display";
    const VERSION: u16 = 1;
    type State = HeadState;

    fn save(&self) -> Result<HeadState, SectionError> {
        let (mut pages, mut page) = (Vec::new(), vec![0; PAGE]);
        for number in 0..u16::try_from(VIDEO_MEMORY / PAGE).unwrap_or(u16::MAX) {
            self.memory.bytes().read_slice(&mut page, usize::from(number) * PAGE).map_err(unreadable)?;
            if page.iter().any(|byte| *byte != 0) {
                pages.push((number, page.clone()));
            }
        }
        Ok(HeadState { registers: self.registers.save(), pages })
    }

    fn load(&self, HeadState { registers, pages }: HeadState) -> Result<(), SectionError> {
        self.registers.restore(registers)?;
        for (number, page) in pages {
            if page.len() != PAGE {
                return Err(SectionError::Invalid("a page of video memory has another size"));
            }
            self.memory.bytes().write_slice(&page, usize::from(number) * PAGE).map_err(unreadable)?;
        }
        *lock(&self.shown) = None;
        Ok(())
    }
}

fn unreadable(_: vm_memory::VolatileMemoryError) -> SectionError {
    SectionError::Invalid("the adapter has less video memory")
}

/// As it is saved.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BochsState {
    space: ConfigState,
    head: HeadState,
}

impl Section for Bochs {
    const TAG: &'static str = "bochs-display-pci";
    const VERSION: u16 = 1;
    type State = BochsState;

    fn save(&self) -> Result<BochsState, SectionError> {
        Ok(BochsState { space: self.space.save(), head: self.head.save()? })
    }

    fn load(&self, BochsState { space, head }: BochsState) -> Result<(), SectionError> {
        self.head.load(head)?;
        self.space.load(&space)
    }
}
