use vireo_api::decode;

use super::*;
use crate::state::StateDir;
use crate::storage::Kernel;

const UID: uuid::Uuid = uuid::Uuid::from_u128(0x0123_4567_89ab_4def_8123_4567_89ab_cdef);

fn vm(annotations: &str, spec: &str) -> Vm {
    let text = format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: web, namespace: prod, uid: {UID}, annotations: {{{annotations}}}}}\nspec: {spec}\n"
    );
    decode::manifest(&text).unwrap().remove(0).check().unwrap_or_else(|report| panic!("{report}"))
}

fn raw(path: &str) -> DiskSource {
    DiskSource::Raw(path.into())
}

/// One NUMA node with the VM's CPUs.
fn numa() -> Vec<HostNode> {
    vec![HostNode { cpus: vec![4, 5], ..HostNode::default() }]
}

fn resolve(vm: &Vm, prepared: &Prepared, hypervisor: HypervisorChoice) -> wire::LaunchRequest {
    resolve_with(vm, prepared, hypervisor, &SMBiosConfiguration::default())
}

fn resolve_with(
    vm: &Vm,
    prepared: &Prepared,
    hypervisor: HypervisorChoice,
    smbios: &SMBiosConfiguration,
) -> wire::LaunchRequest {
    let dir = StateDir::at("/state").vmi_dir(UID);
    let text = "nameserver 192.0.2.53\nnameserver 2001:db8::53\nsearch example.org\n";
    let resolver = crate::network::dns::parse(text);
    let has_ipv6 = true;
    request(
        vm,
        &Facts {
            dir: &dir,
            cpus: &[4, 5],
            numa: &numa(),
            prepared,
            mtu: 1400,
            has_ipv6,
            bridged: &bridged(),
            resolver: &resolver,
            now: "2026-07-01T00:00:00Z".parse().unwrap(),
            hypervisor,
            smbios,
            keep_free_pages: true,
            in_pod: true,
        },
    )
}

#[test]
fn a_cluster_decides_what_guests_read_about_their_system() {
    let vm = vm("", "{domain: {memory: {guest: 256Mi}, devices: {}}}");
    let text = str::to_owned;
    let configured = SMBiosConfiguration {
        manufacturer: text("Example"),
        sku: text("1"),
        version: text("2"),
        ..SMBiosConfiguration::default()
    };
    let of = |configured: &SMBiosConfiguration| {
        let request = resolve_with(&vm, &Prepared::default(), HypervisorChoice::Auto, configured);
        let smbios = request.smbios.unwrap();
        [smbios.manufacturer, smbios.product, smbios.version, smbios.sku, smbios.family]
    };
    assert_eq!(of(&SMBiosConfiguration::default()), ["KubeVirt", "None", "", "", "KubeVirt"]);
    assert_eq!(of(&configured), ["Example", "None", "2", "1", "KubeVirt"]);
}

#[test]
fn what_is_tuned_is_in_the_request() {
    let vm = vm(
        "",
        "{domain: {memory: {guest: 256Mi}, clock: {timezone: Europe/Paris}, ioThreadsPolicy: shared,
          features: {hyperv: {relaxed: {}}}, devices: {interfaces: [{name: default, masquerade: {}, pciAddress: '0000:00:0a.0',
          acpiIndex: 3}]}}, networks: [{name: default, pod: {}}]}",
    );
    let request = resolve(&vm, &Prepared::default(), HypervisorChoice::Auto);
    assert_eq!(request.clock_offset_seconds, 7200);
    assert_eq!(request.io_threads, Some(vireo_vmconfig::IoThreads::Shared.into()));
    assert_eq!((request.interfaces[0].pci_slot, request.interfaces[0].acpi_index), (10, 3));
    assert_eq!(request.extra_devices[0].field, "spec.domain.features.hyperv.relaxed");
}

