//! The file system device (section 5.11), whose queues another process moves (vhost-user).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::offloaded_rings::{Backend, OffloadedRings, RING_FEATURES};
use super::{Device, DeviceInfo, DeviceState, Lane, Queues, RingError};
use crate::config::Filesystem as FilesystemConfig;
use crate::sys::vhost::HostRings as _;
use crate::sys::vhost_user::VhostUser;

/// Section 5.
const DEVICE_ID: u16 = 26;
/// What virtiofsd has at most.
const QUEUE_SIZE: u16 = 1024;
/// Section 5.11.2: requests that go first, and one queue of all others.
const QUEUES: usize = FilesystemConfig::QUEUES;
const REQUEST_QUEUES: u32 = 1;

/// A file system of the host, and its only lane.
pub struct Filesystem {
    rings: OffloadedRings<VhostUser>,
    tag: String,
    features: u64,
    /// The process has state of the driver.
    dirty: bool,
}

/// The process serves a ring once it is laid out, until its position is known.
struct Process;

impl Backend<VhostUser> for Process {
    fn serve(&self, _vhost: &VhostUser) -> io::Result<()> {
        Ok(())
    }

    fn release(&self, _vhost: &VhostUser) -> io::Result<()> {
        Ok(())
    }
}

impl Filesystem {
    /// A device that the process of `config` serves.
    ///
    /// # Errors
    /// When that lacks features of the rings, or the host has no file descriptors left.
    pub fn new(config: &FilesystemConfig) -> io::Result<Self> {
        let process = config.backend().clone();
        if process.features(RING_FEATURES) != RING_FEATURES {
            let error = format!("the process that shares {} lacks features of the rings", config.tag());
            return Err(io::Error::other(error));
        }
        let rings = OffloadedRings::new("a process", process, (0..QUEUES).collect())?;
        Ok(Self { rings, tag: config.tag().to_owned(), features: 0, dirty: false })
    }

    /// Section 5.11.4.
    fn config(&self) -> Vec<u8> {
        let mut config = self.tag.clone().into_bytes();
        config.resize(FilesystemConfig::MAX_TAG, 0);
        config.extend(REQUEST_QUEUES.to_le_bytes());
        config
    }

    /// Has the process start or stop, by what is so now.
    fn follow(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        match (queues.may_serve(), self.rings.is_running()) {
            (true, false) => {
                self.dirty = true;
                self.rings.start(&Process, self.features, queues)
            }
            (false, true) => self.rings.stop(&Process, queues),
            (true, true) | (false, false) => Ok(()),
        }
    }
}

impl Device for Filesystem {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "fs",
            id: DEVICE_ID,
            class: 0x01_80_00,
            features: 0,
            queues: vec![QUEUE_SIZE; QUEUES],
            config: Arc::new(self.config()),
            state: DeviceState::Unsavable("its state is that of the process that shares the files"),
        }
    }

    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
        vec![self]
    }
}

impl Lane for Filesystem {
    fn waits_for_kicks(&self) -> bool {
        false
    }

    fn activate(&mut self, features: u64) -> io::Result<()> {
        self.features = features & RING_FEATURES;
        Ok(())
    }

    fn deactivate(&mut self) {
        self.rings.abandon(&Process);
        if std::mem::take(&mut self.dirty)
            && let Err(error) = self.rings.host().reset()
        {
            tracing::warn!(tag = self.tag, %error, "a file system keeps state of the driver before");
        }
    }

    /// Called once for each queue, when the lane begins.
    fn process_queue(&mut self, _queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        queues.on_bus_master(self.rings.change().clone());
        self.follow(queues)
    }

    fn settle(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        // Afterwards it is looked at again.
        self.rings.change().ring();
        if self.rings.is_running() { self.rings.stop(&Process, queues) } else { Ok(()) }
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.rings.source())
    }

    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        if self.rings.handle_events(queues)? { self.follow(queues) } else { Ok(()) }
    }
}

/// Also where the lane goes down with its thread.
impl Drop for Filesystem {
    fn drop(&mut self) {
        self.rings.abandon(&Process);
    }
}

#[cfg(test)]
#[path = "fs_tests.rs"]
mod tests;
