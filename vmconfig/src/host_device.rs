use std::fmt;
use std::str::FromStr;

/// A device of the host that the guest gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostDevice {
    /// A PCI device that is bound to `vfio-pci`.
    Pci(PciAddress),
    /// A mediated device.
    Mediated(MdevUuid),
    /// A USB device.
    Usb(UsbAddress),
}

/// The device with its article, for error messages.
impl fmt::Display for HostDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci(address) => write!(f, "the host's PCI device {address}"),
            Self::Mediated(uuid) => write!(f, "the host's mediated device {uuid}"),
            Self::Usb(address) => write!(f, "the host's USB device {address}"),
        }
    }
}

/// The text is not an address of a host device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseAddressError {
    expected: &'static str,
}

impl fmt::Display for ParseAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "must be {}", self.expected)
    }
}

impl std::error::Error for ParseAddressError {}

/// The address of a PCI function: `0000:01:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl FromStr for PciAddress {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            Some(Self {
                domain: hex(domain, 4..=8)?,
                bus: u8::try_from(hex(bus, 2..=2)?).ok()?,
                device: u8::try_from(hex(device, 2..=2)?).ok().filter(|device| *device < 32)?,
                function: u8::try_from(hex(function, 1..=1)?).ok().filter(|function| *function < 8)?,
            })
        };
        parsed().ok_or(ParseAddressError { expected: "the address of a PCI function, such as 0000:01:00.0" })
    }
}

fn hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let is_hex = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u32::from_str_radix(text, 16).ok().filter(|_| is_hex)
}

/// As sysfs and QEMU have it.
impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

/// The UUID of a mediated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MdevUuid(u128);

/// Digits of the parts of a UUID.
const UUID_PARTS: [usize; 5] = [8, 4, 4, 4, 12];

impl FromStr for MdevUuid {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_hex = text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
        let is_uuid = is_hex && text.split('-').map(str::len).eq(UUID_PARTS);
        let number = u128::from_str_radix(&text.replace('-', ""), 16).ok().filter(|_| is_uuid);
        number.map(Self).ok_or(ParseAddressError { expected: "a UUID" })
    }
}

/// As sysfs and QEMU have it.
impl fmt::Display for MdevUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", self.0);
        let mut rest = digits.as_str();
        for (index, length) in UUID_PARTS.into_iter().enumerate() {
            let (part, after) = rest.split_at_checked(length).unwrap_or((rest, ""));
            f.write_str(if index > 0 { "-" } else { "" })?;
            f.write_str(part)?;
            rest = after;
        }
        Ok(())
    }
}

/// Where a USB device is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UsbAddress {
    bus: u16,
    device: u8,
}

impl UsbAddress {
    /// `None` for numbers that no device has: buses have up to three digits, devices are 1 to 127.
    pub fn new(bus: u32, device: u32) -> Option<Self> {
        let bus = u16::try_from(bus).ok().filter(|bus| (1..1000).contains(bus))?;
        let device = u8::try_from(device).ok().filter(|device| (1..128).contains(device))?;
        Some(Self { bus, device })
    }

    /// The number of its bus.
    pub fn bus(self) -> u16 {
        self.bus
    }

    /// Its number on the bus.
    pub fn device(self) -> u8 {
        self.device
    }
}

impl FromStr for UsbAddress {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number =
            |text: &str| text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        let parts = text.split_once(':');
        let address = parts.and_then(|(bus, device)| Self::new(number(bus)?, number(device)?));
        address
            .ok_or(ParseAddressError { expected: "the numbers of a USB bus and a device on it, such as 1:2" })
    }
}

/// As KubeVirt's environment variables have it.
impl fmt::Display for UsbAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.bus, self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: FromStr + ToString>(text: &str) -> Option<String> {
        text.parse().ok().map(|value: T| value.to_string())
    }

    #[test]
    fn addresses_are_read_and_written() {
        for address in ["0000:01:00.0", "0000:ff:1f.7", "10000:e1:00.0"] {
            assert_eq!(read::<PciAddress>(address).as_deref(), Some(address));
        }
        assert_eq!(read::<PciAddress>("0000:AF:00.1").as_deref(), Some("0000:af:00.1"));
        for address in
            ["", "01:00.0", "0000:01:20.0", "0000:01:00.8", "0000:1:00.0", "0000:01:00.0,x=1", "0000:+1:00.0"]
        {
            assert_eq!(read::<PciAddress>(address), None, "{address}");
        }
        let uuid = "0b2e4d3c-11aa-22bb-33cc-0123456789ab";
        assert_eq!(read::<MdevUuid>(uuid).as_deref(), Some(uuid));
        assert_eq!(read::<MdevUuid>("00000000-0000-0000-0000-000000000001").map(|text| text.len()), Some(36));
        for text in
            ["", "../devices/x", "0b2e4d3c11aa22bb33cc0123456789ab", "0b2e4d3c-11aa-22bb-33cc-0123456789ag"]
        {
            assert_eq!(read::<MdevUuid>(text), None, "{text}");
        }
        assert_eq!(read::<UsbAddress>("1:12").as_deref(), Some("1:12"));
        for text in ["", "1", "0:1", "1:0", "1:128", "1000:1", "1:+2", "1:2:3"] {
            assert_eq!(read::<UsbAddress>(text), None, "{text}");
        }
    }
}
