//! What a VM has around its devices, without KVM.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vmm_sys_util::eventfd::EventFd;

use crate::irq::{Doorbells, IrqLine, IrqPins, MsiMessage, MsiRouter, MsiVector};
use crate::legacy::PowerEvents;
use crate::memory::device::{DeviceMemory, MemorySlot, MemorySlots};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Delivers nothing.
pub(super) struct Router;

struct Vector(EventFd);

impl MsiRouter for Router {
    fn allocate(&self) -> io::Result<Arc<dyn MsiVector>> {
        Ok(Arc::new(Vector(EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?)))
    }
}

impl MsiVector for Vector {
    fn route(&self, _message: MsiMessage) -> io::Result<()> {
        Ok(())
    }

    fn mask(&self) -> io::Result<()> {
        Ok(())
    }

    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }

    fn eventfd(&self) -> &EventFd {
        &self.0
    }
}

/// Interrupt lines without a controller.
pub(super) struct Lines;

impl IrqPins for Lines {
    fn set_level(&self, gsi: u32, _high: bool) -> io::Result<()> {
        assert!(gsi < crate::layout::IOAPIC_PINS, "line {gsi} does not exist");
        Ok(())
    }
}

impl IrqLine for Lines {
    fn pulse(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_level(&self, _high: bool) -> io::Result<()> {
        Ok(())
    }
}

/// Rejects what KVM rejects: the same eventfd twice at an address, and one to be removed that is not there.
#[derive(Default)]
pub(super) struct Bells(Mutex<BTreeSet<(i32, u64)>>);

impl Doorbells for Bells {
    fn register(&self, fd: &EventFd, address: u64) -> io::Result<()> {
        assert!(lock(&self.0).insert((fd.as_raw_fd(), address)), "registered twice");
        Ok(())
    }

    fn unregister(&self, fd: &EventFd, address: u64) -> io::Result<()> {
        assert!(lock(&self.0).remove(&(fd.as_raw_fd(), address)), "was not registered");
        Ok(())
    }
}

impl Drop for Bells {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(lock(&self.0).is_empty(), "doorbells outlive their device");
        }
    }
}

/// A power button that nothing hears.
pub(super) struct NoPower;

impl PowerEvents for NoPower {
    fn press_power_button(&self) {}

    fn rtc_alarm(&self) {}
}

/// Slots that log nothing.
pub(super) struct Slots;

impl MemorySlots for Slots {
    fn claim(&self, _memory: Arc<DeviceMemory>) -> io::Result<Arc<dyn MemorySlot>> {
        Ok(Arc::new(Self))
    }
}

impl MemorySlot for Slots {
    fn map(&self, address: Option<u64>) -> io::Result<()> {
        assert!(address.is_none_or(|at| at.is_multiple_of(4096)), "KVM takes whole pages");
        Ok(())
    }

    fn take_dirty(&self) -> io::Result<Vec<u64>> {
        Ok(Vec::new())
    }
}
