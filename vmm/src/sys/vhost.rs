//! vhost: the kernel moves the queues of a NIC, or of a socket device (linux/vhost.h).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};
use vmm_sys_util::ioctl::{ioctl, ioctl_with_mut_ref, ioctl_with_ref};
use vmm_sys_util::{ioctl_io_nr, ioctl_ior_nr, ioctl_iow_nr, ioctl_iowr_nr};

use crate::memory::GuestMemory;

const VHOST: u32 = 0xaf;
/// The most ranges of RAM, which are two.
const MAX_REGIONS: usize = 8;

/// `struct vhost_memory` with its regions behind it.
#[repr(C)]
#[derive(Default)]
struct MemoryTable {
    count: u32,
    padding: u32,
    regions: [MemoryRegion; MAX_REGIONS],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MemoryRegion {
    guest: u64,
    len: u64,
    host: u64,
    flags: u64,
}

/// `struct vhost_vring_state`.
#[repr(C)]
struct RingState {
    index: u32,
    value: u32,
}

/// `struct vhost_vring_file`.
#[repr(C)]
struct RingFile {
    index: u32,
    fd: RawFd,
}

/// `struct vhost_vring_addr`.
#[repr(C)]
struct RingAddresses {
    index: u32,
    flags: u32,
    descriptors: u64,
    used: u64,
    available: u64,
    log: u64,
}

/// The header of [`MemoryTable`], whose size is part of the request's number.
type MemoryHeader = [u32; 2];

ioctl_ior_nr!(GET_FEATURES, VHOST, 0x00, u64);
ioctl_iow_nr!(SET_FEATURES, VHOST, 0x00, u64);
ioctl_io_nr!(SET_OWNER, VHOST, 0x01);
ioctl_iow_nr!(SET_MEM_TABLE, VHOST, 0x03, MemoryHeader);
ioctl_iow_nr!(SET_VRING_NUM, VHOST, 0x10, RingState);
ioctl_iow_nr!(SET_VRING_ADDR, VHOST, 0x11, RingAddresses);
ioctl_iow_nr!(SET_VRING_BASE, VHOST, 0x12, RingState);
ioctl_iowr_nr!(GET_VRING_BASE, VHOST, 0x12, RingState);
ioctl_iow_nr!(SET_VRING_KICK, VHOST, 0x20, RingFile);
ioctl_iow_nr!(SET_VRING_CALL, VHOST, 0x21, RingFile);
ioctl_iow_nr!(SET_VRING_ERR, VHOST, 0x22, RingFile);
ioctl_iow_nr!(NET_SET_BACKEND, VHOST, 0x30, RingFile);
ioctl_iow_nr!(VSOCK_SET_GUEST_CID, VHOST, 0x60, u64);
ioctl_iow_nr!(VSOCK_SET_RUNNING, VHOST, 0x61, libc::c_int);

/// A ring, with addresses in this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub(crate) size: u16,
    /// Of the available ring: the next chain to take.
    pub(crate) position: u16,
    pub(crate) descriptors: usize,
    pub(crate) available: usize,
    pub(crate) used: usize,
}

/// What a ring is served by.
pub(crate) struct RingFds<'a> {
    pub(crate) kick: &'a dyn AsRawFd,
    pub(crate) call: &'a dyn AsRawFd,
    pub(crate) error: &'a dyn AsRawFd,
}

/// Opens the device: a pair of queues. The kernel loads the module that it is of.
///
/// # Errors
/// When there is none, or this process may not use it.
pub fn open() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/vhost-net", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens vhost-vsock. The kernel loads the module that it is of.
///
/// # Errors
/// As [`open`].
pub fn open_vsock() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/vhost-vsock", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Gives an open vhost-vsock its context ID.
///
/// # Errors
/// `AddrInUse` when another device has it.
pub fn set_guest_cid(device: &OwnedFd, cid: u32) -> io::Result<()> {
    let cid = u64::from(cid);
    #[expect(unsafe_code, reason = "no safe wrapper of vhost")]
    // SAFETY: VHOST_VSOCK_SET_GUEST_CID reads one u64.
    check(unsafe { ioctl_with_ref(device, VSOCK_SET_GUEST_CID(), &cid) })
}

