//! What is saved of the controller: its registers and those of its ports, and what drivers set of their drives.

use serde::{Deserialize, Serialize};

use super::port::State as Registers;
use super::worker::ServerState;
use super::{Config, Controller, PORTS, hba};
use crate::pci::ConfigState;
use crate::state::{Section, SectionError};

/// As it is saved.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ControllerState {
    space: ConfigState,
    hba: hba::State,
    ports: Vec<(Registers, Option<ServerState>)>,
}

impl Section for Controller {
    const TAG: &'static str = "ahci";
    const VERSION: u16 = 1;
    type State = ControllerState;

    fn save(&self) -> Result<ControllerState, SectionError> {
        // Drives are at the first ports.
        let drives = self.workers().len();
        let ports = self.ports.iter().enumerate().map(|(index, port)| port.save(index < drives));
        let ports = ports.collect::<Result<_, _>>()?;
        Ok(ControllerState { space: self.config().space.save(), hba: self.hba.save(), ports })
    }

    fn load(
        &self,
        ControllerState { space: saved, hba, ports }: ControllerState,
    ) -> Result<(), SectionError> {
        let drives = ports.iter().filter(|(_, server)| server.is_some()).count();
        if ports.len() != PORTS || drives != self.workers().len() {
            return Err(SectionError::Invalid("the controller has another number of drives"));
        }
        self.hba.load(hba)?;
        let Config { space, bars } = &mut *self.config();
        space.load(&saved)?;
        for (index, (port, (registers, server))) in self.ports.iter().zip(ports).enumerate() {
            if server.is_some() != (index < drives) {
                return Err(SectionError::Invalid("a drive is at another port"));
            }
            port.load((registers, server))?;
            port.set_bus_master(space.is_bus_master());
        }
        self.hba.follow(space);
        bars.follow(space);
        Ok(())
    }

    /// An interrupt may have been on its way, and one too many does no harm: drivers look at their ports.
    fn loaded(&self) {
        self.hba.signal();
    }
}
