use std::io;
use std::sync::Arc;

use kvm_ioctls::{IoEventAddress, NoDatamatch, VmFd};
use vmm_sys_util::eventfd::EventFd;

use crate::irq::Doorbells;

/// Doorbells as `KVM_IOEVENTFD`s.
pub(crate) struct KvmDoorbells(pub(crate) Arc<VmFd>);

impl Doorbells for KvmDoorbells {
    fn register(&self, fd: &EventFd, address: u64) -> io::Result<()> {
        Ok(self.0.register_ioevent(fd, &IoEventAddress::Mmio(address), NoDatamatch)?)
    }

    fn unregister(&self, fd: &EventFd, address: u64) -> io::Result<()> {
        Ok(self.0.unregister_ioevent(fd, &IoEventAddress::Mmio(address), NoDatamatch)?)
    }
}
