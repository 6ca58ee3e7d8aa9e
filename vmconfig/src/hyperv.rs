use std::error::Error;
use std::fmt;
use std::str::FromStr;

use crate::name::names;

/// A Hyper-V enlightenment: an interface of Microsoft's hypervisor that KVM has for Windows guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HyperV {
    /// One that is on or off.
    Feature(HyperVFeature),
    /// How often a guest tries to acquire a spinlock before it notifies the hypervisor.
    Spinlocks(u32),
    /// The vendor that the hypervisor's CPUID leaf names.
    VendorId(HyperVVendor),
}

/// An enlightenment without a value. The names are KubeVirt's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HyperVFeature {
    /// MSRs by which the guest reports a crash.
    Crash,
    /// Enlightened VMCS.
    Evmcs,
    /// MSRs with the frequencies of TSC and APIC.
    Frequencies,
    /// Inter-processor interrupts by hypercall.
    Ipi,
    /// All that the host has.
    Passthrough,
    /// Notification of a changed frequency of the TSC.
    Reenlightenment,
    /// No watchdog timeouts.
    Relaxed,
    /// An MSR by which the guest resets itself.
    Reset,
    /// An MSR with the time that vCPUs have run.
    Runtime,
    /// Synthetic interrupt controller.
    Synic,
    /// Synthetic timers.
    SynicTimer,
    /// Synthetic timers that interrupt vCPUs directly.
    SynicTimerDirect,
    /// Reference time counter and reference TSC page.
    Time,
    /// TLB flush by hypercall.
    TlbFlush,
    /// TLB flush of nested guests by the host.
    TlbFlushDirect,
    /// TLB flush of ranges of addresses.
    TlbFlushExtended,
    /// MSRs for the registers of the APIC.
    Vapic,
    /// Index of each vCPU.
    VpIndex,
}

names!(HyperVFeature {
    Crash = "crash",
    Evmcs = "evmcs",
    Frequencies = "frequencies",
    Ipi = "ipi",
    Passthrough = "passthrough",
    Reenlightenment = "reenlightenment",
    Relaxed = "relaxed",
    Reset = "reset",
    Runtime = "runtime",
    Synic = "synic",
    SynicTimer = "synictimer",
    SynicTimerDirect = "synictimer.direct",
    Time = "time",
    TlbFlush = "tlbflush",
    TlbFlushDirect = "tlbflush.direct",
    TlbFlushExtended = "tlbflush.extended",
    Vapic = "vapic",
    VpIndex = "vpindex",
});

impl HyperVFeature {
    /// The enlightenments that it does not work without, also indirectly.
    pub const fn requires(self) -> &'static [Self] {
        match self {
            Self::Evmcs | Self::TlbFlushDirect => &[Self::Vapic],
            Self::Synic | Self::TlbFlush | Self::Ipi => &[Self::VpIndex],
            Self::SynicTimer => &[Self::Synic, Self::VpIndex, Self::Time],
            Self::SynicTimerDirect => &[Self::SynicTimer, Self::Synic, Self::VpIndex, Self::Time],
            Self::TlbFlushExtended => &[Self::TlbFlush, Self::VpIndex],
            _ => &[],
        }
    }
}

/// The enlightenment with its article, for error messages.
impl fmt::Display for HyperV {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Feature(HyperVFeature::Passthrough) => {
                f.write_str("all Hyper-V enlightenments of the host")
            }
            Self::Feature(feature) => write!(f, "the Hyper-V enlightenment {feature}"),
            Self::Spinlocks(_) => f.write_str("the Hyper-V enlightenment spinlocks"),
            Self::VendorId(_) => f.write_str("the Hyper-V enlightenment vendorid"),
        }
    }
}

/// A vendor ID: 1 to 12 printable ASCII characters but the comma, which QEMU's arguments have no quoting for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HyperVVendor {
    bytes: [u8; Self::LEN],
    len: u8,
}

/// The error of a text that is not a vendor ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidVendor;

impl fmt::Display for InvalidVendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "must have 1 to {} printable ASCII characters, none of them a comma", HyperVVendor::LEN)
    }
}

impl Error for InvalidVendor {}

impl HyperVVendor {
    /// The room in the CPUID leaf.
    const LEN: usize = 12;

    /// The text.
    pub fn as_str(&self) -> &str {
        let text = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        // It was made of a text.
        std::str::from_utf8(text).unwrap_or_default()
    }
}

impl FromStr for HyperVVendor {
    type Err = InvalidVendor;

    fn from_str(text: &str) -> Result<Self, InvalidVendor> {
        let allowed = |b: u8| (b.is_ascii_graphic() || b == b' ') && b != b',';
        let mut bytes = [0; Self::LEN];
        let room = bytes.get_mut(..text.len()).filter(|room| !room.is_empty() && text.bytes().all(allowed));
        room.ok_or(InvalidVendor)?.copy_from_slice(text.as_bytes());
        Ok(Self { bytes, len: u8::try_from(text.len()).map_err(|_| InvalidVendor)? })
    }
}

impl fmt::Debug for HyperVVendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendors_have_room_for_twelve_characters() {
        for text in ["x", "KVMKVMKVM", "Microsoft Hv"] {
            assert_eq!(
                text.parse::<HyperVVendor>().map(|vendor| vendor.as_str().to_owned()),
                Ok(text.to_owned())
            );
        }
        for text in ["", "Microsoft Hv!", "a,b", "ä", "a\n"] {
            assert_eq!(text.parse::<HyperVVendor>(), Err(InvalidVendor), "{text:?}");
        }
    }

    #[test]
    fn what_is_required_has_what_it_requires_beside_it() {
        for feature in HyperVFeature::ALL {
            for required in feature.requires() {
                for indirect in required.requires() {
                    assert!(feature.requires().contains(indirect), "{feature} requires {indirect}");
                }
            }
        }
        assert!(HyperVFeature::NAMES.is_sorted());
    }
}
