use std::fmt;

use crate::name::names;
use crate::{HostDevice, HyperV, PlatformFeature};

/// A device or chipset feature that not every hypervisor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraDevice {
    /// A port by which the guest reads metrics of its host.
    DownwardMetrics,
    /// A device of the host.
    Host(HostDevice),
    /// A high precision event timer.
    Hpet,
    /// A Hyper-V enlightenment.
    HyperV(HyperV),
    /// A pvpanic device, by which the guest reports that it crashed.
    Panic(PanicModel),
    /// A property of the platform.
    Platform(PlatformFeature),
    /// System management mode.
    Smm,
    /// A sound card, without a backend.
    Sound(SoundModel),
    /// A trusted platform module, version 2.0.
    Tpm,
    /// Slots for USB devices of clients, on a controller of their own.
    UsbRedirection,
    /// A tablet on a USB controller of its own.
    UsbTablet,
    /// A socket device, by which guest and host talk.
    Vsock,
    /// An i6300esb watchdog with the action it takes.
    Watchdog(WatchdogAction),
}

/// Where the guest finds a pvpanic device. The names are KubeVirt's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanicModel {
    /// At an I/O port.
    Isa,
    /// On the PCI bus.
    Pci,
}

names!(PanicModel { Isa = "isa", Pci = "pvpanic" });

/// The model of a sound card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SoundModel {
    /// Intel 82801AA AC97.
    Ac97,
    /// Intel HD Audio of the ICH9.
    #[default]
    Ich9,
}

names!(SoundModel { Ac97 = "ac97", Ich9 = "ich9" });

/// What happens to the VM when the watchdog expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WatchdogAction {
    /// It is powered off.
    PowerOff,
    /// It is reset.
    #[default]
    Reset,
    /// The guest is asked to shut down.
    Shutdown,
}

names!(WatchdogAction { PowerOff = "poweroff", Reset = "reset", Shutdown = "shutdown" });

impl ExtraDevice {
    /// Whether the hypervisor native has it, or lacks what is to be absent.
    pub const fn is_native(self) -> bool {
        match self {
            Self::Panic(_) | Self::Vsock | Self::Watchdog(_) => true,
            Self::Platform(feature) => feature.is_absence(),
            Self::DownwardMetrics
            | Self::Host(_)
            | Self::Hpet
            | Self::HyperV(_)
            | Self::Smm
            | Self::Sound(_)
            | Self::Tpm
            | Self::UsbRedirection
            | Self::UsbTablet => false,
        }
    }

    /// The number of slots on the root PCI bus that it takes.
    pub const fn pci_slots(self) -> usize {
        match self {
            Self::DownwardMetrics
            | Self::Hpet
            | Self::HyperV(_)
            | Self::Panic(PanicModel::Isa)
            | Self::Platform(_)
            | Self::Smm
            | Self::Tpm => 0,
            Self::Host(_)
            | Self::Panic(PanicModel::Pci)
            | Self::Sound(_)
            | Self::UsbRedirection
            | Self::UsbTablet
            | Self::Vsock
            | Self::Watchdog(_) => 1,
        }
    }
}

/// The device with its article, for error messages.
impl fmt::Display for ExtraDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DownwardMetrics => "a port for metrics of the host",
            Self::Host(device) => return device.fmt(f),
            Self::Hpet => "an HPET",
            Self::HyperV(enlightenment) => return enlightenment.fmt(f),
            Self::Panic(PanicModel::Isa) => "a pvpanic device",
            Self::Panic(PanicModel::Pci) => "a PCI pvpanic device",
            Self::Platform(feature) => return feature.fmt(f),
            Self::Smm => "system management mode",
            Self::Sound(SoundModel::Ac97) => "an AC97 sound card",
            Self::Sound(SoundModel::Ich9) => "an ICH9 sound card",
            Self::Tpm => "a TPM",
            Self::UsbRedirection => "USB redirection",
            Self::UsbTablet => "a USB tablet",
            Self::Vsock => "a VSOCK device",
            Self::Watchdog(_) => "an i6300esb watchdog",
        })
    }
}

/// An extra device and the field of the manifest that requests it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// For error messages: `spec.domain.devices.watchdog`.
    pub field: String,
    /// The device.
    pub device: ExtraDevice,
}
