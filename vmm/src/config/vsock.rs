use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;

/// A socket device, by which the guest and the host talk.
#[derive(Debug)]
pub struct Vsock {
    device: OwnedFd,
    cid: u32,
}

/// Not a context ID of a guest.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("context ID {0}: the IDs of guests are 3 to 4294967294")]
pub struct VsockError(u32);

impl Vsock {
    /// The context IDs of guests (linux/vm_sockets.h).
    pub const CIDS: RangeInclusive<u32> = 3..=u32::MAX - 1;

    /// One that an open vhost-vsock serves, which has this context ID already
    /// ([`crate::sys::vhost::set_guest_cid`]).
    ///
    /// # Errors
    /// When it is no ID of guests.
    pub fn new(device: OwnedFd, cid: u32) -> Result<Self, VsockError> {
        if Self::CIDS.contains(&cid) { Ok(Self { device, cid }) } else { Err(VsockError(cid)) }
    }

    pub(crate) fn device(&self) -> &OwnedFd {
        &self.device
    }

    pub(crate) fn cid(&self) -> u32 {
        self.cid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_of_host_and_hypervisor_are_not_for_guests() {
        for (cid, fits) in [(0, false), (2, false), (3, true), (u32::MAX - 1, true), (u32::MAX, false)] {
            let device = std::fs::File::open("/dev/null").unwrap().into();
            assert_eq!(Vsock::new(device, cid).is_ok(), fits, "{cid}");
        }
    }
}
