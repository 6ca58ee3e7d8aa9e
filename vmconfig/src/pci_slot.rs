use std::error::Error;
use std::fmt;
use std::str::FromStr;

/// A slot on the root PCI bus that a manifest can choose: the host bridge has the first one, the board's own devices and
/// hotplug ports have the last two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciSlot(u8);

/// The error of a text or number that is not such a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPciSlot;

impl fmt::Display for InvalidPciSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be an address on the root bus, 0000:00:01.0 to 0000:00:1d.0")
    }
}

impl Error for InvalidPciSlot {}

impl PciSlot {
    /// The number of the slot.
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl TryFrom<u32> for PciSlot {
    type Error = InvalidPciSlot;

    fn try_from(number: u32) -> Result<Self, InvalidPciSlot> {
        match u8::try_from(number) {
            Ok(number @ 1..=0x1d) => Ok(Self(number)),
            _ => Err(InvalidPciSlot),
        }
    }
}

/// `0000:00:0a.0`.
impl FromStr for PciSlot {
    type Err = InvalidPciSlot;

    fn from_str(text: &str) -> Result<Self, InvalidPciSlot> {
        let slot = text.strip_prefix("0000:00:").and_then(|rest| rest.strip_suffix(".0"));
        let slot = slot.filter(|slot| slot.len() == 2 && slot.bytes().all(|b| b.is_ascii_hexdigit()));
        let number = slot.and_then(|slot| u32::from_str_radix(slot, 16).ok());
        number.ok_or(InvalidPciSlot)?.try_into()
    }
}

impl fmt::Display for PciSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0000:00:{:02x}.0", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_that_are_free() {
        for text in ["0000:00:01.0", "0000:00:0a.0", "0000:00:1d.0"] {
            assert_eq!(text.parse::<PciSlot>().map(|slot| slot.to_string()), Ok(text.to_owned()));
        }
        for text in [
            "",
            "0000:00:00.0",
            "0000:00:1e.0",
            "0000:81:01.0",
            "0001:00:01.0",
            "0000:00:01.1",
            "0000:00:+1.0",
        ] {
            assert_eq!(text.parse::<PciSlot>(), Err(InvalidPciSlot), "{text}");
        }
    }
}
