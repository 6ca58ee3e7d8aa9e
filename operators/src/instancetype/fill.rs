use serde_json::{Value, json};

use super::{at, says_something, set};

/// Fields of a preference and the fields of an instance's spec that they fill.
const FILLS: [(&str, &str); 22] = [
    ("/clock/preferredTimer", "domain.clock.timer"),
    ("/devices/preferredAutoattachGraphicsDevice", "domain.devices.autoattachGraphicsDevice"),
    ("/devices/preferredAutoattachMemBalloon", "domain.devices.autoattachMemBalloon"),
    ("/devices/preferredAutoattachPodInterface", "domain.devices.autoattachPodInterface"),
    ("/devices/preferredAutoattachSerialConsole", "domain.devices.autoattachSerialConsole"),
    ("/devices/preferredAutoattachInputDevice", "domain.devices.autoattachInputDevice"),
    ("/devices/preferredDisableHotplug", "domain.devices.disableHotplug"),
    ("/devices/preferredUseVirtioTransitional", "domain.devices.useVirtioTransitional"),
    ("/devices/preferredRng", "domain.devices.rng"),
    ("/devices/preferredBlockMultiQueue", "domain.devices.blockMultiQueue"),
    ("/devices/preferredNetworkInterfaceMultiQueue", "domain.devices.networkInterfaceMultiqueue"),
    ("/devices/preferredTPM", "domain.devices.tpm"),
    ("/features/preferredAcpi", "domain.features.acpi"),
    ("/features/preferredApic", "domain.features.apic"),
    ("/features/preferredHyperv", "domain.features.hyperv"),
    ("/features/preferredKvm", "domain.features.kvm"),
    ("/features/preferredPvspinlock", "domain.features.pvspinlock"),
    ("/features/preferredSmm", "domain.features.smm"),
    ("/preferredTerminationGracePeriodSeconds", "terminationGracePeriodSeconds"),
    ("/preferredSubdomain", "subdomain"),
    ("/preferredArchitecture", "architecture"),
    ("/preferredLaunchSecurity", "domain.launchSecurity"),
];

/// Fills what a template leaves open by a preference's spec.
pub fn prefer(template: &mut Value, preference: &Value) {
    for (name, value) in preference.get("annotations").and_then(Value::as_object).into_iter().flatten() {
        if template.pointer("/metadata/annotations").and_then(|map| map.get(name)).is_none() {
            template["metadata"]["annotations"][name] = value.clone();
        }
    }
    for (from, to) in FILLS {
        fill(template, to, preference.pointer(from));
    }
    let machine = preference.pointer("/machine/preferredMachineType");
    fill(template, "domain.machine.type", machine);
    clock(template, preference);
    firmware(template, preference);
    cpu_features(template, preference);
    if let Some(devices) = preference.get("devices") {
        disks(template, devices);
        interfaces(template, devices);
        others(template, devices);
    }
}

fn fill(template: &mut Value, path: &str, value: Option<&Value>) {
    if let Some(value) = value.filter(|value| has(Some(value)))
        && !has(at(template, "spec", path))
    {
        set(&mut template["spec"], path, value.clone());
    }
}

/// Whether a field is set: the number 0 counts.
fn has(value: Option<&Value>) -> bool {
    says_something(value) || value.is_some_and(Value::is_number)
}

fn clock(template: &mut Value, preference: &Value) {
    let offset = preference.pointer("/clock/preferredClockOffset").and_then(Value::as_object);
    let given =
        ["utc", "timezone"].iter().any(|one| has(at(template, "spec", &format!("domain.clock.{one}"))));
    for (name, value) in offset.into_iter().flatten().filter(|_| !given) {
        set(&mut template["spec"], &format!("domain.clock.{name}"), value.clone());
    }
}

fn firmware(template: &mut Value, preference: &Value) {
    let Some(preferred) = preference.get("firmware") else { return };
    let wants = |field: &str| preferred.get(field) == Some(&json!(true));
    let boots =
        |template: &Value, way: &str| has(at(template, "spec", &format!("domain.firmware.bootloader.{way}")));
    let (bios, efi) = (boots(template, "bios"), boots(template, "efi"));
    let deprecated = || json!({"secureBoot": wants("preferredUseSecureBoot")});
    let preferred_efi =
        preferred.get("preferredEfi").cloned().or_else(|| wants("preferredUseEfi").then(deprecated));
    match preferred_efi {
        Some(how) if !bios && !efi => set(&mut template["spec"], "domain.firmware.bootloader.efi", how),
        None if wants("preferredUseBios") && !efi => {
            if !bios {
                set(&mut template["spec"], "domain.firmware.bootloader.bios", json!({}));
            }
            if wants("preferredUseBiosSerial") {
                fill(template, "domain.firmware.bootloader.bios.useSerial", Some(&json!(true)));
            }
        }
        _ => {}
    }
}

