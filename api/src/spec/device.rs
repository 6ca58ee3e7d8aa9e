//! Devices other than disks, cards and screens.

use super::Field;
use super::report::Findings;
use crate::v1;

pub(super) fn read(devices: &v1::Devices, found: &mut Findings) {
    let at = Field::new("spec.domain.devices");
    refused(devices, &at, found);
    let own = "the hypervisor decides about queues";
    found.notice_if(devices.block_multi_queue == Some(true), &at.at("blockMultiQueue"), own);
    found.notice_if(
        devices.network_interface_multiqueue == Some(true),
        &at.at("networkInterfaceMultiqueue"),
        own,
    );
    found.notice_if(
        devices.log_serial_console == Some(true),
        &at.at("logSerialConsole"),
        "the console keeps a history, which is not written to a log",
    );
    if let Some(watchdog) = &devices.watchdog {
        self::watchdog(watchdog, &at.at("watchdog"), found);
    }
    if let Some(sound) = &devices.sound {
        self::sound(sound, &at.at("sound"), found);
    }
    for (index, panic) in devices.panic_devices.iter().enumerate() {
        let at = at.at("panicDevices").index(index).at("model");
        match panic.model.as_deref() {
            None | Some("isa") => found.demand(&at, "a pvpanic device", &["-device", "pvpanic"]),
            Some("pvpanic") => found.demand(&at, "a PCI pvpanic device", &["-device", "pvpanic-pci"]),
            Some("hyperv") => found.refuse_if(true, &at, "a Hyper-V panic device"),
            Some(other) => found.unsupported_value(&at, other, &["hyperv", "isa", "pvpanic"]),
        }
    }
}

fn refused(devices: &v1::Devices, at: &Field, found: &mut Findings) {
    let asked = [
        (
            "useVirtioTransitional",
            devices.use_virtio_transitional == Some(true),
            "virtio of before version 1",
        ),
        ("autoattachVSOCK", devices.autoattach_vsock == Some(true), "a socket to the host"),
        ("downwardMetrics", devices.downward_metrics.is_some(), "metrics of the host"),
        ("clientPassthrough", devices.client_passthrough.is_some(), "USB redirection"),
    ];
    for (name, asked, what) in asked {
        found.refuse_if(asked, &at.at(name), what);
    }
    let tpm = devices.tpm.as_ref().is_some_and(|tpm| tpm.enabled != Some(false));
    found.refuse_if(tpm, &at.at("tpm"), "a trusted platform module");
    let lists = [
        ("gpus", devices.gpus.len(), "a graphics card handed through"),
        ("hostDevices", devices.host_devices.len(), "a device handed through"),
        ("filesystems", devices.filesystems.len(), "a shared directory"),
    ];
    for (name, count, what) in lists {
        for index in 0..count {
            found.refuse_if(true, &at.at(name).index(index), what);
        }
    }
}

fn watchdog(watchdog: &v1::Watchdog, at: &Field, found: &mut Findings) {
    if watchdog.name.is_empty() {
        found.required_value(&at.at("name"), "a watchdog needs a name");
    }
    found.refuse_if(watchdog.diag288.is_some(), &at.at("diag288"), "a watchdog of another architecture");
    let Some(i6300esb) = &watchdog.i6300esb else {
        if watchdog.diag288.is_none() && watchdog.extra.is_empty() {
            found.required_value(at, "say which watchdog: write i6300esb: {action: reset}");
        }
        return;
    };
    let action = match i6300esb.action.as_str() {
        "" | "reset" => "watchdog=reset",
        "poweroff" => "watchdog=poweroff",
        "shutdown" => "watchdog=shutdown",
        other => {
            found.invalid_value(
                &at.at("i6300esb").at("action"),
                other,
                "must be poweroff, reset or shutdown",
            );
            return;
        }
    };
    found.demand(at, "an i6300esb watchdog", &["-device", "i6300esb", "-action", action]);
}

fn sound(sound: &v1::SoundDevice, at: &Field, found: &mut Findings) {
    if sound.name.is_empty() {
        found.required_value(&at.at("name"), "a sound device needs a name");
    }
    match sound.model.as_str() {
        "" | "ich9" => found.demand(
            at,
            "an ICH9 sound card",
            &[
                "-audiodev",
                "none,id=sound",
                "-device",
                "ich9-intel-hda",
                "-device",
                "hda-duplex,audiodev=sound",
            ],
        ),
        "ac97" => found.demand(
            at,
            "an AC97 sound card",
            &["-audiodev", "none,id=sound", "-device", "AC97,audiodev=sound"],
        ),
        other => found.unsupported_value(&at.at("model"), other, &["ac97", "ich9"]),
    }
}
