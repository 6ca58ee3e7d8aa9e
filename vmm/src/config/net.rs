use std::os::fd::OwnedFd;

use vireo_vmconfig::MacAddr;

/// A virtio-net NIC on a tap device.
#[derive(Debug)]
pub struct Net {
    tap: OwnedFd,
    mac: MacAddr,
    mtu: Option<u16>,
    boot_order: Option<u32>,
}

impl Net {
    /// `tap` is an attached `/dev/net/tun` queue made with `IFF_TAP | IFF_NO_PI | IFF_VNET_HDR`
    /// ([`crate::sys::tap::open`] makes one); `mac` is the guest's address.
    pub fn new(tap: OwnedFd, mac: MacAddr) -> Self {
        Self { tap, mac, mtu: None, boot_order: None }
    }

    /// Announces the MTU to the guest (VIRTIO_NET_F_MTU).
    #[must_use]
    pub fn mtu(mut self, mtu: Option<u16>) -> Self {
        self.mtu = mtu;
        self
    }

    /// Its position in the boot order, from 1.
    #[must_use]
    pub fn boot_order(mut self, order: Option<u32>) -> Self {
        self.boot_order = order;
        self
    }

    /// Its position in the boot order.
    pub fn boots_at(&self) -> Option<u32> {
        self.boot_order
    }

    /// The tap queue.
    pub fn tap(&self) -> &OwnedFd {
        &self.tap
    }

    /// The guest's address.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// The MTU announced to the guest.
    pub fn advertised_mtu(&self) -> Option<u16> {
        self.mtu
    }
}
