//! Virtio over PCI (section 4.1): a modern function with one 64-bit memory BAR.

mod activation;
mod capability;
mod common;
mod doorbell;
mod section;
#[cfg(test)]
mod section_tests;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use vmm_sys_util::eventfd::EventFd;

use self::activation::Life;
use self::capability::{BAR_SIZE, Region, Window};
use self::common::{Common, Effect};
use self::doorbell::BoundDoorbells;
use super::queue::wake;
use super::signals::Signals;
use super::{Device, DeviceConfig, DeviceContext, DeviceState};
use crate::bus::BusDevice;
use crate::pci::{BarKind, Bars, ConfigSpace, Decoding, Function, Identity, Msix, RootError, Slot};
use crate::state::{AnySection, SectionError};

const VENDOR: u16 = 0x1af4;
/// Modern device ids are this plus the device type (section 4.1.2).
const DEVICE_BASE: u16 = 0x1040;
const COMMAND: usize = 4;
const BAR: BarKind = BarKind::Memory64 { prefetchable: false };

/// Why a device could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// No interrupt vectors for it.
    #[error("no interrupt vectors for the {device} device")]
    Vectors {
        /// Its short name.
        device: &'static str,
        /// The interrupt controller's error.
        #[source]
        source: io::Error,
    },
    /// No eventfds for its queues.
    #[error("no eventfds for the {device} device")]
    EventFds {
        /// Its short name.
        device: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

/// A virtio device as a PCI function.
///
/// Lock order: `config`, then `state`. Workers take neither.
pub struct PciDevice {
    name: &'static str,
    host: DeviceContext,
    device_config: Arc<dyn DeviceConfig>,
    device_state: DeviceState,
    signals: Arc<Signals>,
    kicks: Vec<Arc<EventFd>>,
    config: Mutex<Config>,
    state: Mutex<State>,
}

/// What configuration space accesses change.
struct Config {
    space: ConfigSpace,
    bars: Bars,
    msix: usize,
    window: Window,
}

/// What accesses to the common configuration change.
struct State {
    common: Common,
    life: Life,
    /// The configuration changed before the driver was ready, which may have read it.
    change_pending: bool,
}

impl PciDevice {
    /// Wraps `device`: a vector for each queue and one for configuration changes.
    pub fn new(device: Box<dyn Device>, host: DeviceContext) -> Result<Arc<Self>, DeviceError> {
        Self::beside(device, host, 0, |_, _| {})
    }

    /// Wraps `device` in a function that is something else as well: virtio has its registers in BAR `index` and the
    /// next, and `other` adds the BARs of the other.
    pub(crate) fn beside(
        device: Box<dyn Device>,
        host: DeviceContext,
        index: u8,
        other: impl FnOnce(&mut ConfigSpace, &mut Bars),
    ) -> Result<Arc<Self>, DeviceError> {
        let model = device.info();
        let name = model.name;
        let count = u16::try_from(model.queues.len()).unwrap_or(u16::MAX);
        let msix = Msix::new(host.router.as_ref(), count.saturating_add(1))
            .map_err(|source| DeviceError::Vectors { device: name, source })?;
        let kicks = model
            .queues
            .iter()
            .map(|_| EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC).map(Arc::new))
            .collect::<io::Result<Vec<_>>>()
            .map_err(|source| DeviceError::EventFds { device: name, source })?;

        let mut space = ConfigSpace::new(Identity {
            vendor: VENDOR,
            device: DEVICE_BASE + model.id,
            revision: 1,
            class: model.class,
            subsystem: (VENDOR, 0x1100),
        });
        space.set_interrupt_pin();
        let window = capability::add_all(&mut space, index, model.config.size());
        let msix_at = usize::from(capability::add_messages(&msix, &mut space, index));
        let signals = Arc::new(Signals::new(msix, kicks.len()));
        let lanes = device.into_lanes();
        let common = Common::new(model.features, &model.queues, signals.clone());
        let doorbells = BoundDoorbells::new(host.doorbells.clone(), kicks.clone());

        Ok(Arc::new_cyclic(|me: &Weak<Self>| {
            let device = me.clone();
            model
                .config
                .on_change(Box::new(move || device.upgrade().into_iter().for_each(|me| me.config_changed())));
            let mut bars = Bars::default();
            other(&mut space, &mut bars);
            let bar = (usize::from(index), BAR);
            bars.add_followed(&mut space, bar, BAR_SIZE, (me.clone(), Box::new(doorbells)));
            Self {
                name,
                host,
                device_config: model.config,
                device_state: model.state,
                signals,
                kicks,
                config: Mutex::new(Config { space, bars, msix: msix_at, window }),
                state: Mutex::new(State { common, life: Life::Idle(lanes), change_pending: false }),
            }
        }))
    }

    fn config(&self) -> MutexGuard<'_, Config> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_common(&self, offset: u64, data: &mut [u8]) {
        let mut state = self.state();
        state.complete_reset(&self.signals, &*self.device_config);
        state.common.read(offset, data);
    }

    fn write_common(&self, offset: u64, data: &[u8]) {
        let mut state = self.state();
        state.complete_reset(&self.signals, &*self.device_config);
        let had_negotiated = state.common.has_negotiated();
        let effect = state.common.write(offset, data);
        if !had_negotiated && state.common.has_negotiated() {
            self.device_config.negotiated(state.common.features());
        }
        match effect {
            Effect::None => {}
            Effect::Reset => {
                state.life.leave();
                state.complete_reset(&self.signals, &*self.device_config);
            }
            Effect::Start => {
                self.activate(&mut state);
                if std::mem::take(&mut state.change_pending) {
                    self.signals.config_changed();
                }
            }
        }
    }

    /// The function may access memory from now on, or must not. Does not wait for the chain that is being served:
    /// this is a vCPU thread.
    fn set_bus_master(&self, yes: bool) {
        if self.signals.set_bus_master(yes) {
            self.kicks.iter().for_each(|kick| wake(kick));
        }
    }

    /// The device's configuration is another one now, by the host: its driver is notified, its lanes look at it.
    fn config_changed(&self) {
        let mut state = self.state();
        // The driver is not notified before it is ready (section 3.1.2).
        state.change_pending = !state.common.is_driver_ok();
        if !state.change_pending {
            self.signals.config_changed();
            drop(state);
            self.kicks.iter().for_each(|kick| wake(kick));
        }
    }

    /// A notification that the kernel did not answer for us.
    fn notify(&self, offset: u64) {
        let kick =
            usize::try_from(offset / capability::NOTIFY_MULTIPLIER).ok().and_then(|at| self.kicks.get(at));
        if let Some(kick) = kick {
            wake(kick);
        }
    }
}

