//! Devices and chipset features that only QEMU has.

use vireo_vmconfig::{ExtraDevice, PanicModel, SoundModel, WatchdogAction};

use super::args::Args;
use crate::launch::Launch;

/// All extra devices, in the order of the launch message.
pub(super) fn devices(args: &mut Args, launch: &Launch) {
    let mut tablets = 0;
    for request in &launch.extra_devices {
        match request.device {
            ExtraDevice::Hpet => args.option("-machine", "hpet=on"),
            ExtraDevice::Panic(PanicModel::Isa) => args.option("-device", "pvpanic"),
            ExtraDevice::Panic(PanicModel::Pci) => args.option("-device", "pvpanic-pci"),
            ExtraDevice::Smm => args.option("-machine", "smm=on"),
            ExtraDevice::Sound(model) => sound(args, model),
            ExtraDevice::UsbTablet => {
                args.option("-device", format!("qemu-xhci,id=input{tablets}"));
                args.option("-device", format!("usb-tablet,bus=input{tablets}.0"));
                tablets += 1;
            }
            ExtraDevice::Watchdog(action) => {
                args.option("-device", "i6300esb");
                let action = match action {
                    WatchdogAction::PowerOff => "poweroff",
                    WatchdogAction::Reset => "reset",
                    WatchdogAction::Shutdown => "shutdown",
                };
                args.option("-action", format!("watchdog={action}"));
            }
        }
    }
}

fn sound(args: &mut Args, model: SoundModel) {
    args.option("-audiodev", "none,id=sound");
    match model {
        SoundModel::Ac97 => args.option("-device", "AC97,audiodev=sound"),
        SoundModel::Ich9 => {
            args.option("-device", "ich9-intel-hda");
            args.option("-device", "hda-duplex,audiodev=sound");
        }
    }
}

#[cfg(test)]
mod tests {
    use vireo_vmconfig::DeviceRequest;

    use super::*;
    use crate::launch::sample;

    #[test]
    fn every_device_has_its_arguments() {
        for (devices, expected) in [
            (vec![ExtraDevice::Hpet], "-machine hpet=on"),
            (vec![ExtraDevice::Smm], "-machine smm=on"),
            (vec![ExtraDevice::Panic(PanicModel::Isa)], "-device pvpanic"),
            (vec![ExtraDevice::Panic(PanicModel::Pci)], "-device pvpanic-pci"),
            (
                vec![ExtraDevice::Sound(SoundModel::Ich9)],
                "-audiodev none,id=sound -device ich9-intel-hda -device hda-duplex,audiodev=sound",
            ),
            (
                vec![ExtraDevice::Sound(SoundModel::Ac97)],
                "-audiodev none,id=sound -device AC97,audiodev=sound",
            ),
            (
                vec![ExtraDevice::Watchdog(WatchdogAction::PowerOff)],
                "-device i6300esb -action watchdog=poweroff",
            ),
            (
                vec![ExtraDevice::UsbTablet; 2],
                "-device qemu-xhci,id=input0 -device usb-tablet,bus=input0.0 \
                 -device qemu-xhci,id=input1 -device usb-tablet,bus=input1.0",
            ),
        ] {
            let request = |device| DeviceRequest { field: "spec.x".to_owned(), device };
            let extra_devices = devices.into_iter().map(request).collect();
            let mut args = Args::default();
            super::devices(&mut args, &Launch { extra_devices, ..sample::kernel_boot() });
            assert_eq!(args.into_line().join(" "), expected);
        }
    }
}