fn cpu_features(template: &mut Value, preference: &Value) {
    let Some(preferred) = preference.pointer("/cpu/preferredCPUFeatures").and_then(Value::as_array) else {
        return;
    };
    let mut features =
        at(template, "spec", "domain.cpu.features").and_then(Value::as_array).cloned().unwrap_or_default();
    for one in preferred {
        if features.iter().all(|has| has.get("name") != one.get("name")) {
            features.push(one.clone());
        }
    }
    set(&mut template["spec"], "domain.cpu.features", Value::Array(features));
}

/// The members of a list of an instance's spec.
fn each<'a>(template: &'a mut Value, path: &str) -> impl Iterator<Item = &'a mut Value> {
    let list = template.pointer_mut(&format!("/spec/{path}")).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter(|one| one.is_object())
}

fn fill_member(member: &mut Value, field: &str, value: Option<&Value>) {
    if let Some(value) = value.filter(|value| has(Some(value)))
        && !has(member.get(field))
    {
        member[field] = value.clone();
    }
}

fn disks(template: &mut Value, devices: &Value) {
    for disk in each(template, "domain/devices/disks") {
        if ["disk", "cdrom", "lun"].iter().all(|target| disk.get(target).is_none()) {
            disk["disk"] = json!({});
        }
        for (target, bus) in
            [("disk", "preferredDiskBus"), ("cdrom", "preferredCdromBus"), ("lun", "preferredLunBus")]
        {
            if let Some(target) = disk.get_mut(target).filter(|target| target.is_object()) {
                fill_member(target, "bus", devices.get(bus));
            }
        }
        for (field, preferred) in [
            ("cache", "preferredDiskCache"),
            ("io", "preferredDiskIO"),
            ("blockSize", "preferredDiskBlockSize"),
        ] {
            fill_member(disk, field, devices.get(preferred));
        }
        // Only these have threads of their own.
        if disk.pointer("/disk/bus").is_some_and(|bus| bus == "virtio") {
            fill_member(disk, "dedicatedIOThread", devices.get("preferredDiskDedicatedIoThread"));
        }
    }
}

fn interfaces(template: &mut Value, devices: &Value) {
    let networks = template.pointer("/spec/networks").and_then(Value::as_array).cloned().unwrap_or_default();
    let on_pod = |name: Option<&Value>| {
        networks.iter().any(|network| network.get("name") == name && network.get("pod").is_some())
    };
    const BINDINGS: [&str; 5] = ["bridge", "masquerade", "sriov", "binding", "passtBinding"];
    for interface in each(template, "domain/devices/interfaces") {
        if interface.get("sriov").is_none() {
            fill_member(interface, "model", devices.get("preferredInterfaceModel"));
        }
        let bound = BINDINGS.iter().any(|binding| interface.get(binding).is_some());
        if !bound && on_pod(interface.get("name")) {
            fill_member(interface, "masquerade", devices.get("preferredInterfaceMasquerade"));
        }
    }
}

fn others(template: &mut Value, devices: &Value) {
    for input in each(template, "domain/devices/inputs") {
        fill_member(input, "bus", devices.get("preferredInputBus"));
        fill_member(input, "type", devices.get("preferredInputType"));
    }
    for gpu in each(template, "domain/devices/gpus") {
        fill_member(gpu, "virtualGPUOptions", devices.get("preferredVirtualGPUOptions"));
    }
    for device in each(template, "domain/devices/panicDevices") {
        fill_member(device, "model", devices.get("preferredPanicDeviceModel"));
    }
    let has_display = at(template, "spec", "domain.devices.autoattachGraphicsDevice") != Some(&json!(false));
    if has_display {
        fill(template, "domain.devices.video.type", devices.get("preferredVideoType"));
    }
    if at(template, "spec", "domain.devices.sound").is_some() {
        fill(template, "domain.devices.sound.model", devices.get("preferredSoundModel"));
    }
}
