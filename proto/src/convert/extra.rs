use vireo_vmconfig::{
    DeviceRequest, ExtraDevice, HostDevice, HyperV, HyperVFeature, PanicModel, PlatformFeature, SoundModel,
    UsbAddress, WatchdogAction,
};

use super::{Problems, enums};
use crate::launcher as wire;
use wire::extra_device::host_device::Address;
use wire::extra_device::hyper_v::Enlightenment;
use wire::extra_device::{
    Device, DownwardMetrics, Hpet, PanicModel as Panic, Smm, SoundModel as Sound, Tpm, UsbRedirection,
    UsbTablet, Vsock,
};
use wire::extra_device::{HyperVFeature as Feature, PlatformFeature as Platform};

enums!(Panic, PanicModel, { Isa = Isa, Pci = Pci });
enums!(Feature, HyperVFeature, {
    Crash = Crash,
    Evmcs = Evmcs,
    Frequencies = Frequencies,
    Ipi = Ipi,
    Passthrough = Passthrough,
    Reenlightenment = Reenlightenment,
    Relaxed = Relaxed,
    Reset = Reset,
    Runtime = Runtime,
    Synic = Synic,
    SynicTimer = SynicTimer,
    SynicTimerDirect = SynicTimerDirect,
    Time = Time,
    TlbFlush = TlbFlush,
    TlbFlushDirect = TlbFlushDirect,
    TlbFlushExtended = TlbFlushExtended,
    Vapic = Vapic,
    VpIndex = VpIndex,
});
enums!(Platform, PlatformFeature, {
    AcpiOff = AcpiOff,
    HpetOff = HpetOff,
    KvmClockOff = KvmClockOff,
    KvmHidden = KvmHidden,
    PitOff = PitOff,
    PitDiscardsTicks = PitDiscardsTicks,
    PvEoiOff = PvEoiOff,
    PvSpinlockOff = PvSpinlockOff,
    RtcCatchesUp = RtcCatchesUp,
    RtcTracksGuest = RtcTracksGuest,
    SmmOff = SmmOff,
    VirtioTransitional = VirtioTransitional,
});
enums!(Sound, SoundModel, { Ac97 = Ac97, Ich9 = Ich9 });
enums!(wire::extra_device::WatchdogAction, WatchdogAction, {
    Reset = Reset, Poweroff = PowerOff, Shutdown = Shutdown,
});

/// A device that this release does not know: it is from the message of a later one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDevice {
    /// The field of the manifest that requests it.
    pub field: String,
    /// The device in the words of that release.
    pub what: String,
}

impl From<&DeviceRequest> for wire::ExtraDevice {
    fn from(request: &DeviceRequest) -> Self {
        let device = match request.device {
            ExtraDevice::DownwardMetrics => Device::DownwardMetrics(DownwardMetrics {}),
            ExtraDevice::Host(device) => Device::Host(device.into()),
            ExtraDevice::Hpet => Device::Hpet(Hpet {}),
            ExtraDevice::HyperV(enlightenment) => Device::Hyperv(enlightenment.into()),
            ExtraDevice::Panic(model) => Device::Panic(Panic::from(model).into()),
            ExtraDevice::Platform(feature) => Device::Platform(Platform::from(feature).into()),
            ExtraDevice::Smm => Device::Smm(Smm {}),
            ExtraDevice::Sound(model) => Device::Sound(Sound::from(model).into()),
            ExtraDevice::Tpm => Device::Tpm(Tpm {}),
            ExtraDevice::UsbRedirection => Device::UsbRedirection(UsbRedirection {}),
            ExtraDevice::UsbTablet => Device::UsbTablet(UsbTablet {}),
            ExtraDevice::Vsock => Device::Vsock(Vsock {}),
            ExtraDevice::Watchdog(action) => {
                Device::Watchdog(wire::extra_device::WatchdogAction::from(action).into())
            }
        };
        Self { field: request.field.clone(), what: request.device.to_string(), device: Some(device) }
    }
}

impl From<HostDevice> for wire::extra_device::HostDevice {
    fn from(device: HostDevice) -> Self {
        let address = match device {
            HostDevice::Pci(address) => Address::Pci(address.to_string()),
            HostDevice::Mediated(uuid) => Address::Mediated(uuid.to_string()),
            HostDevice::Usb(address) => Address::Usb(wire::extra_device::UsbAddress {
                bus: address.bus().into(),
                device: address.device().into(),
            }),
        };
        Self { address: Some(address) }
    }
}

impl From<HyperV> for wire::extra_device::HyperV {
    fn from(enlightenment: HyperV) -> Self {
        let enlightenment = match enlightenment {
            HyperV::Feature(feature) => Enlightenment::Feature(Feature::from(feature).into()),
            HyperV::Spinlocks(retries) => Enlightenment::Spinlocks(retries),
            HyperV::VendorId(vendor) => Enlightenment::VendorId(vendor.as_str().to_owned()),
        };
        Self { enlightenment: Some(enlightenment) }
    }
}

/// A request for an extra device from its message at the path `at`.
pub fn extra_device(
    problems: &mut Problems,
    at: &str,
    request: wire::ExtraDevice,
) -> Result<DeviceRequest, UnknownDevice> {
    let wire::ExtraDevice { field, what, device } = request;
    if field.is_empty() || what.is_empty() {
        problems.add(at, "the field or the description is empty");
    }
    match device.and_then(known) {
        Some(device) => Ok(DeviceRequest { field, device }),
        None => Err(UnknownDevice { field, what }),
    }
}

