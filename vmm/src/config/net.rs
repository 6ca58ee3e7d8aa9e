use std::fmt;
use std::os::fd::OwnedFd;
use std::str::FromStr;

/// A unicast Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MacAddr([u8; 6]);

/// Why a text is no unicast Ethernet address.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no unicast MAC address (six hexadecimal octets, the first even)")]
pub struct ParseMacError(String);

impl MacAddr {
    /// The six octets.
    pub fn octets(self) -> [u8; 6] {
        self.0
    }
}

impl FromStr for MacAddr {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || ParseMacError(text.to_owned());
        let mut octets = [0; 6];
        let mut parts = text.split([':', '-']);
        for octet in &mut octets {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(refuse)?;
            *octet = u8::from_str_radix(part, 16).map_err(|_| refuse())?;
        }
        let multicast = octets[0] & 1 == 1;
        if parts.next().is_some() || multicast || octets == [0; 6] {
            return Err(refuse());
        }
        Ok(Self(octets))
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A virtio-net card on a tap device.
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

    /// Tells the guest its MTU (VIRTIO_NET_F_MTU).
    #[must_use]
    pub fn mtu(mut self, mtu: Option<u16>) -> Self {
        self.mtu = mtu;
        self
    }

    /// Firmware tries to start from it at this place, from 1.
    #[must_use]
    pub fn boot_order(mut self, order: Option<u32>) -> Self {
        self.boot_order = order;
        self
    }

    /// Its place among what firmware tries.
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

    /// The MTU the guest is told.
    pub fn advertised_mtu(&self) -> Option<u16> {
        self.mtu
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_round_trips_and_multicast_is_refused() {
        let mac: MacAddr = "52-54-00-ab-CD-ef".parse().unwrap();
        assert_eq!(mac.to_string(), "52:54:00:ab:cd:ef");
        for text in [
            "",
            "52:54:00:ab:cd",
            "52:54:00:ab:cd:ef:00",
            "01:00:5e:00:00:01",
            "5254:00:ab:cd:ef",
            "0:0:0:0:0:0",
        ] {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
        }
    }
}