/// What moves the rings of a device: the kernel ([`Vhost`]) or another process ([`VhostUser`](super::vhost_user::VhostUser)).
pub(crate) trait HostRings: Send {
    /// What it can do of these features.
    fn features(&self, wanted: u64) -> u64;

    /// Of what the driver accepted, what concerns it. While no ring is served.
    ///
    /// # Errors
    /// As all that follow: those of the system calls, and of the process.
    fn set_features(&self, features: u64) -> io::Result<()>;

    /// Where RAM is. Whoever calls this keeps RAM mapped until the rings are stopped: later accesses fail.
    fn set_memory(&self, memory: &GuestMemory) -> io::Result<()>;

    /// Lays out ring `index`, which is not served. A process serves it from then on.
    fn set_ring(&self, index: u32, ring: Ring, fds: &RingFds<'_>) -> io::Result<()>;

    /// The position of ring `index`, which is served no longer.
    fn position(&self, index: u32) -> io::Result<u16>;

    /// Readable when nothing moves the rings any more. Only polled.
    fn connection(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// An open device of this process.
pub(crate) struct Vhost {
    device: OwnedFd,
    features: u64,
}

impl Vhost {
    /// Makes an open device this process's.
    pub(crate) fn new(device: OwnedFd) -> io::Result<Self> {
        #[expect(unsafe_code, reason = "no safe wrapper of vhost")]
        // SAFETY: VHOST_SET_OWNER takes no argument.
        let owned = check(unsafe { ioctl(&device, SET_OWNER()) });
        match owned {
            // It has been that since the guest's last reset.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            result => result?,
        }
        let mut features = 0_u64;
        #[expect(unsafe_code, reason = "no safe wrapper of vhost")]
        // SAFETY: VHOST_GET_FEATURES writes one u64.
        check(unsafe { ioctl_with_mut_ref(&device, GET_FEATURES(), &mut features) })?;
        Ok(Self { device, features })
    }

    /// Serves ring `index` with the queue of a tap, or no longer: then nothing of the ring is in use when this returns.
    pub(crate) fn set_tap(&self, index: u32, tap: Option<&dyn AsRawFd>) -> io::Result<()> {
        self.set_file(NET_SET_BACKEND(), index, tap)
    }

    /// Serves the rings of a socket device, or no longer: then nothing of them is in use when this returns.
    pub(crate) fn set_vsock_running(&self, runs: bool) -> io::Result<()> {
        let runs = libc::c_int::from(runs);
        #[expect(unsafe_code, reason = "no safe wrapper of vhost")]
        // SAFETY: VHOST_VSOCK_SET_RUNNING reads one int.
        check(unsafe { ioctl_with_ref(&self.device, VSOCK_SET_RUNNING(), &runs) })
    }

    fn set_state(&self, request: libc::c_ulong, index: u32, value: u16) -> io::Result<()> {
        let state = RingState { index, value: value.into() };
        #[expect(unsafe_code, reason = "no safe wrapper of vhost")]
        // SAFETY: the callers' requests read one `vhost_vring_state`.
        check(unsafe { ioctl_with_ref(&self.device, request, &state) })
    }

    fn set_file(&self, request: libc::c_ulong, index: u32, fd: Option<&dyn AsRawFd>) -> io::Result<()> {
        let file = RingFile { index, fd: fd.map_or(-1, AsRawFd::as_raw_fd) };
        #[expect(unsafe_code, reason = "no safe wrapper of vhost")]
        // SAFETY: the callers' requests read one `vhost_vring_file`; the kernel takes its own reference of the file.
        check(unsafe { ioctl_with_ref(&self.device, request, &file) })
    }
}

impl HostRings for Vhost {
    fn features(&self, wanted: u64) -> u64 {
        self.features & wanted
    }

    fn set_features(&self, features: u64) -> io::Result<()> {
        #[expect(unsafe_code, reason = "no safe wrapper of vhost")]
        // SAFETY: VHOST_SET_FEATURES reads one u64.
        check(unsafe { ioctl_with_ref(&self.device, SET_FEATURES(), &features) })
    }

    fn set_memory(&self, memory: &GuestMemory) -> io::Result<()> {
        let mut table = MemoryTable::default();
        for (region, slot) in memory.iter().zip(&mut table.regions) {
            let host = memory.get_host_address(region.start_addr()).map_err(io::Error::other)?;
            let (guest, host) = (region.start_addr().0, address(host.expose_provenance()));
            *slot = MemoryRegion { guest, len: region.len(), host, flags: 0 };
            table.count += 1;
        }
        if usize::try_from(table.count).ok() != Some(memory.num_regions()) {
            return Err(io::Error::other("more ranges of RAM than expected"));
        }
        #[expect(unsafe_code, reason = "no safe wrapper of vhost")]
        // SAFETY: VHOST_SET_MEM_TABLE reads the header and as many regions as it says, which `table` has.
        check(unsafe { ioctl_with_ref(&self.device, SET_MEM_TABLE(), &table) })
    }

    fn set_ring(&self, index: u32, ring: Ring, fds: &RingFds<'_>) -> io::Result<()> {
        self.set_state(SET_VRING_NUM(), index, ring.size)?;
        self.set_state(SET_VRING_BASE(), index, ring.position)?;
        let addresses = RingAddresses {
            index,
            flags: 0,
            descriptors: address(ring.descriptors),
            used: address(ring.used),
            available: address(ring.available),
            log: 0,
        };
        #[expect(unsafe_code, reason = "no safe wrapper of vhost")]
        // SAFETY: VHOST_SET_VRING_ADDR reads one `vhost_vring_addr`; the kernel checks the addresses whenever it uses them.
        check(unsafe { ioctl_with_ref(&self.device, SET_VRING_ADDR(), &addresses) })?;
        self.set_file(SET_VRING_ERR(), index, Some(fds.error))?;
        self.set_file(SET_VRING_CALL(), index, Some(fds.call))?;
        self.set_file(SET_VRING_KICK(), index, Some(fds.kick))
    }

    fn position(&self, index: u32) -> io::Result<u16> {
        let mut state = RingState { index, value: 0 };
        #[expect(unsafe_code, reason = "no safe wrapper of vhost")]
        // SAFETY: VHOST_GET_VRING_BASE reads and writes one `vhost_vring_state`.
        check(unsafe { ioctl_with_mut_ref(&self.device, GET_VRING_BASE(), &mut state) })?;
        u16::try_from(state.value).map_err(io::Error::other)
    }
}

fn address(host: usize) -> u64 {
    u64::try_from(host).unwrap_or(u64::MAX)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_and_requests_are_the_kernels() {
        assert_eq!((size_of::<RingAddresses>(), size_of::<MemoryRegion>()), (40, 32));
        assert_eq!(std::mem::offset_of!(MemoryTable, regions), 8);
        // As linux/vhost.h has them on x86-64.
        assert_eq!(GET_FEATURES(), 0x8008_af00);
        assert_eq!(SET_OWNER(), 0xaf01);
        assert_eq!(SET_MEM_TABLE(), 0x4008_af03);
        assert_eq!(SET_VRING_ADDR(), 0x4028_af11);
        assert_eq!(GET_VRING_BASE(), 0xc008_af12);
        assert_eq!(NET_SET_BACKEND(), 0x4008_af30);
        assert_eq!(VSOCK_SET_GUEST_CID(), 0x4008_af60);
        assert_eq!(VSOCK_SET_RUNNING(), 0x4004_af61);
    }
}