#[test]
fn only_a_vm_that_requests_them_has_cpus_of_its_own() {
    let of = |cpu: &str| {
        let memory = "{guest: 256Mi, hugepages: {pageSize: 2Mi}}";
        let vm = vm("", &format!("{{domain: {{memory: {memory}, cpu: {cpu}, devices: {{}}}}}}"));
        (vm.dedicated_cpus(), resolve(&vm, &Prepared::default(), HypervisorChoice::Auto).cpu_placement)
    };
    assert_eq!(of("{cores: 2}"), (0, None));
    let placement = |isolate_emulator_thread| {
        let placement = CpuPlacement { cpus: vec![4, 5], isolate_emulator_thread, ..CpuPlacement::default() };
        Some(wire::CpuPlacement::from(placement))
    };
    assert_eq!(of("{cores: 2, dedicatedCpuPlacement: true}"), (2, placement(false)));
    assert_eq!(
        of("{cores: 2, dedicatedCpuPlacement: true, isolateEmulatorThread: true}"),
        (3, placement(true))
    );
    let nodes = "numa: {guestMappingPassthrough: {}}";
    let placement = of(&format!("{{cores: 2, dedicatedCpuPlacement: true, {nodes}}}")).1.unwrap();
    let expected = CpuPlacement { cpus: vec![4, 5], numa: Some(numa()), ..CpuPlacement::default() };
    assert_eq!(placement, expected.into());
    let realtime = "realtime: {mask: '0-1,^0'}";
    let placement = of(&format!("{{cores: 2, dedicatedCpuPlacement: true, {nodes}, {realtime}}}")).1.unwrap();
    assert_eq!(placement.realtime, Some(wire::Realtime { vcpus: vec![1] }));
}

#[test]
fn only_a_vm_with_persistent_efi_variables_has_their_path() {
    let vm = vm(
        "",
        "{domain: {memory: {guest: 256Mi}, firmware: {bootloader: {efi: {secureBoot: false, persistent: true}}}, devices: {}}}",
    );
    for (variables, path) in [(Some("/kept/efi".into()), "/kept/efi"), (None, "")] {
        let prepared = Prepared { variables, ..Prepared::default() };
        let firmware = resolve(&vm, &prepared, HypervisorChoice::Auto).firmware.unwrap();
        let efi = wire::Efi { secure_boot: false, variables_path: path.to_owned() };
        assert_eq!(firmware.boot, Some(wire::firmware::Boot::Efi(efi)));
    }
}

#[test]
fn only_a_vm_with_a_persistent_tpm_has_the_path_of_its_state() {
    let vm = vm("", "{domain: {memory: {guest: 256Mi}, devices: {tpm: {persistent: true}}}}");
    assert!(vm.has_persistent_tpm());
    let path =
        |tpm| resolve(&vm, &Prepared { tpm, ..Prepared::default() }, HypervisorChoice::Auto).tpm_state_path;
    assert_eq!((path(Some("/kept/tpm".into())), path(None)), ("/kept/tpm".to_owned(), String::new()));
}

#[test]
fn a_small_vm_in_full() {
    let vm = vm(
        "",
        "{hostname: www, domain: {cpu: {sockets: 2, cores: 3}, memory: {guest: 256Mi}, devices: {autoattachGraphicsDevice: false, rng: {}, disks: [{name: root, disk: {bus: virtio}, bootOrder: 1, serial: S1}], interfaces: [{name: default, masquerade: {}, macAddress: '02:00:00:00:00:07', ports: [{port: 80}]}]}}, networks: [{name: default, pod: {vmNetworkCIDR: 10.9.8.0/24}}], volumes: [{name: root, hostDisk: {path: /disk.img, type: Disk}}]}",
    );
    let prepared = Prepared { disks: vec![raw("/disk.img")], ..Prepared::default() };
    let request = resolve(&vm, &prepared, HypervisorChoice::Auto);
    let dir = format!("/state/vmis/{UID}");
    assert_eq!(
        request.vmi,
        Some(wire::Identity { namespace: "prod".into(), name: "web".into(), uid: UID.to_string() })
    );
    assert_eq!(request.memory_bytes, 256 << 20);
    let cpu = request.cpu.unwrap();
    assert_eq!((cpu.sockets, cpu.cores, cpu.threads, cpu.model.as_str()), (2, 3, 1, "host-model"));
    assert_eq!(
        (request.console_socket, request.runtime_dir),
        (format!("{dir}/console.sock"), format!("{dir}/run"))
    );
    assert!(
        request.serial_console
            && request.rng
            && !request.graphics
            && request.tablets == 0
            && request.memory_balloon
            && request.keep_free_pages
    );
    assert_eq!(request.extra_devices, []);
    assert_eq!(
        request.disks,
        [wire::Disk {
            name: "root".into(),
            field: "spec.domain.devices.disks[0].disk.bus".into(),
            bus: wire::disk::Bus::Virtio.into(),
            serial: "S1".into(),
            boot_order: 1,
            source: Some((&raw("/disk.img")).into()),
            cache: wire::disk::Cache::Writeback.into(),
            error_policy: wire::disk::ErrorPolicy::Stop.into(),
            ..wire::Disk::default()
        }]
    );
    let [interface] = &request.interfaces[..] else { panic!("one interface") };
    assert_eq!(
        (interface.mac.as_str(), interface.tap.as_str(), interface.mtu),
        ("02:00:00:00:00:07", "tap0", 1400)
    );
    assert_eq!(
        interface.lease,
        Some(wire::Lease {
            address: "10.9.8.2".into(),
            prefix_length: 24,
            gateway: "10.9.8.1".into(),
            dns_servers: vec!["192.0.2.53".into()],
            search_domains: vec!["example.org".into()],
            hostname: "www".into(),
            ..wire::Lease::default()
        })
    );
    assert_eq!(
        interface.ipv6_lease,
        Some(wire::Ipv6Lease {
            address: "fd10:0:2::2".into(),
            prefix_length: 120,
            dns_servers: vec!["2001:db8::53".into()],
            search_domains: vec!["example.org".into()],
        })
    );
}

