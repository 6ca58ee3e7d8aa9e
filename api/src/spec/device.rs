//! Devices other than disks, NICs and displays.

use vireo_vmconfig::{
    ExtraDevice, HyperVFeature, PanicModel, PlatformFeature, SoundModel, UnknownName, WatchdogAction,
};

use super::Field;
use super::report::Findings;
use crate::v1;

pub(super) fn read(devices: &v1::Devices, found: &mut Findings) {
    let at = Field::new("spec.domain.devices");
    refused(devices, &at, found);
    if devices.tpm.as_ref().is_some_and(v1::TpmDevice::is_enabled) {
        found.extra_device(&at.at("tpm"), ExtraDevice::Tpm);
    }
    if let Some(watchdog) = &devices.watchdog {
        self::watchdog(watchdog, &at.at("watchdog"), found);
    }
    if let Some(sound) = &devices.sound {
        self::sound(sound, &at.at("sound"), found);
    }
    for (index, panic) in devices.panic_devices.iter().enumerate() {
        let at = at.at("panicDevices").index(index).at("model");
        match panic.model.as_deref() {
            None => found.extra_device(&at, ExtraDevice::Panic(PanicModel::Isa)),
            Some("hyperv") => super::hyperv::add(HyperVFeature::Crash, &at, found),
            Some(model) => match model.parse() {
                Ok(model) => found.extra_device(&at, ExtraDevice::Panic(model)),
                Err(UnknownName { .. }) => {
                    found.unsupported_value(&at, model, &["hyperv", "isa", "pvpanic"]);
                }
            },
        }
    }
}

fn refused(devices: &v1::Devices, at: &Field, found: &mut Findings) {
    if devices.use_virtio_transitional == Some(true) {
        let transitional = ExtraDevice::Platform(PlatformFeature::VirtioTransitional);
        found.extra_device(&at.at("useVirtioTransitional"), transitional);
    }
    if devices.client_passthrough.is_some() {
        found.extra_device(&at.at("clientPassthrough"), ExtraDevice::UsbRedirection);
    }
    if devices.downward_metrics.is_some() {
        found.extra_device(&at.at("downwardMetrics"), ExtraDevice::DownwardMetrics);
    }
    if devices.autoattach_vsock == Some(true) {
        found.extra_device(&at.at("autoattachVSOCK"), ExtraDevice::Vsock);
    }
}

fn watchdog(watchdog: &v1::Watchdog, at: &Field, found: &mut Findings) {
    if watchdog.name.is_empty() {
        found.required_value(&at.at("name"), "a watchdog needs a name");
    }
    found.refuse_if(watchdog.diag288.is_some(), &at.at("diag288"), "a watchdog of another architecture");
    let Some(i6300esb) = &watchdog.i6300esb else {
        if watchdog.diag288.is_none() && watchdog.extra.is_empty() {
            found.required_value(at, "write i6300esb: {action: reset}");
        }
        return;
    };
    let action = match i6300esb.action.as_str() {
        "" => WatchdogAction::default(),
        action => match action.parse() {
            Ok(action) => action,
            Err(UnknownName { .. }) => {
                let at = at.at("i6300esb").at("action");
                return found.invalid_value(&at, action, "must be poweroff, reset or shutdown");
            }
        },
    };
    found.extra_device(at, ExtraDevice::Watchdog(action));
}

fn sound(sound: &v1::SoundDevice, at: &Field, found: &mut Findings) {
    if sound.name.is_empty() {
        found.required_value(&at.at("name"), "a sound device needs a name");
    }
    let model = match sound.model.as_str() {
        "" => Ok(SoundModel::default()),
        model => model.parse(),
    };
    match model {
        Ok(model) => found.extra_device(at, ExtraDevice::Sound(model)),
        Err(UnknownName { supported }) => {
            found.unsupported_value(&at.at("model"), &sound.model, supported);
        }
    }
}