fn known(device: Device) -> Option<ExtraDevice> {
    match device {
        Device::DownwardMetrics(_) => Some(ExtraDevice::DownwardMetrics),
        Device::Host(device) => host_device(device.address?).map(ExtraDevice::Host),
        Device::Hpet(_) => Some(ExtraDevice::Hpet),
        Device::Hyperv(hyperv) => enlightenment(hyperv.enlightenment?).map(ExtraDevice::HyperV),
        Device::Panic(number) => value::<Panic, _>(number).map(ExtraDevice::Panic),
        Device::Platform(number) => value::<Platform, _>(number).map(ExtraDevice::Platform),
        Device::Smm(_) => Some(ExtraDevice::Smm),
        Device::Sound(number) => value::<Sound, _>(number).map(ExtraDevice::Sound),
        Device::Tpm(_) => Some(ExtraDevice::Tpm),
        Device::UsbRedirection(_) => Some(ExtraDevice::UsbRedirection),
        Device::UsbTablet(_) => Some(ExtraDevice::UsbTablet),
        Device::Vsock(_) => Some(ExtraDevice::Vsock),
        Device::Watchdog(number) => {
            value::<wire::extra_device::WatchdogAction, _>(number).map(ExtraDevice::Watchdog)
        }
    }
}

fn enlightenment(enlightenment: Enlightenment) -> Option<HyperV> {
    match enlightenment {
        Enlightenment::Feature(number) => value::<Feature, _>(number).map(HyperV::Feature),
        Enlightenment::Spinlocks(retries) => Some(HyperV::Spinlocks(retries)),
        Enlightenment::VendorId(vendor) => vendor.parse().ok().map(HyperV::VendorId),
    }
}

fn host_device(address: Address) -> Option<HostDevice> {
    match address {
        Address::Pci(address) => address.parse().ok().map(HostDevice::Pci),
        Address::Mediated(uuid) => uuid.parse().ok().map(HostDevice::Mediated),
        Address::Usb(usb) => UsbAddress::new(usb.bus, usb.device).map(HostDevice::Usb),
    }
}

fn value<M: TryFrom<i32> + Into<Option<T>>, T>(number: i32) -> Option<T> {
    M::try_from(number).ok().and_then(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_survives_the_message() {
        let panics = PanicModel::ALL.iter().map(|&model| ExtraDevice::Panic(model));
        let sounds = SoundModel::ALL.iter().map(|&model| ExtraDevice::Sound(model));
        let watchdogs = WatchdogAction::ALL.iter().map(|&action| ExtraDevice::Watchdog(action));
        let others = [
            ExtraDevice::DownwardMetrics,
            ExtraDevice::Hpet,
            ExtraDevice::Smm,
            ExtraDevice::Tpm,
            ExtraDevice::UsbRedirection,
            ExtraDevice::UsbTablet,
            ExtraDevice::Vsock,
        ];
        let hosts = [
            HostDevice::Pci("0000:01:00.0".parse().unwrap()),
            HostDevice::Mediated("0b2e4d3c-11aa-22bb-33cc-0123456789ab".parse().unwrap()),
            HostDevice::Usb("1:2".parse().unwrap()),
        ];
        let hosts = hosts.into_iter().map(ExtraDevice::Host);
        let hyperv = HyperVFeature::ALL.iter().map(|&feature| HyperV::Feature(feature));
        let hyperv = hyperv.chain([HyperV::Spinlocks(4096), HyperV::VendorId("x y".parse().unwrap())]);
        let hyperv = hyperv.map(ExtraDevice::HyperV);
        let platform = PlatformFeature::ALL.map(ExtraDevice::Platform);
        let others = others.into_iter().chain(hyperv).chain(platform);
        for device in panics.chain(sounds).chain(watchdogs).chain(others).chain(hosts) {
            let request = DeviceRequest { field: "spec.x".to_owned(), device };
            let mut problems = Problems::default();
            let got = extra_device(&mut problems, "extra_devices[0]", (&request).into());
            assert_eq!((got, problems.is_empty()), (Ok(request), true));
        }
    }

    #[test]
    fn a_device_of_a_later_release_is_named() {
        let unknown = UnknownDevice { field: "spec.x".to_owned(), what: "an x".to_owned() };
        let host = |address| Some(Device::Host(wire::extra_device::HostDevice { address }));
        let vendor = |text: &str| {
            let enlightenment = Some(Enlightenment::VendorId(text.to_owned()));
            Some(Device::Hyperv(wire::extra_device::HyperV { enlightenment }))
        };
        let injected = Some(Address::Pci("0000:01:00.0,x=y".to_owned()));
        for device in [
            None,
            vendor("x,y=z"),
            Some(Device::Platform(77)),
            Some(Device::Panic(0)),
            Some(Device::Sound(77)),
            host(None),
            host(injected),
        ] {
            let message =
                wire::ExtraDevice { field: unknown.field.clone(), what: unknown.what.clone(), device };
            let mut problems = Problems::default();
            let got = extra_device(&mut problems, "extra_devices[0]", message);
            assert_eq!((got, problems.is_empty()), (Err(unknown.clone()), true));
        }
    }
}