#[test]
fn there_is_a_balloon_unless_it_is_not_wanted() {
    let prepared = Prepared::default();
    for (devices, balloon) in
        [("{}", true), ("{autoattachMemBalloon: true}", true), ("{autoattachMemBalloon: false}", false)]
    {
        let vm = vm("", &format!("{{domain: {{memory: {{guest: 256Mi}}, devices: {devices}}}}}"));
        let request = resolve(&vm, &prepared, HypervisorChoice::Auto);
        assert_eq!(request.memory_balloon, balloon, "{devices}");
        assert_eq!(request.extra_devices, [], "QEMU needs nothing more than that");
    }
}

#[test]
fn who_forces_a_hypervisor() {
    use HypervisorChoice::{Auto, Native, Qemu};
    use wire::hypervisor_choice::Kind;
    let annotation = "metadata.annotations[vireo.io/hypervisor]";
    let rows = [
        (Auto, Auto, Kind::Auto, ""),
        (Auto, Qemu, Kind::Qemu, "the node's --hypervisor"),
        (Native, Auto, Kind::Native, annotation),
        (Native, Qemu, Kind::Native, annotation),
    ];
    for (manifest, node, kind, by) in rows {
        let choice = hypervisor(manifest, node);
        assert_eq!((choice.kind(), choice.forced_by.as_str()), (kind, by), "{manifest:?} {node:?}");
    }
}

#[test]
fn a_kernel_of_an_image_becomes_files_of_this_node() {
    let vm = vm(
        "",
        "{domain: {memory: {guest: 256Mi}, firmware: {kernelBoot: {kernelArgs: console=ttyS0, container: {image: 'oci:/images/k', kernelPath: /vmlinuz, initrdPath: /initrd}}}, devices: {autoattachPodInterface: false}}}",
    );
    let kernel = Kernel { kernel: "/store/k.raw".into(), initrd: Some("/store/i.raw".into()) };
    let request =
        resolve(&vm, &Prepared { kernel: Some(kernel), ..Prepared::default() }, HypervisorChoice::Auto);
    assert_eq!(request.fields.unwrap().kernel_boot, "spec.domain.firmware.kernelBoot");
    assert_eq!(
        request.firmware.unwrap().boot,
        Some(wire::firmware::Boot::Kernel(wire::KernelBoot {
            kernel_path: "/store/k.raw".into(),
            initrd_path: "/store/i.raw".into(),
            command_line: "console=ttyS0".into(),
        }))
    );
    assert_eq!(request.interfaces, []);
}

/// The VMIs that examples have, also in templates.
fn examples() -> Vec<(String, Vm)> {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut vms = Vec::new();
    for below in ["", "standalone", "cluster"] {
        for entry in std::fs::read_dir(directory.join(below)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            for object in decode::documents(&std::fs::read_to_string(&path).unwrap()).unwrap() {
                let spec = match object["kind"].as_str().unwrap_or_default() {
                    "VirtualMachineInstance" => &object["spec"],
                    _ => &object["spec"]["template"]["spec"],
                };
                let vmi = serde_json::json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                    "metadata": {"name": "web", "uid": UID}, "spec": spec});
                // What has no such template, or gets its CPUs and memory from an instance type.
                let vmi = serde_json::from_value::<vireo_api::v1::VirtualMachineInstance>(vmi);
                let vm = vmi.ok().and_then(|vmi| Vm::try_from(&vmi).ok());
                vms.extend(vm.map(|vm| (path.display().to_string(), vm)));
            }
        }
    }
    vms
}