/// Accesses to the BAR.
impl BusDevice for PciDevice {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        match Region::at(offset) {
            Some((Region::Common, at)) => self.read_common(at, data),
            Some((Region::Isr, 0)) => {
                if let [first, ..] = data {
                    *first = self.signals.take_isr();
                }
            }
            Some((Region::Device, at)) => self.device_config.read(index(at), data),
            Some((Region::MsixTable, at)) => self.signals.msix.read_table(at, data),
            Some((Region::MsixPending, at)) => self.signals.msix.read_pending(at, data),
            Some((Region::Notify, _)) => data.fill(0),
            Some((Region::Isr, _)) | None => {}
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        match Region::at(offset) {
            Some((Region::Common, at)) => self.write_common(at, data),
            Some((Region::Notify, at)) => self.notify(at),
            Some((Region::Device, at)) => {
                if self.device_config.write(index(at), data) {
                    self.kicks.iter().for_each(|kick| wake(kick));
                }
            }
            Some((Region::MsixTable, at)) => self.signals.msix.write_table(at, data),
            Some((Region::Isr | Region::MsixPending, _)) | None => {}
        }
    }
}

impl Function for PciDevice {
    fn name(&self) -> &'static str {
        self.name
    }

    fn section(&self) -> Result<&dyn AnySection, SectionError> {
        Ok(self)
    }

    fn read_config(&self, register: u16, data: &mut [u8]) {
        let mut config = self.config();
        let Config { space, window, .. } = &mut *config;
        if window.touches(register, data.len())
            && let Some((offset, len)) = window.target(space)
        {
            let mut value = [0xff; 4];
            if let Some(value) = value.get_mut(..len) {
                BusDevice::read(self, offset, value);
            }
            window.load(space, value);
        }
        space.set_interrupt_status(self.signals.intx.is_wanted());
        space.read(register, data);
    }

    fn write_config(&self, register: u16, data: &[u8]) -> Decoding {
        let mut config = self.config();
        let Config { space, bars, msix, window } = &mut *config;
        space.write(register, data);
        if touches(register, data.len(), *msix + 3, 1) {
            let [_, upper] = space.u16(*msix + 2).to_le_bytes();
            self.signals.set_msix_control(upper);
        }
        if window.touches(register, data.len())
            && let Some((offset, len)) = window.target(space)
            && let Some(value) = window.value(space).get(..len)
        {
            BusDevice::write(self, offset, value);
        }
        if touches(register, data.len(), COMMAND, 1) {
            self.set_bus_master(space.is_bus_master());
        }
        self.signals.intx.follow(space);
        bars.follow(space)
    }

    fn attach(&self, slot: &Slot) -> Result<(), RootError> {
        let Config { space, bars, .. } = &mut *self.config();
        slot.connect(&self.signals.intx);
        bars.attach(space, slot)
    }

    fn detach(&self) {
        self.config().bars.detach();
        self.signals.intx.cut();
        self.signals.set_msix_control(0);
        self.set_bus_master(false);
    }

    fn retry(&self) {
        self.config().bars.retry();
    }

    fn pause(&self) -> bool {
        let quiet = self.state().life.pause();
        if !quiet {
            tracing::warn!(
                device = self.name,
                "the device does not pause: the host does not answer its requests"
            );
        }
        quiet
    }

    fn resume(&self) {
        self.state().life.resume();
    }

    fn stop(&self) {
        let mut state = self.state();
        state.life.stop();
        tracing::debug!(device = self.name, "stopped");
    }
}

/// Of a page's bytes.
fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// Whether an access of `len` bytes at `register` touches `count` bytes at `at`.
fn touches(register: u16, len: usize, at: usize, count: usize) -> bool {
    let start = usize::from(register);
    start < at + count && at < start.saturating_add(len)
}
