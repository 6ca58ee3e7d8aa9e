//! The node's vhost-vsock, with a context ID for a VM.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::fd::OwnedFd;

use vireo_proto::files::VHOST_VSOCK;
use vireo_proto::launcher::Fault;
use vireo_vmconfig::{DeviceRequest, ExtraDevice};
use vireo_vmm::sys::vhost;

use crate::fault::{Code, fault_at};
use crate::files::PassedFiles;
use crate::launch::Launch;

/// The lowest context ID of guests (linux/vm_sockets.h): those below have a meaning.
const FIRST_CID: u32 = 3;
/// The highest: the one above is for any.
const LAST_CID: u32 = u32::MAX - 1;
/// How many IDs are tried. Those in use are a few of billions.
const TRIES: u32 = 1024;

/// An open device whose context ID no other guest of the node has.
#[derive(Debug)]
pub struct Vsock {
    /// The device.
    pub device: OwnedFd,
    /// Its context ID.
    pub cid: u32,
}

/// Opens the device of a VM that requests one. The kernel keeps the ID from others as long as the device is open.
///
/// # Errors
/// Names the field that requests it, and what is missing.
pub(super) fn open(launch: &Launch, passed: &PassedFiles) -> Result<Option<Vsock>, Fault> {
    let mut requests = launch.extra_devices.iter();
    let request = requests.find(|request| request.device == ExtraDevice::Vsock);
    let Some(DeviceRequest { field, device: what }) = request else { return Ok(None) };
    let failed =
        |why: String| Err(fault_at(Code::HostResource, field, format!("{field} requests {what}: {why}")));
    let device = match passed.take(VHOST_VSOCK).map_or_else(vhost::open_vsock, Ok) {
        Ok(device) => device,
        Err(error) => {
            return failed(format!(
                "cannot open {VHOST_VSOCK}: {error}: load the kernel module vhost_vsock on this node"
            ));
        }
    };
    match take_cid(&launch.vmi.uid, |cid| vhost::set_guest_cid(&device, cid)) {
        Ok(cid) => Ok(Some(Vsock { device, cid })),
        Err(error) => failed(format!("no context ID for it: {error}")),
    }
}

/// The first free ID from one on that is likely to be the VMI's alone in the whole cluster.
fn take_cid(uid: &str, set: impl Fn(u32) -> io::Result<()>) -> io::Result<u32> {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    let count = u64::from(LAST_CID - FIRST_CID) + 1;
    for offset in 0..TRIES {
        let number = (hasher.finish() % count + u64::from(offset)) % count;
        let cid = FIRST_CID + u32::try_from(number).unwrap_or_default();
        match set(cid) {
            Ok(()) => return Ok(cid),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashSet;

    use super::*;
    use crate::launch::sample;

    #[test]
    fn each_vm_gets_an_id_that_is_free() {
        let used = RefCell::new(HashSet::from([0, 1, 2, u32::MAX]));
        let set = |cid| match used.borrow_mut().insert(cid) {
            true => Ok(()),
            false => Err(io::ErrorKind::AddrInUse.into()),
        };
        let first = take_cid("a", set).unwrap();
        assert_eq!(take_cid("a", set).unwrap(), if first == LAST_CID { FIRST_CID } else { first + 1 });
        for vm in 0..1000 {
            assert!((FIRST_CID..=LAST_CID).contains(&take_cid(&vm.to_string(), set).unwrap()));
        }
        let full = take_cid("a", |_| Err(io::ErrorKind::AddrInUse.into())).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::AddrInUse);
        let other = take_cid("a", |_| Err(io::ErrorKind::InvalidInput.into())).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_vm_without_one_needs_no_device() {
        assert!(open(&sample::kernel_boot(), &PassedFiles::default()).unwrap().is_none());
    }

    #[test]
    fn a_device_that_is_none_is_reported_with_its_field() {
        let request = DeviceRequest { field: "spec.x".to_owned(), device: ExtraDevice::Vsock };
        let launch = Launch { extra_devices: vec![request], ..sample::kernel_boot() };
        let (directory, passed) = (tempfile::tempdir().unwrap(), std::fs::File::open("/dev/null").unwrap());
        let socket = directory.path().join("files.sock");
        let files = PassedFiles::serve(&socket).unwrap();
        vireo_proto::files::pass(&socket, &[(VHOST_VSOCK.to_owned(), passed.into())]).unwrap();
        let fault = open(&launch, &files).unwrap_err();
        assert_eq!((fault.code(), fault.field.as_str()), (Code::HostResource, "spec.x"));
        assert!(
            fault.detail.starts_with("spec.x requests a VSOCK device: no context ID for it: "),
            "{}",
            fault.detail
        );
    }
}