/// virt-controller requests memory for who will run a guest, which the launcher decides later.
#[test]
fn launchers_choose_whom_requests_of_memory_expect() {
    use vireo_api::spec::Runner;
    use vireo_launcher::hypervisor::{KvmState, Probe, choose};
    use vireo_launcher::launch::{Kind, Launch};

    let probe = Probe { kvm: KvmState::Usable, qemu: Ok(()) };
    let (mut natives, mut others) = (0, 0);
    for (path, vm) in examples() {
        let prepared = Prepared {
            disks: vm.fixed_disks().map(|_| raw("/disk")).collect(),
            kernel: Some(Kernel { kernel: "/kernel".into(), initrd: None }),
            ..Prepared::default()
        };
        let launch = Launch::try_from(resolve(&vm, &prepared, HypervisorChoice::Auto));
        let launch = launch.unwrap_or_else(|error| panic!("{path}: {error}"));
        let choice = choose(&launch, &probe).unwrap_or_else(|fault| panic!("{path}: {}", fault.detail));
        let expected = Runner::of(&vm, HypervisorChoice::Auto, true) == Runner::Native;
        assert_eq!(choice.kind == Kind::Native, expected, "{path}: {}", choice.reason);
        *(if expected { &mut natives } else { &mut others }) += 1;
    }
    assert!(natives >= 60 && others >= 9, "{natives} and {others} VMIs");
}

/// What the NIC `lan` takes over, and `bare`, which has no address.
fn bridged() -> Bridged {
    let net = |text: &str| text.parse().unwrap();
    let route = |destination: &str, gateway: Option<&str>| Route {
        destination: net(destination),
        gateway: gateway.map(|gateway| gateway.parse().unwrap()),
    };
    let lan = PodInterface {
        name: "pod0e1dc1bf6ed".to_owned(),
        mac: [0x52, 0x54, 0, 0, 0, 9],
        mtu: 8942,
        address: Some(net("10.5.0.7/24")),
        routes: vec![
            route("0.0.0.0/0", Some("10.5.0.1")),
            route("10.96.0.0/12", Some("10.5.0.2")),
            route("192.0.2.0/24", None),
        ],
    };
    let bare = PodInterface { address: None, routes: Vec::new(), ..lan.clone() };
    Bridged::from([("lan".to_owned(), lan), ("bare".to_owned(), bare)])
}

#[test]
fn a_guest_on_a_bridge_gets_what_its_pod_had() {
    let vm = vm(
        "",
        "{domain: {memory: {guest: 256Mi}, devices: {interfaces: [{name: default, masquerade: {}}, {name: lan, bridge: {}}, {name: bare, bridge: {}, macAddress: '02:00:00:00:00:07'}, {name: absent, bridge: {}}]}}, networks: [{name: default, pod: {}}, {name: lan, multus: {networkName: lan}}, {name: bare, multus: {networkName: lan}}, {name: absent, multus: {networkName: lan}}]}",
    );
    let request = resolve(&vm, &Prepared::default(), HypervisorChoice::Auto);
    let [pods, lan, bare] = &request.interfaces[..] else { panic!("{:?}", request.interfaces) };
    assert_eq!((pods.tap.as_str(), pods.mtu, pods.dhcp_device.as_str()), ("tap0", 1400, "tap0"));
    assert_eq!((lan.mac.as_str(), lan.mtu), ("52:54:00:00:00:09", 8942));
    let digits = vireo_api::names::pod_interface("lan").replace("pod", "");
    assert_eq!((&lan.tap, &lan.dhcp_device), (&format!("tap{digits}"), &format!("k6t-{digits}")));
    let lease = lan.lease.clone().unwrap();
    assert_eq!(
        (lease.address.as_str(), lease.prefix_length, lease.gateway.as_str(), lease.server.as_str()),
        ("10.5.0.7", 24, "10.5.0.1", "169.254.75.11")
    );
    let route = |destination: &str, prefix_length, gateway: &str| wire::lease::Route {
        destination: destination.to_owned(),
        prefix_length,
        gateway: gateway.to_owned(),
    };
    assert_eq!(lease.routes, [route("10.96.0.0", 12, "10.5.0.2"), route("192.0.2.0", 24, "")]);
    assert_eq!((bare.mac.as_str(), &bare.lease), ("02:00:00:00:00:07", &None), "without IPAM, no DHCP");
}
