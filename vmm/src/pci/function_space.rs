use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Bars, ConfigSpace, ConfigState, Decoding, RootError, Slot};
use crate::state::SectionError;

/// The configuration space of a function and the BARs that follow it, for functions without interrupts.
pub(crate) struct FunctionSpace(Mutex<Inner>);

struct Inner {
    config: ConfigSpace,
    bars: Bars,
}

impl FunctionSpace {
    /// `bars` are those that were added to `config`.
    pub(crate) fn new(config: ConfigSpace, bars: Bars) -> Self {
        Self(Mutex::new(Inner { config, bars }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Function::read_config`](super::Function::read_config).
    pub(crate) fn read(&self, register: u16, data: &mut [u8]) {
        self.lock().config.read(register, data);
    }

    /// See [`Function::write_config`](super::Function::write_config).
    pub(crate) fn write(&self, register: u16, data: &[u8]) -> Decoding {
        let Inner { config, bars } = &mut *self.lock();
        config.write(register, data);
        bars.follow(config)
    }

    /// See [`Function::attach`](super::Function::attach).
    pub(crate) fn attach(&self, slot: &Slot) -> Result<(), RootError> {
        let Inner { config, bars } = &mut *self.lock();
        bars.attach(config, slot)
    }

    /// See [`Function::retry`](super::Function::retry).
    pub(crate) fn retry(&self) {
        self.lock().bars.retry();
    }

    /// What a guest can change.
    pub(crate) fn save(&self) -> ConfigState {
        self.lock().config.save()
    }

    /// Takes such a state over. The BARs are where it has them.
    pub(crate) fn load(&self, state: &[u8]) -> Result<(), SectionError> {
        let Inner { config, bars } = &mut *self.lock();
        config.load(state)?;
        bars.follow(config);
        Ok(())
    }
}
