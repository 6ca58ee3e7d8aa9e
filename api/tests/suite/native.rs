//! What is refused where a VMI requests the hypervisor native, and only of a request.

use serde_json::{Value, json};
use vireo_api::decode;
use vireo_api::spec::{Cause, HypervisorChoice, Runner};
use vireo_api::v1::VirtualMachineInstance;

use super::manifest::changed;

/// The good manifest with a change to its spec that requests the hypervisor native.
fn native(spec: Value) -> decode::Decoded<VirtualMachineInstance> {
    let annotations = json!({"vireo.io/hypervisor": "native"});
    changed(json!({"metadata": {"annotations": annotations}, "spec": spec}))
}

fn fields(spec: Value) -> Vec<String> {
    let Err(report) = native(spec).check_request() else { return Vec::new() };
    report.problems().iter().map(|problem| problem.field().to_string()).collect()
}

#[test]
fn what_native_lacks_is_refused_by_its_field() {
    let domain = |domain: Value| json!({"domain": domain});
    let devices = |devices: Value| domain(json!({"devices": devices}));
    let drive = |drive: Value| {
        json!({"domain": {"devices": {"disks": ["+", drive]}},
            "volumes": ["+", {"name": "d", "emptyDisk": {"capacity": "1Mi"}}]})
    };
    assert_eq!(fields(json!({})), [""; 0]);
    for (spec, field) in [
        (domain(json!({"cpu": {"model": "Nehalem"}})), "cpu.model"),
        (domain(json!({"cpu": {"features": [{"name": "avx2"}]}})), "cpu.features"),
        (domain(json!({"memory": {"guest": "65Gi"}})), "memory.guest"),
        (domain(json!({"features": {"hyperv": {"relaxed": {}}}})), "features.hyperv.relaxed"),
        (devices(json!({"tpm": {}})), "devices.tpm"),
        (devices(json!({"sound": {"name": "s"}})), "devices.sound"),
        (devices(json!({"clientPassthrough": {}})), "devices.clientPassthrough"),
        (
            devices(json!({"autoattachGraphicsDevice": true, "video": {"type": "cirrus"}})),
            "devices.video.type",
        ),
        (devices(json!({"inputs": [{"name": "t", "type": "tablet", "bus": "usb"}]})), "devices.inputs[0]"),
        (devices(json!({"gpus": [{"name": "g", "deviceName": "a.example/b"}]})), "devices.gpus[0]"),
        (drive(json!({"name": "d", "disk": {"bus": "usb"}})), "devices.disks[2].disk.bus"),
        (drive(json!({"name": "d", "serial": "x".repeat(21)})), "devices.disks[2].disk.bus"),
    ] {
        assert_eq!(fields(spec.clone()), [format!("spec.domain.{field}")], "{spec}");
        let by_any = changed(json!({"spec": spec})).check_request();
        let runner = by_any.map(|vm| Runner::of(&vm, HypervisorChoice::Auto, true));
        assert_eq!(runner, Ok(Runner::Qemu), "without the annotation: {spec}");
        assert!(native(spec.clone()).check().is_ok(), "one that is stored is read: {spec}");
    }
}

#[test]
fn secure_boot_is_refused_with_the_mode_that_it_needs() {
    let efi = json!({"features": {"smm": {"enabled": true}},
        "firmware": {"bootloader": {"efi": {"secureBoot": true}}}});
    let expected = ["spec.domain.firmware.bootloader.efi.secureBoot", "spec.domain.features.smm"];
    assert_eq!(fields(json!({"domain": efi})), expected);
}

#[test]
fn all_that_native_lacks_is_named_and_what_to_do() {
    let report =
        native(json!({"hostname": "Web", "domain": {"devices": {"tpm": {}, "sound": {"name": "s"}}}}));
    let report = report.check_request().unwrap_err();
    let found: Vec<_> =
        report.problems().iter().map(|problem| (problem.field().as_str(), problem.cause())).collect();
    let expected = [
        ("spec.hostname", Cause::Invalid),
        ("spec.domain.devices.tpm", Cause::NotSupported),
        ("spec.domain.devices.sound", Cause::NotSupported),
    ];
    assert_eq!(found, expected);
    assert_eq!(
        report.problems()[1].message(),
        "the hypervisor native, which metadata.annotations[vireo.io/hypervisor] requests, does not support a TPM: \
         remove the annotation or change this field"
    );
}
