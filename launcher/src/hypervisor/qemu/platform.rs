//! Properties of the board, of its clocks and of the hypervisor's interface to the guest.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};
use vireo_vmconfig::{ExtraDevice, HyperV, HyperVFeature, PlatformFeature};

use super::args::Args;
use crate::launch::Launch;

/// Whether a property is requested.
pub(super) fn has(launch: &Launch, feature: PlatformFeature) -> bool {
    launch.extra_devices.iter().any(|request| request.device == ExtraDevice::Platform(feature))
}

/// Adds properties of vCPUs to the model.
pub(super) fn cpu(model: &mut String, launch: &Launch) {
    for request in &launch.extra_devices {
        // Writing to a string cannot fail.
        let _ = match request.device {
            ExtraDevice::HyperV(HyperV::Feature(feature)) => write!(model, ",{}=on", enlightenment(feature)),
            ExtraDevice::HyperV(HyperV::Spinlocks(retries)) => write!(model, ",hv-spinlocks={retries}"),
            ExtraDevice::HyperV(HyperV::VendorId(vendor)) => {
                write!(model, ",hv-vendor-id={}", vendor.as_str())
            }
            ExtraDevice::Platform(PlatformFeature::KvmClockOff) => write!(model, ",kvmclock=off"),
            ExtraDevice::Platform(PlatformFeature::KvmHidden) => write!(model, ",kvm=off"),
            ExtraDevice::Platform(PlatformFeature::PvEoiOff) => write!(model, ",kvm-pv-eoi=off"),
            ExtraDevice::Platform(PlatformFeature::PvSpinlockOff) => write!(model, ",kvm-pv-unhalt=off"),
            _ => Ok(()),
        };
    }
}

/// QEMU's name of an enlightenment.
fn enlightenment(feature: HyperVFeature) -> &'static str {
    match feature {
        HyperVFeature::Crash => "hv-crash",
        HyperVFeature::Evmcs => "hv-evmcs",
        HyperVFeature::Frequencies => "hv-frequencies",
        HyperVFeature::Ipi => "hv-ipi",
        HyperVFeature::Passthrough => "hv-passthrough",
        HyperVFeature::Reenlightenment => "hv-reenlightenment",
        HyperVFeature::Relaxed => "hv-relaxed",
        HyperVFeature::Reset => "hv-reset",
        HyperVFeature::Runtime => "hv-runtime",
        HyperVFeature::Synic => "hv-synic",
        HyperVFeature::SynicTimer => "hv-stimer",
        HyperVFeature::SynicTimerDirect => "hv-stimer-direct",
        HyperVFeature::Time => "hv-time",
        HyperVFeature::TlbFlush => "hv-tlbflush",
        HyperVFeature::TlbFlushDirect => "hv-tlbflush-direct",
        HyperVFeature::TlbFlushExtended => "hv-tlbflush-ext",
        HyperVFeature::Vapic => "hv-vapic",
        HyperVFeature::VpIndex => "hv-vpindex",
    }
}

/// Properties of the board. `kvm`: KVM runs the guest, and has the interval timer.
pub(super) fn board(args: &mut Args, launch: &Launch, kvm: bool) {
    for (feature, option) in [
        (PlatformFeature::AcpiOff, "acpi=off"),
        (PlatformFeature::HpetOff, "hpet=off"),
        (PlatformFeature::PitOff, "pit=off"),
    ] {
        if has(launch, feature) {
            args.option("-machine", option);
        }
    }
    if kvm && has(launch, PlatformFeature::PitDiscardsTicks) {
        args.option("-global", "kvm-pit.lost_tick_policy=discard");
    }
}

/// The real-time clock.
pub(super) fn clock(launch: &Launch, now: Timestamp) -> String {
    let shifted = now.checked_add(SignedDuration::from_secs(launch.clock_offset));
    let mut clock = match shifted {
        Ok(shifted) if launch.clock_offset != 0 => {
            let text = Timestamp::from_second(shifted.as_second()).unwrap_or(shifted).to_string();
            format!("base={}", text.trim_end_matches('Z'))
        }
        _ => "base=utc".to_owned(),
    };
    if has(launch, PlatformFeature::RtcTracksGuest) {
        clock.push_str(",clock=vm");
    }
    if has(launch, PlatformFeature::RtcCatchesUp) {
        clock.push_str(",driftfix=slew");
    }
    clock
}

#[cfg(test)]
mod tests {
    use vireo_vmconfig::DeviceRequest;

    use super::*;
    use crate::launch::sample;

    fn launch(devices: impl IntoIterator<Item = ExtraDevice>) -> Launch {
        let request = |device| DeviceRequest { field: "spec.x".to_owned(), device };
        Launch { extra_devices: devices.into_iter().map(request).collect(), ..sample::kernel_boot() }
    }

    #[test]
    fn enlightenments_are_flags_of_the_cpu() {
        let named = [HyperV::Spinlocks(8191), HyperV::VendorId("a b".parse().unwrap())];
        let features = [HyperVFeature::Relaxed, HyperVFeature::SynicTimerDirect].map(HyperV::Feature);
        let mut model = "host".to_owned();
        cpu(&mut model, &launch(named.into_iter().chain(features).map(ExtraDevice::HyperV)));
        assert_eq!(model, "host,hv-spinlocks=8191,hv-vendor-id=a b,hv-relaxed=on,hv-stimer-direct=on");
    }

    #[test]
    fn every_property_is_in_the_arguments() {
        for feature in PlatformFeature::ALL {
            let launch = launch([ExtraDevice::Platform(feature)]);
            let (mut model, mut args) = ("host".to_owned(), Args::default());
            cpu(&mut model, &launch);
            board(&mut args, &launch, true);
            let found =
                format!("{model} {} {}", clock(&launch, Timestamp::UNIX_EPOCH), args.into_line().join(" "));
            let expected = match feature {
                PlatformFeature::AcpiOff => "host base=utc -machine acpi=off",
                PlatformFeature::HpetOff => "host base=utc -machine hpet=off",
                PlatformFeature::KvmClockOff => "host,kvmclock=off base=utc ",
                PlatformFeature::KvmHidden => "host,kvm=off base=utc ",
                PlatformFeature::PitOff => "host base=utc -machine pit=off",
                PlatformFeature::PitDiscardsTicks => "host base=utc -global kvm-pit.lost_tick_policy=discard",
                PlatformFeature::PvEoiOff => "host,kvm-pv-eoi=off base=utc ",
                PlatformFeature::PvSpinlockOff => "host,kvm-pv-unhalt=off base=utc ",
                PlatformFeature::RtcCatchesUp => "host base=utc,driftfix=slew ",
                PlatformFeature::RtcTracksGuest => "host base=utc,clock=vm ",
                // In the argument that is there anyway, and the default of virtio devices on the root bus.
                PlatformFeature::SmmOff | PlatformFeature::VirtioTransitional => "host base=utc ",
            };
            assert_eq!(found, expected, "{feature}");
        }
        let mut args = Args::default();
        board(&mut args, &launch([ExtraDevice::Platform(PlatformFeature::PitDiscardsTicks)]), false);
        assert_eq!(args.into_line(), [""; 0], "the timer of TCG has no policy");
    }

    #[test]
    fn the_clock_starts_at_its_offset() {
        let launch = Launch { clock_offset: -3600, ..launch([]) };
        assert_eq!(clock(&launch, "2026-01-01T00:30:00.7Z".parse().unwrap()), "base=2025-12-31T23:30:00");
    }
}
