use std::error::Error;
use std::fmt;
use std::str::FromStr;

use crate::name::names;

/// The most queue pairs of a NIC.
pub const MAX_QUEUE_PAIRS: usize = 8;

/// The model of a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NicModel {
    /// Intel 82540EM.
    E1000,
    /// Intel 82574L.
    E1000e,
    /// Intel 82576.
    Igb,
    /// NE2000 on PCI.
    Ne2kPci,
    /// AMD PCnet.
    Pcnet,
    /// Realtek 8139.
    Rtl8139,
    /// virtio-net.
    #[default]
    Virtio,
}

names!(NicModel {
    E1000 = "e1000",
    E1000e = "e1000e",
    Igb = "igb",
    Ne2kPci = "ne2k_pci",
    Pcnet = "pcnet",
    Rtl8139 = "rtl8139",
    Virtio = "virtio",
});

/// A unicast Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr([u8; 6]);

/// The error of parsing a text that is not a unicast Ethernet address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseMacError(String);

impl fmt::Display for ParseMacError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let advice = "write six hexadecimal octets such as 02:00:5e:00:53:01, the first even";
        write!(f, "{:?} is not a unicast MAC address: {advice}", self.0)
    }
}

impl Error for ParseMacError {}

impl MacAddr {
    /// A locally administered address.
    pub const fn local([a, b, c, d, e]: [u8; 5]) -> Self {
        Self([0x02, a, b, c, d, e])
    }

    /// The address of these octets, unless it is none of one device.
    pub fn unicast(octets: [u8; 6]) -> Option<Self> {
        let is_multicast = octets[0] & 1 == 1;
        (!is_multicast && octets != [0; 6]).then_some(Self(octets))
    }

    /// The six octets.
    pub const fn octets(self) -> [u8; 6] {
        self.0
    }
}

impl FromStr for MacAddr {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ParseMacError(text.to_owned());
        let mut octets = [0; 6];
        let mut parts = text.split([':', '-']);
        for octet in &mut octets {
            let digits = |part: &&str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
            let part = parts.next().filter(digits).ok_or_else(invalid)?;
            *octet = u8::from_str_radix(part, 16).map_err(|_| invalid())?;
        }
        if parts.next().is_some() {
            return Err(invalid());
        }
        Self::unicast(octets).ok_or_else(invalid)
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unicast_addresses_parse() {
        let mac: MacAddr = "52-54-00-ab-CD-ef".parse().unwrap();
        assert_eq!(mac.to_string(), "52:54:00:ab:cd:ef");
        for text in [
            "",
            "52:54:00:ab:cd",
            "52:54:00:ab:cd:ef:00",
            "01:00:5e:00:00:01",
            "+1:54:00:ab:cd:ef",
            "5254:00:ab:cd:ef",
            "00:00:00:00:00:00",
        ] {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
        }
    }
}
