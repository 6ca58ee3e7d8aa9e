//! Disks and NICs that are attached to a VM while its guest runs, and detached: PCI hotplug by ACPI.
//!
//! Each is a function in a hotplug slot of the root bus: a virtio disk, a SCSI controller with one disk, or a virtio NIC. The guest
//! has to release it before it is gone. What is attached stays so when the guest resets itself: the VM that is built next has the
//! devices in their slots from the start, except those that were to be detached.

mod controller;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

pub(crate) use controller::{Controller, slots};

use crate::block::ImageError;
use crate::config::{Attachment, Disk, Net};
use crate::pci::{Address, Function, Root, RootError};
use crate::virtio::net::{NetDevice, NetError};
use crate::virtio::{Device, DeviceContext, DeviceError, PciDevice, block, scsi};

/// The most hotplug slots of a VM. It has fewer where other devices leave fewer slots.
pub const HOTPLUG_SLOTS: usize = vireo_vmconfig::NATIVE_HOTPLUG_SLOTS;

/// Why a device is not attached.
#[derive(Debug, thiserror::Error)]
pub enum HotplugError {
    /// No guest runs, or one is being reset.
    #[error("the guest is being reset")]
    NoVm,
    /// All slots are taken.
    #[error("no hotplug slot is free: detach another device first")]
    Full,
    /// The SATA controller has a fixed number of drives.
    #[error("a SATA drive cannot be attached to a running VM")]
    Bus,
    /// Its image cannot be used.
    #[error("cannot use the disk's image")]
    Image(#[from] ImageError),
    /// The tap of a NIC cannot be used.
    #[error("cannot use the NIC's tap")]
    Net(#[from] NetError),
    /// Its device cannot be made.
    #[error("cannot make the device")]
    Device(#[from] DeviceError),
    /// It cannot be put on the bus.
    #[error("cannot put the device on the PCI bus")]
    Root(#[from] RootError),
    /// There is no device in that slot.
    #[error("no device is attached in slot {0}")]
    Absent(u8),
}

/// What can be attached.
#[derive(Debug)]
pub enum Attachable {
    /// On virtio or SCSI.
    Disk(Disk),
    /// On virtio.
    Nic(Net),
}

impl From<Disk> for Attachable {
    fn from(disk: Disk) -> Self {
        Self::Disk(disk)
    }
}

impl From<Net> for Attachable {
    fn from(nic: Net) -> Self {
        Self::Nic(nic)
    }
}

/// Called with the slot of a device that the guest has released. It must not block; [`Hotplug::close_released`] is to follow.
type Released = Box<dyn Fn(u8) + Send + Sync>;

/// The caller's side of a VM's hotplug slots, across all VMs that are built with it.
#[derive(Clone)]
pub struct Hotplug(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    released: Released,
}

#[derive(Default)]
struct State {
    /// By their slots.
    devices: BTreeMap<u8, Attached>,
    /// Of the VM there is.
    slots: Weak<Slots>,
    /// What the guest has ejected, with workers that may still run, and whose files are open.
    ejected: Vec<(Arc<dyn Function>, Option<Attached>)>,
}

struct Attached {
    device: Arc<Attachable>,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its device is being made: it is not in the slot yet.
    Adding,
    In,
    /// The guest is to release it.
    Leaving,
}

/// The hotplug slots of one VM.
pub(crate) struct Slots {
    pub(crate) controller: Arc<Controller>,
    host: DeviceContext,
}

impl Slots {
    pub(crate) fn new(controller: Arc<Controller>, host: DeviceContext) -> Self {
        Self { controller, host }
    }

    fn make(&self, device: &Attachable) -> Result<Arc<dyn Function>, HotplugError> {
        let device: Box<dyn Device> = match device {
            Attachable::Nic(nic) => Box::new(NetDevice::new(nic)?),
            Attachable::Disk(disk) => match disk.attachment() {
                Attachment::Virtio => Box::new(block::Block::new(disk)?),
                Attachment::Scsi(device) => {
                    let controller = scsi::Scsi::new(&[(disk, device)]);
                    Box::new(controller.map_err(|(_, error)| HotplugError::Image(error))?)
                }
                Attachment::Sata(_) => return Err(HotplugError::Bus),
            },
        };
        Ok(PciDevice::new(device, self.host.clone())?)
    }
}

impl Hotplug {
    /// Nothing is attached. `released` is called, on a vCPU's thread, with the slot of each device that the guest releases,
    /// and with that of a device that was to be detached when the VM is built again.
    pub fn new(released: impl Fn(u8) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), released: Box::new(released) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches a device to the VM there is; answers in which slot. Reads the image of a disk, which may block.
    pub fn attach(&self, device: impl Into<Attachable>) -> Result<u8, HotplugError> {
        let device = Arc::new(device.into());
        loop {
            let (slots, slot) = self.reserve(&device)?;
            // Without the lock: a vCPU may wait for it.
            let made = slots.make(&device);
            let mut state = self.state();
            if !Weak::ptr_eq(&state.slots, &Arc::downgrade(&slots)) {
                // The VM was built again in between.
                state.devices.remove(&slot);
                made?;
                continue;
            }
            if let Err(error) = made.and_then(|function| Ok(slots.controller.plug(slot, function)?)) {
                state.devices.remove(&slot);
                return Err(error);
            }
            state.devices.insert(slot, Attached { device, phase: Phase::In });
            return Ok(slot);
        }
    }

    fn reserve(&self, device: &Arc<Attachable>) -> Result<(Arc<Slots>, u8), HotplugError> {
        let mut state = self.state();
        let slots = state.slots.upgrade().ok_or(HotplugError::NoVm)?;
        let free = |slot: &u8| !state.devices.contains_key(slot);
        let slot = slots.controller.slots().find(free).ok_or(HotplugError::Full)?;
        state.devices.insert(slot, Attached { device: device.clone(), phase: Phase::Adding });
        Ok((slots, slot))
    }

    /// Requests that the guest releases the device in a slot; does not wait. A guest that does not, keeps it until it is reset.
    pub fn detach(&self, slot: u8) -> Result<(), HotplugError> {
        let mut state = self.state();
        match state.devices.get_mut(&slot) {
            Some(attached) if attached.phase != Phase::Adding => attached.phase = Phase::Leaving,
            _ => return Err(HotplugError::Absent(slot)),
        }
        if let Some(slots) = state.slots.upgrade() {
            slots.controller.request_eject(slot);
        }
        Ok(())
    }

    /// Waits for the requests that are in flight of devices that the guest has released, and closes their files. Takes as long as
    /// the host does, 10 s at most.
    pub fn close_released(&self) {
        let ejected = mem::take(&mut self.state().ejected);
        for (function, _) in &ejected {
            function.stop();
        }
    }

    /// A VM was built with these slots, and has not run: puts the devices on its bus. Those that were to be detached are gone, and
    /// those that cannot be used any more.
    pub(crate) fn begin(&self, slots: &Arc<Slots>, root: &Root) -> Result<(), HotplugError> {
        let mut state = self.state();
        let (mut left, kept): (BTreeMap<_, _>, _) =
            mem::take(&mut state.devices).into_iter().partition(|(_, one)| one.phase == Phase::Leaving);
        for (slot, attached) in kept {
            if attached.phase == Phase::In {
                match slots.make(&attached.device) {
                    Ok(function) => root.add_at(Address::root(slot), function)?,
                    Err(error) => {
                        tracing::warn!(slot, %error, "an attached device is lost by the reset");
                        left.insert(slot, attached);
                        continue;
                    }
                }
            }
            state.devices.insert(slot, attached);
        }
        state.slots = Arc::downgrade(slots);
        drop(state);
        left.into_keys().for_each(|slot| (self.0.released)(slot));
        Ok(())
    }

    /// The guest has ejected what was in a slot.
    fn ejected(&self, slot: u8, function: Arc<dyn Function>) {
        let mut state = self.state();
        let attached = state.devices.remove(&slot);
        let is_known = attached.is_some();
        // Its files are not closed here, on a vCPU's thread: that may take as long as the storage does.
        state.ejected.push((function, attached));
        drop(state);
        if is_known {
            (self.0.released)(slot);
        }
    }

    /// What the VM's own side, which does not keep this, calls with what the guest has ejected.
    pub(crate) fn eject_handler(&self) -> impl Fn(u8, Arc<dyn Function>) + Send + Sync + 'static {
        let shared = Arc::downgrade(&self.0);
        move |slot, function| match shared.upgrade() {
            Some(shared) => Self(shared).ejected(slot, function),
            None => function.stop(),
        }
    }
}

impl fmt::Debug for Hotplug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots: Vec<_> = self.state().devices.keys().copied().collect();
        f.debug_tuple("Hotplug").field(&slots).finish()
    }
}
