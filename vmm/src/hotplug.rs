//! Disks that are attached to a VM while its guest runs, and detached: PCI hotplug by ACPI.
//!
//! A disk is a function in a hotplug slot of the root bus: a virtio disk, or a SCSI controller with one disk. The guest has
//! to release it before it is gone. What is attached stays so when the guest resets itself: the VM that is built next has the
//! disks in their slots from the start, except those that were to be detached.

mod controller;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

pub(crate) use controller::{Controller, slots};

use crate::block::ImageError;
use crate::config::{Attachment, Disk};
use crate::pci::{Address, Function, Root, RootError};
use crate::virtio::{Device, DeviceContext, DeviceError, PciDevice, block, scsi};

/// The most hotplug slots of a VM. It has fewer where other devices leave fewer slots.
pub const HOTPLUG_SLOTS: usize = 8;

/// Why a disk is not attached.
#[derive(Debug, thiserror::Error)]
pub enum HotplugError {
    /// No guest runs, or one is being reset.
    #[error("the guest is being reset")]
    NoVm,
    /// All slots have disks.
    #[error("no hotplug slot is free: detach another disk first")]
    Full,
    /// The SATA controller has a fixed number of drives.
    #[error("a SATA drive cannot be attached to a running VM")]
    Bus,
    /// Its image cannot be used.
    #[error("cannot use the disk's image")]
    Image(#[from] ImageError),
    /// Its device cannot be made.
    #[error("cannot make the disk's device")]
    Device(#[from] DeviceError),
    /// It cannot be put on the bus.
    #[error("cannot put the disk on the PCI bus")]
    Root(#[from] RootError),
    /// There is no disk in that slot.
    #[error("no disk is attached in slot {0}")]
    Absent(u8),
}

/// Called with the slot of a disk that the guest has released. It must not block; [`Hotplug::close_released`] is to follow.
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
    disks: BTreeMap<u8, Attached>,
    /// Of the VM there is.
    slots: Weak<Slots>,
    /// What the guest has ejected, with workers that may still run, and whose files are open.
    ejected: Vec<(Arc<dyn Function>, Option<Attached>)>,
}

struct Attached {
    disk: Arc<Disk>,
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

    fn make(&self, disk: &Disk) -> Result<Arc<dyn Function>, HotplugError> {
        let device: Box<dyn Device> = match disk.attachment() {
            Attachment::Virtio => Box::new(block::Block::new(disk)?),
            Attachment::Scsi(device) => {
                let controller = scsi::Scsi::new(&[(disk, device)]);
                Box::new(controller.map_err(|(_, error)| HotplugError::Image(error))?)
            }
            Attachment::Sata(_) => return Err(HotplugError::Bus),
        };
        Ok(PciDevice::new(device, self.host.clone())?)
    }
}

impl Hotplug {
    /// Nothing is attached. `released` is called, on a vCPU's thread, with the slot of each disk that the guest releases, and
    /// with that of a disk that was to be detached when the VM is built again.
    pub fn new(released: impl Fn(u8) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), released: Box::new(released) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches a disk to the VM there is; answers in which slot. Reads the image, which may block.
    pub fn attach(&self, disk: Disk) -> Result<u8, HotplugError> {
        let disk = Arc::new(disk);
        loop {
            let (slots, slot) = self.reserve(&disk)?;
            // Without the lock: a vCPU may wait for it.
            let made = slots.make(&disk);
            let mut state = self.state();
            if !Weak::ptr_eq(&state.slots, &Arc::downgrade(&slots)) {
                // The VM was built again in between.
                state.disks.remove(&slot);
                made?;
                continue;
            }
            if let Err(error) = made.and_then(|function| Ok(slots.controller.plug(slot, function)?)) {
                state.disks.remove(&slot);
                return Err(error);
            }
            state.disks.insert(slot, Attached { disk, phase: Phase::In });
            return Ok(slot);
        }
    }

    fn reserve(&self, disk: &Arc<Disk>) -> Result<(Arc<Slots>, u8), HotplugError> {
        let mut state = self.state();
        let slots = state.slots.upgrade().ok_or(HotplugError::NoVm)?;
        let free = |slot: &u8| !state.disks.contains_key(slot);
        let slot = slots.controller.slots().find(free).ok_or(HotplugError::Full)?;
        state.disks.insert(slot, Attached { disk: disk.clone(), phase: Phase::Adding });
        Ok((slots, slot))
    }

    /// Requests that the guest releases the disk in a slot; does not wait. A guest that does not, keeps it until it is reset.
    pub fn detach(&self, slot: u8) -> Result<(), HotplugError> {
        let mut state = self.state();
        match state.disks.get_mut(&slot) {
            Some(attached) if attached.phase != Phase::Adding => attached.phase = Phase::Leaving,
            _ => return Err(HotplugError::Absent(slot)),
        }
        if let Some(slots) = state.slots.upgrade() {
            slots.controller.request_eject(slot);
        }
        Ok(())
    }

    /// Waits for the requests that are in flight of disks that the guest has released, and closes their files. Takes as long as
    /// the host does, 10 s at most.
    pub fn close_released(&self) {
        let ejected = mem::take(&mut self.state().ejected);
        for (function, _) in &ejected {
            function.stop();
        }
    }

    /// A VM was built with these slots, and has not run: puts the disks on its bus. Those that were to be detached are gone, and
    /// those that cannot be used any more.
    pub(crate) fn begin(&self, slots: &Arc<Slots>, root: &Root) -> Result<(), HotplugError> {
        let mut state = self.state();
        let (mut left, kept): (BTreeMap<_, _>, _) =
            mem::take(&mut state.disks).into_iter().partition(|(_, one)| one.phase == Phase::Leaving);
        for (slot, attached) in kept {
            if attached.phase == Phase::In {
                match slots.make(&attached.disk) {
                    Ok(function) => root.add_at(Address::root(slot), function)?,
                    Err(error) => {
                        tracing::warn!(slot, %error, "an attached disk is lost by the reset");
                        left.insert(slot, attached);
                        continue;
                    }
                }
            }
            state.disks.insert(slot, attached);
        }
        state.slots = Arc::downgrade(slots);
        drop(state);
        left.into_keys().for_each(|slot| (self.0.released)(slot));
        Ok(())
    }

    /// The guest has ejected what was in a slot.
    fn ejected(&self, slot: u8, function: Arc<dyn Function>) {
        let mut state = self.state();
        let attached = state.disks.remove(&slot);
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
        let slots: Vec<_> = self.state().disks.keys().copied().collect();
        f.debug_tuple("Hotplug").field(&slots).finish()
    }
}
