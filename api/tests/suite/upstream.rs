//! What KubeVirt admits is admitted here, and means what it means there.

use std::net::IpAddr;

use serde_json::{Value, json};
use vireo_api::decode;
use vireo_api::spec::{Binding, ProbeHost, ProbeQuestion, VolumeSource, memory_hotplug_problems};
use vireo_api::v1::{VirtualMachine, VirtualMachineInstanceSpec};
use vireo_vmconfig::{DiskBus, DiskDevice};

use super::manifest::{with_devices, with_domain, with_spec};

#[test]
fn a_cdrom_without_a_volume_is_an_empty_drive() {
    let vm = with_devices(json!({"disks": ["+", {"name": "drive", "cdrom": {}}]})).unwrap();
    let drive = &vm.disks()[2];
    assert_eq!(
        (drive.name(), drive.config().bus, drive.config().device),
        ("drive", DiskBus::Sata, DiskDevice::CdRom)
    );
    assert_eq!((drive.source(), drive.config().read_only), (&VolumeSource::NoMedium, true));
    assert_eq!(drive.source_field().as_str(), "spec.domain.devices.disks[2].cdrom");
    for kind in ["disk", "lun"] {
        let report = with_devices(json!({"disks": ["+", {"name": "drive", (kind): {}}]})).unwrap_err();
        let field = report.problems().last().map(|problem| problem.field().to_string());
        assert_eq!(field.as_deref(), Some("spec.domain.devices.disks[2].name"), "{report}");
    }
}

#[test]
fn a_guest_may_have_more_memory_than_the_limit() {
    let vm = with_domain(json!({"resources": {"limits": {"memory": "128Mi"}}})).unwrap();
    let notices: Vec<&str> = vm.notices().iter().map(|notice| notice.field().as_str()).collect();
    assert_eq!(
        (vm.memory().guest().get(), notices),
        (256 << 20, vec!["spec.domain.resources.limits.memory"])
    );
}

#[test]
fn a_path_in_an_image_may_end_with_a_slash() {
    let volume = |path: &str| {
        let source = json!({"image": "oci:/images/linux", "path": path});
        json!({"volumes": ["+", {"name": "more", "containerDisk": source}]})
    };
    let vm = with_spec(volume("/disk/disk.img/")).unwrap();
    let VolumeSource::ContainerDisk { path, .. } = vm.disks()[2].source() else { panic!("{:?}", vm.disks()) };
    assert_eq!(path.as_deref(), Some("/disk/disk.img"));
    for path in ["/", "//", "/disk//", "/disk/../x/", "disk/"] {
        let report = with_spec(volume(path)).unwrap_err();
        let reported = report.problems()[0].message();
        let text = "must be an absolute path to a file without relative components";
        assert_eq!(reported, format!("Invalid value: {path:?}: {text}"));
    }
}

#[test]
fn a_port_that_is_listed_twice_is_one_port() {
    let ports = json!([{"port": 80}, {"port": 80, "protocol": "TCP"}, {"name": "web", "port": 80},
        {"port": 80, "protocol": "UDP"}]);
    let nic = json!({"interfaces": [{"name": "default", "masquerade": {}, "ports": ports}]});
    let vm = with_devices(nic).unwrap();
    let Binding::Masquerade { forwards, .. } = vm.interfaces()[0].binding() else {
        panic!("another binding")
    };
    let reported: Vec<_> = forwards.ports().iter().map(|port| (port.name(), port.port())).collect();
    assert_eq!(reported, [(None, 80), (Some("web"), 80), (None, 80)]);
}

#[test]
fn a_probe_may_name_its_host() {
    let host = |host: &str| {
        let vm = with_spec(json!({"readinessProbe": {"tcpSocket": {"port": 1, "host": host}}})).ok()?;
        match vm.readiness_probe()?.question() {
            ProbeQuestion::TcpSocket { host, .. } => host.clone(),
            other => panic!("{other:?}"),
        }
    };
    for name in ["db.example.org", "db", "DB.example.org.", "_sip.example.org", "7.example"] {
        assert_eq!(host(name), Some(ProbeHost::Name(name.to_owned())), "{name}");
    }
    for address in ["192.0.2.1", "fe80::1"] {
        let parsed: IpAddr = address.parse().unwrap();
        assert_eq!(host(address), Some(ProbeHost::Address(parsed)), "{address}");
    }
    for odd in ["db:80", "a..b", "a b", "http://db", "192.0.2.300", "1.2", "-a", "[::1]"] {
        assert_eq!(host(odd), None, "{odd}");
    }
    assert_eq!(host(&format!("{}.example", "x".repeat(64))), None);
}

