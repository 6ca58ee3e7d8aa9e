//! The state of a virtio device, with that of its PCI function.

use serde::{Deserialize, Serialize};

use super::super::DeviceState;
use super::super::queue::Position;
use super::super::signals::SignalsState;
use super::activation::Loaded;
use super::common::CommonState;
use super::{Config, PciDevice};
use crate::pci::ConfigState;
use crate::state::{Section, SectionError};

/// As it is saved.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VirtioState {
    space: ConfigState,
    signals: SignalsState,
    common: CommonState,
    /// Of the queues that were served, by their numbers.
    positions: Vec<(u16, Position)>,
    /// Of the lanes that serve them, or of all lanes where none does.
    lanes: Vec<Vec<u8>>,
    /// The device's configuration space, if it never changes.
    constant: Option<Vec<u8>>,
    device: Option<OwnState>,
}

/// Beside the transport and the queues.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OwnState {
    tag: String,
    version: u16,
    state: Vec<u8>,
}

impl Section for PciDevice {
    const TAG: &'static str = "virtio-pci";
    const VERSION: u16 = 1;
    type State = VirtioState;

    fn save(&self) -> Result<VirtioState, SectionError> {
        let device = match &self.device_state {
            DeviceState::None => None,
            DeviceState::Unsavable(why) => return Err(SectionError::Unsavable(why)),
            DeviceState::Section(section) => {
                let (tag, version) = section.kind();
                Some(OwnState { tag: tag.to_owned(), version, state: section.encode()? })
            }
        };
        let (config, state) = (self.config(), self.state());
        let runs = state.common.is_driver_ok() && !self.signals.needs_reset();
        let (mut positions, mut lanes) = (Vec::new(), Vec::new());
        // A device that asked for a reset is not started when it is loaded.
        if runs || !state.common.is_driver_ok() {
            for rest in state.life.rest()? {
                let number = |queue: usize| u16::try_from(queue).unwrap_or(u16::MAX);
                positions.extend(rest.positions.into_iter().map(|(queue, at)| (number(queue), at)));
                lanes.push(rest.state);
            }
        }
        Ok(VirtioState {
            space: config.space.save(),
            signals: self.signals.save(),
            common: state.common.save(),
            positions,
            lanes,
            constant: self.device_config.constant().map(<[u8]>::to_vec),
            device,
        })
    }

    fn load(&self, saved: VirtioState) -> Result<(), SectionError> {
        let VirtioState { space: registers, signals, common, positions, lanes, constant, device } = saved;
        if constant.as_deref() != self.device_config.constant() {
            return Err(SectionError::Invalid("the device has another size, or other limits"));
        }
        self.load_own(device)?;
        let mut config = self.config();
        let Config { space, bars, msix, .. } = &mut *config;
        space.load(&registers)?;
        self.signals.load(signals)?;
        let [_, control] = space.u16(*msix + 2).to_le_bytes();
        self.signals.set_msix_control(control);
        self.set_bus_master(space.is_bus_master());
        self.signals.intx.follow(space);
        bars.follow(space);
        drop(config);

        let mut state = self.state();
        state.common.load(common)?;
        if !state.common.is_driver_ok() {
            return state.life.load_idle(&lanes);
        }
        if self.signals.needs_reset() {
            return Ok(());
        }
        let positions: Vec<_> = positions.into_iter().map(|(queue, at)| (usize::from(queue), at)).collect();
        self.activate_at(&mut state, Some(Loaded { positions: &positions, lanes: &lanes }))?;
        if self.signals.needs_reset() {
            return Err(SectionError::Invalid("its queues cannot be served"));
        }
        Ok(())
    }

    /// An interrupt may have been on its way, and one too many does no harm: drivers look at the used rings.
    fn loaded(&self) {
        if let DeviceState::Section(section) = &self.device_state {
            section.after_load();
        }
        let state = self.state();
        if state.common.is_driver_ok() {
            (0..state.common.queues().len()).for_each(|queue| self.signals.raise_queue(queue));
        }
    }
}

impl PciDevice {
    fn load_own(&self, saved: Option<OwnState>) -> Result<(), SectionError> {
        match (&self.device_state, saved) {
            (DeviceState::None, None) => Ok(()),
            (DeviceState::Section(section), Some(OwnState { tag, version, state }))
                if section.kind() == (tag.as_str(), version) =>
            {
                section.decode(&state)
            }
            _ => Err(SectionError::Invalid("it is the state of another device, or of another version")),
        }
    }
}
