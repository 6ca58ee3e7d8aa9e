//! Tap devices.

use std::ffi::{c_int, c_uint};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

/// Opens a queue of the tap device `name`, making the device if there is none: Ethernet frames, each behind a
/// virtio-net header, non-blocking. Needs `CAP_NET_ADMIN`, or a persistent device owned by the caller.
pub fn open(name: &str) -> io::Result<OwnedFd> {
    open_as(name, 0)
}

/// Opens `count` queues of a tap device, at least one: the first, and the others.
///
/// # Errors
/// As [`open`], and when the device is there and has several queues where one is wanted, or the reverse.
pub fn open_queues(name: &str, count: usize) -> io::Result<(OwnedFd, Vec<OwnedFd>)> {
    let flags = if count > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
    let first = open_as(name, flags)?;
    let others = (1..count).map(|_| open_as(name, flags));
    Ok((first, others.collect::<io::Result<_>>()?))
}

fn open_as(name: &str, more: c_int) -> io::Result<OwnedFd> {
    let tap =
        rustix::fs::open("/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | more;
    let mut request = libc::ifreq {
        ifr_name: interface_name(name)?,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: libc::c_short::try_from(flags).unwrap_or(0) },
    };
    #[expect(unsafe_code, reason = "no safe wrapper of TUNSETIFF")]
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which outlives the call.
    let result = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    check(result)?;
    Ok(tap)
}

fn interface_name(name: &str) -> io::Result<[libc::c_char; libc::IFNAMSIZ]> {
    let bad = name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0');
    if bad {
        let text = format!("invalid interface name {name:?}: expected 1 to 15 bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut field = [0; libc::IFNAMSIZ];
    for (to, from) in field.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    Ok(field)
}

/// Sets how many bytes the header before each frame has.
pub(crate) fn set_header_size(tap: BorrowedFd<'_>, size: c_int) -> io::Result<()> {
    #[expect(unsafe_code, reason = "no safe wrapper of TUNSETVNETHDRSZ")]
    // SAFETY: TUNSETVNETHDRSZ reads one `int`, which outlives the call.
    let result = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const size) };
    check(result)
}

/// Has the tap spread frames over this queue too, or no longer. Nothing happens where that is so already.
pub(crate) fn attach_queue(tap: BorrowedFd<'_>, attach: bool) -> io::Result<()> {
    let flags = if attach { libc::IFF_ATTACH_QUEUE } else { libc::IFF_DETACH_QUEUE };
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: libc::c_short::try_from(flags).unwrap_or(0) },
    };
    #[expect(unsafe_code, reason = "no safe wrapper of TUNSETQUEUE")]
    // SAFETY: TUNSETQUEUE reads one `ifreq`, which outlives the call.
    let result = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETQUEUE, &raw mut request) };
    match check(result) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        result => result,
    }
}

/// Sets the offloads that the reader of the tap supports (`TUN_F_*`).
pub(crate) fn set_offload(tap: BorrowedFd<'_>, flags: c_uint) -> io::Result<()> {
    #[expect(unsafe_code, reason = "no safe wrapper of TUNSETOFFLOAD")]
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    let result = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(flags)) };
    check(result)
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_fits_no_interface_is_refused() {
        for name in ["", "sixteen-bytes-xx", "a\0b"] {
            assert_eq!(open(name).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name:?}");
        }
        assert_eq!(interface_name("tap0").unwrap()[..5], [116, 97, 112, 48, 0]);
    }
}