#[test]
fn a_template_may_carry_what_a_server_once_wrote_into_metadata() {
    let metadata = json!({"name": "x", "selfLink": "/apis/x", "creationTimestamp": null, "uid": "u",
        "managedFields": [{"manager": "kubectl", "operation": "Apply"}]});
    let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "x"},
        "spec": {"template": {"metadata": metadata, "spec": {"domain": {}}}}});
    let decoded = decode::object::<VirtualMachine>(vm.clone());
    let mut unknown_fields = Vec::new();
    vireo_api::v1::Shape::unknown_fields(&decoded.object, "", &mut unknown_fields);
    assert_eq!((decoded.mistyped(), unknown_fields), ([].as_slice(), vec![]));
    let written = serde_json::to_value(&decoded.object).unwrap();
    assert_eq!(written["spec"]["template"]["metadata"]["selfLink"], "/apis/x");
}

#[test]
fn search_domains_are_counted_with_the_spaces_between_them() {
    let searches = |domains: &[String]| {
        let report = with_spec(json!({"dnsConfig": {"searches": domains}})).err()?;
        let reported =
            report.problems().iter().map(|problem| problem.field().to_string()).collect::<Vec<_>>();
        Some(reported)
    };
    let of = |lengths: &[usize]| lengths.iter().map(|length| "x".repeat(*length)).collect::<Vec<_>>();
    let list = "spec.dnsConfig.searches".to_owned();
    // A label of any length is admitted, though no DNS message has room for more than 63 bytes.
    assert_eq!(searches(&of(&[253])), None);
    assert_eq!(searches(&of(&[50; 5])), None);
    assert_eq!(searches(&of(&[51, 51, 51, 51, 48])), None, "252 characters and 4 spaces");
    assert_eq!(searches(&of(&[51, 51, 51, 51, 49])), Some(vec![list.clone()]));
    assert_eq!(searches(&of(&[1; 7])), Some(vec![list.clone()]));
    assert_eq!(searches(&["A.example".to_owned()]), Some(vec![format!("{list}[0]")]));
    assert_eq!(searches(&["example.org.".to_owned()]), Some(vec![format!("{list}[0]")]));
    let vm = with_spec(json!({"dnsConfig": {"searches": ["example.org", "x".repeat(64)]}})).unwrap();
    assert_eq!(vm.dns().searches(), ["example.org"], "what a resolver could search");
}

#[test]
fn memory_is_plugged_into_virtual_machines_in_whole_blocks() {
    let problems = |memory: Value| {
        let spec = json!({"domain": {"memory": memory}});
        let spec: VirtualMachineInstanceSpec = serde_json::from_value(spec).unwrap();
        let reported = memory_hotplug_problems(&spec);
        reported.iter().map(|problem| problem.to_string()).collect::<Vec<_>>()
    };
    let guest = "spec.domain.memory.guest: ";
    for (memory, expected) in [
        (json!({"guest": "123Mi"}), vec![]),
        (json!({"guest": "1Gi", "maxGuest": "4Gi"}), vec![]),
        (
            json!({"guest": "1025Mi", "maxGuest": "4Gi"}),
            vec![format!("{guest}Guest memory must be 2Mi aligned")],
        ),
        (
            json!({"guest": "1Gi", "maxGuest": "4097Mi"}),
            vec!["spec.domain.memory.maxGuest: MaxGuest must be 2Mi aligned".to_owned()],
        ),
        (
            json!({"guest": "1026Mi", "maxGuest": "4Gi", "hugepages": {"pageSize": "1Gi"}}),
            vec![format!("{guest}Guest memory must be 1Gi aligned")],
        ),
        (
            json!({"maxGuest": "4Gi"}),
            vec![format!("{guest}Guest memory must be configured when memory hotplug is enabled")],
        ),
        (
            json!({"guest": "512Mi", "maxGuest": "4Gi"}),
            vec![format!(
                "{guest}Memory hotplug is only available for VMs with at least 1Gi of guest memory"
            )],
        ),
        (json!({"guest": "much", "maxGuest": "more"}), vec![]),
    ] {
        assert_eq!(problems(memory.clone()), expected, "{memory}");
    }
    let spec: VirtualMachineInstanceSpec = serde_json::from_value(json!({"domain": {
        "cpu": {"numa": {"guestMappingPassthrough": {}}, "realtime": {}},
        "memory": {"guest": "1Gi", "maxGuest": "4Gi"}}}))
    .unwrap();
    let reported = memory_hotplug_problems(&spec).into_iter().map(|problem| problem.to_string());
    assert_eq!(
        reported.collect::<Vec<_>>(),
        ["realtime VMs", "guest mapping passthrough"]
            .map(|which| format!("{guest}Memory hotplug is not compatible with {which}"))
    );
}
