//! What a manifest means once it is read: defaults, joins and what is derived.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use vireo_api::spec::{
    Binding, BootSource, Bytes, CloudInitData, DeviceSource, Disk, DownwardContent, Forwards, GuestNetworks,
    HostDiskCreate, HypervisorChoice, Interface, LauncherOverhead, NetworkSource, ObjectKind, ObjectSource,
    ProbeQuestion, ProjectedSource, Protocol, Runner, VolumeSource,
};
use vireo_vmconfig::{
    CacheMode, CpuModel, DiskBus, DiskDevice, ExtraDevice, IoMode, NicModel, PanicModel, RebootPolicy,
    SoundModel, Video, WatchdogAction,
};

use super::manifest::{changed, with_devices, with_domain, with_spec};

#[test]
fn a_small_manifest_has_kubevirts_defaults() {
    let vm = changed(json!({"metadata": {"namespace": null}})).check_request().unwrap();
    assert_eq!(vm.identity().to_string(), "default/web-1");
    assert_eq!((vm.hostname(), vm.hypervisor()), ("web-1", HypervisorChoice::Auto));
    assert_eq!((vm.cpu().count(), vm.cpu().model()), (1, &CpuModel::HostModel));
    assert_eq!(vm.memory().guest(), Bytes::mebibytes(256));
    assert_eq!(vm.firmware().boot(), &BootSource::Bios { use_serial: false });
    assert_eq!(vm.lifecycle().grace_period(), Duration::from_secs(30));
    assert_eq!(vm.lifecycle().reboot(), RebootPolicy::Reboot);
    assert!(vm.serial_console() && vm.video().is_none() && vm.tablets() == 0 && !vm.rng());
    assert!(vm.has_balloon() && !vm.keeps_free_pages());
    assert_eq!((vm.extra_devices(), vm.notices()), ([].as_slice(), [].as_slice()));
}

#[test]
fn guests_with_pages_or_cpus_of_their_own_keep_free_pages() {
    for (value, expected) in [("true", true), ("false", false), ("", false)] {
        let annotations = json!({"kubevirt.io/free-page-reporting-disabled": value});
        let vm = changed(json!({"metadata": {"annotations": annotations}})).check_request().unwrap();
        assert_eq!(vm.keeps_free_pages(), expected, "{value}");
    }
    for domain in [
        json!({"cpu": {"dedicatedCpuPlacement": true}}),
        json!({"memory": {"hugepages": {"pageSize": "2Mi"}}}),
    ] {
        assert!(with_domain(domain.clone()).unwrap().keeps_free_pages(), "{domain}");
    }
}

#[test]
fn identity_and_hardware_are_stable() {
    let vm = changed(json!({})).check_request().unwrap();
    let again = changed(json!({})).check_request().unwrap();
    assert_eq!(vm, again);
    let other = changed(json!({"metadata": {"uid": "00000000-0000-4000-8000-000000000001"}}))
        .check_request()
        .unwrap();
    assert_ne!(vm.firmware().uuid(), other.firmware().uuid());
    assert_ne!(vm.interfaces()[0].mac(), other.interfaces()[0].mac());
    let long = changed(json!({"metadata": {"name": format!("{}.example", "x".repeat(63))}}))
        .check_request()
        .unwrap();
    assert_eq!(long.hostname(), "x".repeat(63));
}

