//! The guest's tap device: persistent, opened later by the launcher.

use std::ffi::c_void;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

/// linux/if_tun.h: `TUNSETIFF`, `_IOW('T', 202, int)`.
const SET_INTERFACE: Opcode = opcode::write::<i32>(b'T', 202);
/// linux/if_tun.h: `TUNSETPERSIST`, `_IOW('T', 203, int)`.
const SET_PERSISTENT: Opcode = opcode::write::<i32>(b'T', 203);

const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
const IFF_MULTI_QUEUE: u16 = 0x0100;

/// linux/if.h: `struct ifreq` with `ifr_flags`.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

struct SetInterface(InterfaceRequest);

// SAFETY: TUNSETIFF reads and writes one `struct ifreq` of 40 bytes at the pointer, which `InterfaceRequest` is in
// size and layout, and keeps no pointer to it.
#[expect(unsafe_code, reason = "rustix has no wrapper for this ioctl")]
unsafe impl Ioctl for SetInterface {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        SET_INTERFACE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// Whether a tap may be opened several times, for a queue each. That is a property of the tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// It is opened once.
    Single,
    /// As often as there are queues.
    Several,
}

impl Queues {
    /// For a NIC with as many queue pairs.
    pub fn of(pairs: u32) -> Self {
        if pairs > 1 { Self::Several } else { Self::Single }
    }
}

/// Opens a queue of a tap in the calling thread's network namespace, and makes the tap if it is not there.
///
/// # Errors
/// When the kernel has no tun driver or refuses; it asks for `CAP_NET_ADMIN`.
pub fn open(name: &str, queues: Queues) -> io::Result<OwnedFd> {
    let mut padded = [0_u8; 16];
    match padded.get_mut(..name.len()) {
        Some(start) if name.len() < 16 => start.copy_from_slice(name.as_bytes()),
        _ => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "an interface name has at most 15 bytes",
            ));
        }
    }
    let fd: OwnedFd = {
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        OpenOptions::new().read(true).write(true).custom_flags(nonblock).open("/dev/net/tun")?.into()
    };
    let several = if queues == Queues::Several { IFF_MULTI_QUEUE } else { 0 };
    let flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | several;
    let request = InterfaceRequest { name: padded, flags, rest: [0; 22] };
    // SAFETY: the request is valid for a tun descriptor, which /dev/net/tun just gave.
    #[expect(unsafe_code, reason = "rustix has no wrapper for this ioctl")]
    unsafe { ioctl(&fd, SetInterface(request)) }?;
    Ok(fd)
}

/// Makes a persistent tap in the calling thread's network namespace. One of that name that is already there and not
/// in use is kept.
///
/// # Errors
/// When the kernel has no tun driver or refuses; it asks for `CAP_NET_ADMIN`.
pub fn create(name: &str, queues: Queues) -> io::Result<()> {
    let fd = open(name, queues)?;
    // SAFETY: TUNSETPERSIST is an ioctl that takes its argument as an integer, which is what this type passes.
    #[expect(unsafe_code, reason = "rustix has no wrapper for this ioctl")]
    let persist = unsafe { rustix::ioctl::IntegerSetter::<SET_PERSISTENT>::new_usize(1) };
    // SAFETY: TUNSETPERSIST touches no memory of ours.
    #[expect(unsafe_code, reason = "rustix has no wrapper for this ioctl")]
    unsafe { ioctl(&fd, persist) }?;
    Ok(())
}