#[test]
fn memory_is_the_guests_else_the_request_else_the_limit() {
    let cases = [
        (json!({"memory": {"guest": "1Gi"}, "resources": {"requests": {"memory": "2Gi"}}}), 1 << 30),
        (
            json!({"memory": null, "resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "3Gi"}}}),
            2 << 30,
        ),
        (json!({"memory": null, "resources": {"limits": {"memory": "3Gi"}}}), 3u64 << 30),
        (json!({"memory": {"guest": 134_217_728}}), 128 << 20),
        (json!({"memory": {"guest": "1G"}}), 999_997_440),
    ];
    for (change, bytes) in cases {
        assert_eq!(with_domain(change.clone()).unwrap().memory().guest(), Bytes::new(bytes), "{change}");
    }
}

#[test]
fn vcpus_are_counted_from_one_and_default_to_the_containers() {
    let cases = [
        (json!({"cpu": {"cores": 2, "sockets": 3, "threads": 2}}), [3, 2, 2]),
        (json!({"cpu": {"cores": 0, "sockets": 0, "threads": 0}}), [1, 1, 1]),
        (json!({"cpu": {"cores": 4}, "resources": {"limits": {"cpu": "8"}}}), [1, 4, 1]),
        (json!({"resources": {"limits": {"cpu": "2500m"}}}), [3, 1, 1]),
        (json!({"resources": {"requests": {"cpu": 2}}}), [2, 1, 1]),
    ];
    for (change, topology) in cases {
        let vm = with_domain(change.clone()).unwrap();
        assert_eq!([vm.cpu().sockets(), vm.cpu().cores(), vm.cpu().threads()], topology, "{change}");
    }
}

#[test]
fn native_io_bypasses_the_page_cache() {
    for (disk, cache, io) in [
        (json!({}), CacheMode::WriteBack, None),
        (json!({"io": "native"}), CacheMode::None, Some(IoMode::Native)),
        (json!({"io": "native", "cache": "none"}), CacheMode::None, Some(IoMode::Native)),
        (json!({"io": "threads"}), CacheMode::WriteBack, Some(IoMode::Threads)),
        (json!({"io": "threads", "cache": "writethrough"}), CacheMode::WriteThrough, Some(IoMode::Threads)),
    ] {
        let mut scratch = json!({"name": "scratch"});
        scratch.as_object_mut().unwrap().extend(disk.as_object().unwrap().clone());
        let vm = with_spec(json!({
            "domain": {"devices": {"disks": ["+", scratch]}},
            "volumes": ["+", {"name": "scratch", "emptyDisk": {"capacity": "1Gi"}}],
        }))
        .unwrap();
        let config = vm.disks().last().unwrap().config();
        assert_eq!((config.name.as_str(), config.cache, config.io), ("scratch", cache, io), "{disk}");
        assert_eq!(vm.notices(), []);
    }
}

#[test]
fn disks_are_joined_with_their_volumes() {
    let vm = with_spec(json!({
        "domain": {"devices": {"disks": ["+", {"name": "tools", "cdrom": {}, "bootOrder": 2, "serial": "T1"}]}},
        "volumes": [
            "+",
            {"name": "tools", "hostDisk": {"path": "/srv/tools.iso", "type": "Disk"}},
            {"name": "scratch", "emptyDisk": {"capacity": "2Gi"}},
            {"name": "drive", "cloudInitConfigDrive": {"userDataBase64": "eA==", "networkData": "{}"}},
        ],
    }))
    .unwrap();
    let disks = vm.disks();
    let names: Vec<_> = disks.iter().map(|disk| (disk.name(), disk.index(), disk.config().bus)).collect();
    assert_eq!(
        names,
        [
            ("root", 0, DiskBus::Virtio),
            ("seed", 1, DiskBus::Virtio),
            ("tools", 2, DiskBus::Sata),
            // No disk names this volume: it becomes one, as KubeVirt's defaulting has it.
            ("scratch", 3, DiskBus::Sata),
            ("drive", 4, DiskBus::Sata),
        ]
    );
    let VolumeSource::ContainerDisk { image, path, .. } = disks[0].source() else { panic!("{disks:?}") };
    assert_eq!((image.path(), image.tag(), path), (Some(Path::new("/images/linux")), Some("v1"), &None));
    let VolumeSource::CloudInitNoCloud(data) = disks[1].source() else { panic!("{disks:?}") };
    let inline = |data: &str| CloudInitData::Inline(data.into());
    assert_eq!((data.user_data(), data.network_data()), (Some(&inline("#cloud-config\n")), None));
    let tools = &disks[2];
    assert_eq!(
        (tools.config().device, tools.config().read_only, tools.config().boot_order),
        (DiskDevice::CdRom, true, Some(2))
    );
    assert_eq!(tools.config().field, "spec.domain.devices.disks[2].cdrom.bus");
    assert_eq!(tools.source_field().as_str(), "spec.volumes[2].hostDisk");
    let source = VolumeSource::HostDisk { path: "/srv/tools.iso".into(), create: HostDiskCreate::No };
    assert_eq!(tools.source(), &source);
    assert_eq!(disks[3].source(), &VolumeSource::EmptyDisk { capacity: Bytes::new(2 << 30) });
    let VolumeSource::CloudInitConfigDrive(data) = disks[4].source() else { panic!("{disks:?}") };
    assert_eq!((data.user_data(), data.network_data()), (Some(&inline("x")), Some(&inline("{}"))));
    assert_eq!(disks[4].source_field().as_str(), "spec.volumes[4].cloudInitConfigDrive");
}

#[test]
fn projected_files_are_read_only_disks() {
    let vm = with_spec(json!({
        "domain": {"devices": {"disks": [
            {"name": "map", "disk": {"bus": "virtio"}}, {"name": "key", "disk": {}},
            {"name": "seed", "disk": {"bus": "virtio"}}]}},
        "volumes": [
            {"name": "map", "configMap": {"name": "app.config", "optional": true, "volumeLabel": "APP"}},
            {"name": "key", "secret": {"secretName": "key"}},
            {"name": "seed", "cloudInitNoCloud": {"secretRef": {"name": "user"},
                "networkDataSecretRef": {"name": "net"}}},
            {"name": "answers", "sysprep": {"secret": {"name": "answers"}}},
            {"name": "account", "serviceAccount": {"serviceAccountName": "robot"}},
            {"name": "facts", "downwardAPI": {"fields": [
                {"path": "all/labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "role", "fieldRef": {"fieldPath": "metadata.annotations['example.com/role']"}}]}}],
    }))
    .unwrap();
    let disks = vm.disks();
    let shape = |disk: &Disk| {
        let config = disk.config();
        let VolumeSource::Projected(projected) = disk.source() else { return None };
        let field = disk.source_field().as_str().rsplit_once('.').map(|(_, last)| last.to_owned());
        Some((field.unwrap(), config.bus, config.device, config.read_only, projected.label().to_owned()))
    };
    let expected = [
        ("configMap", DiskBus::Virtio, DiskDevice::Disk, true, "APP"),
        // Nothing is read-only there.
        ("secret", DiskBus::Sata, DiskDevice::Disk, false, "cfgdata"),
        ("sysprep", DiskBus::Sata, DiskDevice::CdRom, true, "unattendCD"),
        ("serviceAccount", DiskBus::Sata, DiskDevice::Disk, false, "cfgdata"),
        ("downwardAPI", DiskBus::Sata, DiskDevice::Disk, false, "cfgdata"),
    ];
    let expected = expected.map(|(field, bus, device, read_only, label)| {
        (field.to_owned(), bus, device, read_only, label.to_owned())
    });
    assert_eq!(disks.iter().filter_map(shape).collect::<Vec<_>>(), expected);
    let source = |index: usize| {
        let VolumeSource::Projected(projected) = disks[index].source() else { panic!("{disks:?}") };
        projected.source().clone()
    };
    let map = ObjectSource { kind: ObjectKind::ConfigMap, name: "app.config".to_owned(), optional: true };
    assert_eq!(source(0), ProjectedSource::Object(map));
    assert_eq!(source(4), ProjectedSource::ServiceAccount { name: "robot".to_owned() });
    let ProjectedSource::DownwardApi { files } = source(5) else { panic!("{disks:?}") };
    let labels = DownwardContent::Field { path: "metadata.labels".to_owned(), key: None };
    let key = Some("example.com/role".to_owned());
    let role = DownwardContent::Field { path: "metadata.annotations".to_owned(), key };
    assert_eq!(files.iter().map(|file| &file.content).collect::<Vec<_>>(), [&labels, &role]);
    let VolumeSource::CloudInitNoCloud(data) = disks[2].source() else { panic!("{disks:?}") };
    let secret = |name: &str| CloudInitData::Secret(name.to_owned());
    assert_eq!((data.user_data(), data.network_data()), (Some(&secret("user")), Some(&secret("net"))));
}

#[test]
fn interfaces_are_joined_with_their_networks() {
    let vm = with_spec(json!({
        "networks": [{"name": "default", "pod": {"vmNetworkCIDR": "192.168.7.0/24"}}],
        "domain": {"devices": {"interfaces": [{
            "name": "default", "masquerade": {}, "model": "e1000e", "macAddress": "52-54-00-00-00-01",
            "ports": [{"port": 80}, {"port": 53, "protocol": "UDP", "name": "dns"}],
        }]}},
    }))
    .unwrap();
    let [nic] = vm.interfaces() else { panic!("{:?}", vm.interfaces()) };
    assert_eq!(
        (nic.model(), nic.mac().unwrap().to_string()),
        (NicModel::E1000e, "52:54:00:00:00:01".to_owned())
    );
    let Binding::Masquerade { networks, forwards } = nic.binding() else { panic!("{nic:?}") };
    let GuestNetworks { ipv4, ipv6 } = networks;
    assert_eq!((ipv4.guest().to_string(), ipv4.prefix()), ("192.168.7.2".to_owned(), 24));
    assert_eq!((ipv6.guest().to_string(), ipv6.prefix()), ("fd10:0:2::2".to_owned(), 120));
    assert_eq!(forwards.ports().iter().map(vireo_api::spec::Port::port).collect::<Vec<_>>(), [80, 53]);
}

#[test]
fn ranges_of_ports_are_forwarded_as_a_manifest_has_them() {
    let ranges = json!([{"protocol": "TCP", "start": 8000, "end": 8010}, {"protocol": "TCP", "start": 22, "end": 22},
        {"protocol": "UDP", "start": 1, "end": 65535}]);
    let nic = json!({"interfaces": [{"name": "default", "masquerade": {}, "portRanges": ranges}]});
    let vm = with_devices(nic).unwrap();
    let Binding::Masquerade { forwards: Forwards::Ranges(ranges), .. } = vm.interfaces()[0].binding() else {
        panic!("{:?}", vm.interfaces());
    };
    let read: Vec<_> = ranges.iter().map(|range| (range.protocol(), range.first(), range.last())).collect();
    assert_eq!(read, [(Protocol::Tcp, 8000, 8010), (Protocol::Tcp, 22, 22), (Protocol::Udp, 1, 65535)]);
}

#[test]
fn a_nic_on_a_bridge_takes_over_an_interface_of_its_pod() {
    let vm = with_spec(json!({
        "networks": [{"name": "default", "pod": {}}, {"name": "blue", "multus": {"networkName": "lan"}},
            {"name": "red", "multus": {"networkName": "shop/lan"}}],
        "domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}},
            {"name": "blue", "bridge": {}, "macAddress": "52:54:00:00:00:07", "tag": "lan"},
            {"name": "red", "bridge": {}, "tag": "shop", "ports": [{"port": 80}]}]}},
    }))
    .unwrap();
    let [pods, blue, red] = vm.interfaces() else { panic!("{:?}", vm.interfaces()) };
    assert_eq!((pods.network(), pods.pod_interface()), (&NetworkSource::Pod, "eth0".to_owned()));
    assert_eq!((blue.binding(), blue.pod_interface()), (&Binding::Bridge, "pod16477688c0e".to_owned()));
    assert_eq!(blue.mac().unwrap().to_string(), "52:54:00:00:00:07");
    assert_eq!((red.pod_interface(), red.mac()), ("podb1f51a511f1".to_owned(), None));
    let NetworkSource::Multus(lan) = red.network() else { panic!("{red:?}") };
    assert_eq!((lan.namespace(), lan.name(), lan.is_default()), (Some("shop"), "lan", false));
    assert_eq!([pods, blue, red].map(Interface::tag), ["", "lan", "shop"]);
    let fields: Vec<_> = vm.notices().iter().map(|notice| notice.field().as_str()).collect();
    let at = "spec.domain.devices.interfaces[2]";
    assert_eq!(fields, [format!("{at}.tag"), format!("{at}.ports")], "its MAC address is not known");

    let vm = with_spec(json!({
        "networks": [{"name": "default", "multus": {"networkName": "lan", "default": true}}],
        "domain": {"devices": {"interfaces": [{"name": "default", "bridge": {}}]}},
    }))
    .unwrap();
    assert_eq!(vm.interfaces()[0].pod_interface(), "eth0");
}

#[test]
fn a_nic_by_passt_has_one_queue_and_neither_options_of_dhcp_nor_probes_of_ports() {
    let vm = with_devices(json!({"networkInterfaceMultiqueue": true, "interfaces": [{"name": "default",
        "passtBinding": {}, "ports": [{"name": "web", "port": 80}], "dhcpOptions": {"tftpServerName": "t"}}]}))
    .unwrap();
    let [nic] = vm.interfaces() else { panic!("{:?}", vm.interfaces()) };
    let Binding::Passt { forwards: Forwards::Ports(ports) } = nic.binding() else { panic!("{nic:?}") };
    assert_eq!((ports.len(), vm.queue_pairs(nic)), (1, 1));
    assert!(nic.mac().is_some(), "it is derived from the VMI");
    let fields: Vec<_> = vm.notices().iter().map(|notice| notice.field().as_str()).collect();
    assert_eq!(fields, ["spec.domain.devices.interfaces[0].dhcpOptions"]);
    let probed = with_spec(json!({
        "networks": [{"name": "default", "pod": {}}], "readinessProbe": {"tcpSocket": {"port": 80}},
        "domain": {"devices": {"interfaces": [{"name": "default", "passtBinding": {}}]}},
    }));
    assert_eq!(probed.unwrap().notices()[0].field().as_str(), "spec.readinessProbe.tcpSocket");
    let on_a_lan = with_spec(json!({
        "networks": [{"name": "lan", "multus": {"networkName": "lan"}}],
        "domain": {"devices": {"interfaces": [{"name": "lan", "passtBinding": {}}]}},
    }));
    assert!(
        on_a_lan.unwrap_err().to_string().contains("interfaces[0].passtBinding"),
        "it is for Pods' own network"
    );
}

#[test]
fn the_author_is_told_that_a_feature_is_not_forced_on_a_host_without_it() {
    let features = |policy: &str| {
        let feature = json!({"name": "avx2", "policy": policy});
        with_spec(json!({"domain": {"cpu": {"features": [feature]}}})).unwrap()
    };
    let forced = features("force");
    let warnings: Vec<_> = forced.notices().iter().map(ToString::to_string).collect();
    let expected = "spec.domain.cpu.features[0].policy: has no effect: QEMU leaves out a feature that the node does not \
                    have, as it does with optional";
    assert_eq!(warnings, [expected]);
    assert!(forced.cpu().features()[0].is_enabled());
    assert_eq!(features("optional").notices(), []);
}

#[test]
fn sockets_for_all_ports_take_memory() {
    let overhead = |ports: Value, runner: Runner| {
        let nic = json!({"interfaces": [{"name": "default", "passtBinding": {}, "ports": ports}]});
        let vm = with_devices(nic).unwrap();
        assert_eq!(Runner::of(&vm, HypervisorChoice::Auto, true), Runner::Native);
        LauncherOverhead::of(&vm, runner).requested >> 20
    };
    for runner in [Runner::Native, Runner::Qemu] {
        assert!(overhead(json!([]), runner) > overhead(json!([{"port": 80}]), runner) + 300);
    }
}

#[test]
fn a_virtual_function_is_a_device_of_the_host() {
    let vm = with_spec(json!({
        "networks": [{"name": "default", "pod": {}}, {"name": "blue", "multus": {"networkName": "lan"}}],
        "domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}},
            {"name": "blue", "sriov": {}, "tag": "lan", "model": "virtio", "macAddress": "52:54:00:00:00:07"}]}},
    }))
    .unwrap();
    let [default] = vm.interfaces() else { panic!("{:?}", vm.interfaces()) };
    assert_eq!(default.name(), "default");
    let [device] = vm.host_devices() else { panic!("{:?}", vm.host_devices()) };
    assert_eq!(device.field().as_str(), "spec.domain.devices.interfaces[1]");
    let DeviceSource::Network(function) = device.source() else { panic!("{device:?}") };
    assert_eq!((function.name(), function.pod_interface()), ("blue", "pod16477688c0e".to_owned()));
    assert_eq!(function.mac().unwrap().to_string(), "52:54:00:00:00:07");
    let fields: Vec<_> = vm.notices().iter().map(|notice| notice.field().as_str()).collect();
    let at = "spec.domain.devices.interfaces[1]";
    assert_eq!((fields, function.tag()), (vec![format!("{at}.model").as_str()], "lan"));
}

#[test]
fn a_vmi_without_networks_has_a_default_network() {
    let bare = json!({"networks": null, "domain": {"devices": {"interfaces": null}}});
    let vm = with_spec(bare.clone()).unwrap();
    let [nic] = vm.interfaces() else { panic!("{:?}", vm.interfaces()) };
    assert_eq!((nic.name(), nic.model()), ("default", NicModel::Virtio));
    assert!(matches!(nic.binding(), Binding::Masquerade { forwards: Forwards::All, .. }));
    let mut none = bare;
    none["domain"]["devices"]["autoattachPodInterface"] = json!(false);
    assert_eq!(with_spec(none).unwrap().interfaces(), []);
}

#[test]
fn a_kernel_is_taken_from_its_image() {
    let vm = with_domain(json!({"firmware": {
        "uuid": "5d307ca9-b3ef-428c-8861-06e72d69f223", "serial": "S1",
        "kernelBoot": {"kernelArgs": "console=ttyS0", "container": {
            "image": "oci-archive:/images/kernel.tar", "kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initrd"}},
    }}))
    .unwrap();
    let BootSource::Kernel(kernel) = vm.firmware().boot() else { panic!("{:?}", vm.firmware()) };
    assert_eq!(kernel.image().to_string(), "oci-archive:/images/kernel.tar");
    assert_eq!((kernel.kernel_path(), kernel.initrd_path()), ("/boot/vmlinuz", Some("/boot/initrd")));
    assert_eq!(kernel.command_line(), "console=ttyS0");
    assert_eq!(vm.firmware().serial(), "S1");
}

#[test]
fn a_display_suits_the_firmware_and_has_a_tablet() {
    let efi = json!({"bootloader": {"efi": {"secureBoot": false}}});
    for (devices, firmware, video, tablets) in [
        (json!({}), json!({}), Some(Video::Vga), 1),
        (json!({}), efi.clone(), Some(Video::Bochs), 1),
        (json!({"video": {"type": "virtio"}}), efi, Some(Video::Virtio), 1),
        (
            json!({"video": {"type": "cirrus"}, "autoattachInputDevice": true}),
            json!({}),
            Some(Video::Cirrus),
            0,
        ),
        (json!({"inputs": [{"name": "a", "type": "tablet", "bus": "usb"}]}), json!({}), Some(Video::Vga), 0),
        (
            json!({"autoattachGraphicsDevice": false, "inputs": [{"name": "a", "type": "tablet", "bus": "virtio"}]}),
            json!({}),
            None,
            1,
        ),
    ] {
        let mut all = json!({"autoattachGraphicsDevice": true});
        all.as_object_mut().unwrap().extend(devices.as_object().unwrap().clone());
        let vm = with_domain(json!({"devices": all, "firmware": firmware})).unwrap();
        assert_eq!((vm.video(), vm.tablets()), (video, tablets), "{devices}");
    }
}

#[test]
fn a_device_that_only_some_hypervisors_have_is_an_extra_device_with_its_field() {
    let vm = with_devices(json!({
        "watchdog": {"name": "dog", "i6300esb": {"action": "poweroff"}},
        "inputs": [{"name": "pen", "type": "tablet", "bus": "virtio"}, {"name": "mouse", "type": "tablet"}],
        "sound": {"name": "noise"},
        "panicDevices": [{"model": "pvpanic"}],
    }))
    .unwrap();
    let requests = vm.extra_devices().iter().map(|request| (request.field.as_str(), request.device));
    assert_eq!(
        requests.collect::<Vec<_>>(),
        [
            ("spec.domain.devices.watchdog", ExtraDevice::Watchdog(WatchdogAction::PowerOff)),
            ("spec.domain.devices.sound", ExtraDevice::Sound(SoundModel::Ich9)),
            ("spec.domain.devices.panicDevices[0].model", ExtraDevice::Panic(PanicModel::Pci)),
            ("spec.domain.devices.inputs[1]", ExtraDevice::UsbTablet),
        ]
    );
    let chassis = with_domain(json!({"chassis": {"manufacturer": "A, B", "sku": "7"}})).unwrap();
    assert_eq!((chassis.chassis().manufacturer.as_str(), chassis.chassis().sku.as_str()), ("A, B", "7"));
    assert_eq!(chassis.extra_devices(), []);
}

#[test]
fn probes_have_kubernetes_defaults_and_find_ports_by_their_names() {
    let vm = with_spec(json!({
        "domain": {"devices": {"interfaces": [
            {"name": "default", "masquerade": {}, "ports": [{"name": "web", "port": 8080}]},
        ]}},
        "readinessProbe": {"httpGet": {"port": "web", "path": "ready?now", "scheme": "HTTPS"}, "periodSeconds": 0},
        "livenessProbe": {"guestAgentPing": {}, "initialDelaySeconds": 7, "failureThreshold": 5},
    }))
    .unwrap();
    let readiness = vm.readiness_probe().unwrap();
    assert_eq!(
        readiness.question(),
        &ProbeQuestion::HttpGet {
            path: "/ready?now".to_owned(),
            port: 8080,
            host: None,
            tls: true,
            headers: Vec::new()
        }
    );
    let numbers = |probe: &vireo_api::spec::Probe| {
        let times = [probe.initial_delay(), probe.timeout(), probe.period()].map(|time| time.as_secs());
        (times, probe.success_threshold(), probe.failure_threshold())
    };
    assert_eq!(numbers(readiness), ([0, 1, 10], 1, 3));
    let liveness = vm.liveness_probe().unwrap();
    assert_eq!(
        (liveness.question(), numbers(liveness)),
        (&ProbeQuestion::GuestAgentPing, ([7, 1, 10], 1, 5))
    );
    assert_eq!(vm.notices(), []);
}

#[test]
fn enlightenments_have_what_they_require() {
    let hyperv = json!({"synictimer": {"direct": {}}, "tlbflush": {"direct": {"enabled": false}, "extended": {}},
        "relaxed": {"enabled": false}, "evmcs": {}, "vendorid": {"vendorid": "x"}, "spinlocks": {}});
    let vm = with_domain(json!({"features": {"hyperv": hyperv}})).unwrap();
    let found: Vec<String> = vm
        .extra_devices()
        .iter()
        .map(|request| {
            let field = request.field.strip_prefix("spec.domain.features.hyperv.").unwrap_or(&request.field);
            let what = request.device.to_string();
            format!("{field}: {}", what.strip_prefix("the Hyper-V enlightenment ").unwrap_or(&what))
        })
        .collect();
    assert_eq!(
        found,
        [
            "spinlocks: spinlocks",
            "vendorid: vendorid",
            "evmcs: evmcs",
            "synictimer: synic",
            "synictimer: synictimer",
            "synictimer.direct: synictimer.direct",
            "synictimer: time",
            "tlbflush: tlbflush",
            "tlbflush.extended: tlbflush.extended",
            "evmcs: vapic",
            "synictimer: vpindex",
        ]
    );
    let features: Vec<_> = vm.cpu().features().iter().map(|one| (one.name(), one.is_enabled())).collect();
    assert_eq!(features, [("vmx", true)]);
    let clock = json!({"timer": {"hyperv": {}}});
    let domain = json!({"features": {"hyperv": {"synictimer": {}}}, "clock": clock});
    let vm = with_domain(domain).unwrap();
    let times = vm.extra_devices().iter().filter(|request| request.field == "spec.domain.clock.timer.hyperv");
    assert_eq!((times.count(), vm.extra_devices().len()), (1, 4));
}

#[test]
fn fields_without_effect_are_reported() {
    let vm = with_spec(json!({
        "domain": {
            "ioThreadsPolicy": "auto",
            "cpu": {"sockets": 1, "maxSockets": 4},
            "devices": {"blockMultiQueue": true},
        },
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
    }))
    .unwrap();
    let fields: Vec<_> = vm.notices().iter().map(|notice| notice.field().as_str()).collect();
    assert_eq!(fields, ["spec.domain.cpu.maxSockets"]);
}

#[test]
fn nics_have_queues_by_vcpus_and_a_link() {
    let queues = |vcpus: u32, multiqueue: bool| {
        let vm = with_spec(json!({
            "domain": {
                "cpu": {"cores": vcpus},
                "devices": {
                    "networkInterfaceMultiqueue": multiqueue,
                    "interfaces": [
                        {"name": "default", "masquerade": {}, "state": "down"},
                        {"name": "lan", "bridge": {}, "model": "e1000", "state": "up"},
                        {"name": "other", "bridge": {}},
                    ],
                },
            },
            "networks": [
                {"name": "default", "pod": {}},
                {"name": "lan", "multus": {"networkName": "lan"}},
                {"name": "other", "multus": {"networkName": "lan"}},
            ],
        }))
        .unwrap();
        let links: Vec<_> = vm.interfaces().iter().map(|nic| nic.is_link_up()).collect();
        assert_eq!(links, [false, true, true]);
        assert_eq!(vm.notices(), []);
        vm.interfaces().iter().map(|nic| vm.queue_pairs(nic)).collect::<Vec<_>>()
    };
    assert_eq!(queues(4, false), [1, 1, 1]);
    assert_eq!(queues(1, true), [1, 1, 1]);
    assert_eq!(queues(4, true), [4, 1, 4]);
    assert_eq!(queues(16, true), [8, 1, 8]);
}

#[test]
fn a_slip_in_a_name_is_answered_with_the_name_it_looks_like() {
    let report =
        with_devices(json!({"disks": [{"name": "root", "bootorder": 1}, {"name": "seed"}]})).unwrap_err();
    assert_eq!(
        report.to_string(),
        "spec.domain.devices.disks[0].bootorder: no field of this version of the API is called \"bootorder\" here: \
         did you mean bootOrder?"
    );
}
