use std::path::PathBuf;

use super::super::blockdev::{ImageFd, ImageKind};
use crate::blocks::Blocks;
use serde_json::Value;

use super::*;
use crate::launch::{Disk, NicPeer, sample};
use vireo_vmconfig::{
    BlockSize, CacheMode, Cpu, CpuFeature, CpuPlacement, DeviceRequest, DiskBus, DiskDevice, DiskSource,
    DiskTuning, ErrorPolicy, ExtraDevice, GuestNuma, HostDevice, HostNode, HugePage, IoMode, IoThreads,
    NicModel, PciSlot, PlatformFeature, WatchdogAction,
};

fn file(fd: i32) -> ImageFd {
    let blocks = Blocks { logical: 4096, physical: 8192 };
    ImageFd { fd, kind: ImageKind { block_device: false, blocks } }
}

/// The command line of a VM; its disks' descriptors are 10, 11 (backing), 12, 13...
fn line(launch: &Launch, kvm: bool) -> Vec<String> {
    let files = (0..).step_by(2).zip(&launch.disks).map(|(at, disk)| {
        let backing =
            matches!(disk.source, DiskSource::Qcow2 { backing: Some(_), .. }).then(|| file(11 + at));
        (disk.source != DiskSource::NoMedium).then(|| DiskFds { image: file(10 + at), backing })
    });
    arguments(
        launch,
        &Resources {
            kvm,
            files: files.collect(),
            kernel: Some((20, Some(21))),
            serial: Some(8),
            agent: Some(7),
            tpm: None,
            vsock: None,
            ..bare()
        },
    )
}

/// Nothing that is decided outside the launch message.
fn bare() -> Resources<'static> {
    Resources {
        kvm: false,
        now: Timestamp::UNIX_EPOCH,
        kvm_device: None,
        firmware: None,
        variables: None,
        files: Vec::new(),
        nics: Vec::new(),
        vhost: Vec::new(),
        kernel: None,
        acpi_tables: Vec::new(),
        serial: None,
        firmware_log: None,
        qmp: 9,
        agent: None,
        metrics: None,
        tpm: None,
        numa: None,
        vsock: None,
    }
}

#[test]
fn metrics_have_a_port_with_or_without_that_of_the_agent() {
    let launch = sample::kernel_boot();
    for (agent, expected) in [
        (Some(7), &["org.qemu.guest_agent.0", "org.github.vhostmd.1"][..]),
        (None, &["org.github.vhostmd.1"]),
    ] {
        let line = arguments(
            &launch,
            &Resources {
                files: launch.disks.iter().map(|_| None).collect(),
                agent,
                metrics: Some(6),
                ..bare()
            },
        );
        let devices = devices(&line);
        let of = |driver: &str| devices.iter().filter(|one| one["driver"] == *driver).collect::<Vec<_>>();
        assert_eq!(of("virtio-serial-pci").len(), 1);
        let names: Vec<_> = of("virtserialport").iter().map(|port| port["name"].as_str().unwrap()).collect();
        assert_eq!(names, expected);
        assert!(values(&line, "-chardev").contains(&"socket,id=metrics,fd=6"));
    }
}

/// The values of an option, in order.
fn values<'a>(line: &'a [String], option: &str) -> Vec<&'a str> {
    line.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1].as_str()).collect()
}

fn devices(line: &[String]) -> Vec<Value> {
    values(line, "-device").iter().map(|text| serde_json::from_str(text).unwrap()).collect()
}

fn device(line: &[String], driver: &str) -> Value {
    let found = devices(line).into_iter().find(|device| device["driver"] == driver);
    found.unwrap_or_else(|| panic!("no {driver} in {line:?}"))
}

fn disk(bus: DiskBus) -> Disk {
    Disk { bus, source: DiskSource::Raw("/d".into()), ..sample::kernel_boot().disks.remove(0) }
}

#[test]
fn a_kernel_boot_reads_as_it_should() {
    let line = line(&sample::kernel_boot(), false);
    let table = [
        ("-name", "guest=default_web,debug-threads=on"),
        ("-machine", "q35,smm=off,vmport=off"),
        ("-accel", "tcg"),
        ("-cpu", "max,erms=off,fsrm=off"),
        ("-smp", "cpus=2,sockets=1,cores=2,threads=1"),
        ("-m", "268435456B"),
        ("-display", "none"),
        ("-kernel", "/proc/self/fd/20"),
        ("-initrd", "/proc/self/fd/21"),
        ("-append", "console=ttyS0 a=b,c"),
        ("-serial", "chardev:serial"),
        ("-mon", "chardev=qmp,mode=control"),
    ];
    for (option, value) in table {
        assert_eq!(values(&line, option), [value], "{option}");
    }
    assert_eq!(
        values(&line, "-chardev"),
        ["socket,id=qmp,fd=9", "socket,id=serial,fd=8", "socket,id=agent,fd=7"]
    );
    assert_eq!(values(&line, "-add-fd"), ["fd=10,set=10", "fd=11,set=11"]);
    let nic = device(&line, "virtio-net-pci");
    assert_eq!((&nic["mac"], &nic["host_mtu"]), (&json!("52:54:00:12:34:56"), &json!(1450)));
    assert_eq!(device(&line, "virtio-blk-pci")["bootindex"], Value::Null);
    device(&line, "virtio-rng-pci");
    assert_eq!(device(&line, "virtserialport")["name"], "org.qemu.guest_agent.0");
    for flag in ["-nodefaults", "-no-user-config"] {
        assert!(line.iter().any(|arg| arg == flag), "{flag}");
    }
    for absent in ["-S", "-no-reboot", "VGA", "-smbios", "virtio-balloon-pci"] {
        assert!(!line.iter().any(|arg| arg.contains(absent)), "{absent}");
    }
}

#[test]
fn free_pages_are_given_back_unless_they_are_to_be_kept() {
    let mut launch = Launch { memory_balloon: true, ..sample::kernel_boot() };
    let reports =
        |launch: &Launch| device(&line(launch, false), "virtio-balloon-pci")["free-page-reporting"].clone();
    assert_eq!(reports(&launch), true);
    launch.keep_free_pages = true;
    assert_eq!(reports(&launch), false);
}

#[test]
fn smm_is_off_where_a_manifest_says_so() {
    let smm_off = ExtraDevice::Platform(PlatformFeature::SmmOff);
    let mut launch = Launch { video: Some(Video::Vga), ..sample::kernel_boot() };
    assert_eq!(values(&line(&launch, false), "-machine"), ["q35,smm=on,vmport=off"]);
    launch.extra_devices = vec![DeviceRequest { field: "spec.x".to_owned(), device: smm_off }];
    assert_eq!(values(&line(&launch, false), "-machine"), ["q35,smm=off,vmport=off"]);
}

#[test]
fn disks_have_the_blocks_that_a_manifest_chooses() {
    let custom = BlockSize::Custom { logical: 512, physical: 4096, discard_granularity: Some(8192) };
    for (bus, block_size, expected) in [
        (DiskBus::Virtio, BlockSize::Default, [Value::Null, Value::Null, Value::Null]),
        (DiskBus::Virtio, BlockSize::Volume, [json!(4096), json!(8192), Value::Null]),
        (DiskBus::Sata, BlockSize::Volume, [json!(512), json!(8192), Value::Null]),
        (DiskBus::Scsi, custom, [json!(512), json!(4096), json!(8192)]),
    ] {
        let tuning = DiskTuning { block_size, ..DiskTuning::default() };
        let launch = Launch { disks: vec![Disk { tuning, ..disk(bus) }], ..sample::kernel_boot() };
        let line = line(&launch, false);
        let device = devices(&line).into_iter().find(|device| device["id"] == "device-disk0").unwrap();
        let found = ["logical_block_size", "physical_block_size", "discard_granularity"];
        assert_eq!(found.map(|name| device[name].clone()), expected, "{bus} {block_size:?}");
    }
}

#[test]
fn devices_with_a_slot_come_before_those_that_take_the_first_free_one() {
    let slot = |number: u32| PciSlot::try_from(number).ok();
    let mut launch = sample::kernel_boot();
    launch.disks = vec![disk(DiskBus::Virtio); 2];
    launch.disks[1].tuning.pci_slot = slot(0x1d);
    launch.interfaces[0].pci_slot = slot(1);
    launch.interfaces[0].acpi_index = Some(7);
    let line = line(&launch, false);
    let found: Vec<_> = devices(&line)
        .into_iter()
        .take(3)
        .map(|device| (device["id"].clone(), device["addr"].clone(), device["acpi-index"].clone()))
        .collect();
    assert_eq!(
        found,
        [
            (json!("device-disk1"), json!("1d"), Value::Null),
            (json!("device-net0"), json!("1"), json!(7)),
            (json!("device-disk0"), Value::Null, Value::Null),
        ]
    );
}

#[test]
fn threads_are_assigned_by_policy() {
    let threads = |io_threads, dedicated: &[bool]| {
        let disk = |&dedicated_io_thread: &bool| {
            let tuning = DiskTuning { dedicated_io_thread, multi_queue: true, ..DiskTuning::default() };
            Disk { tuning, ..disk(DiskBus::Virtio) }
        };
        let disks = dedicated.iter().map(disk).collect();
        let line = line(&Launch { disks, io_threads, rng: false, ..sample::kernel_boot() }, false);
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let objects: Vec<_> = values(&line, "-object")
            .iter()
            .filter_map(|object| text(&serde_json::from_str::<Value>(object).unwrap()["id"]))
            .collect();
        let blocks = devices(&line).into_iter().filter(|device| device["driver"] == "virtio-blk-pci");
        let assigned: Vec<_> = blocks
            .map(|device| {
                assert_eq!(device["num-queues"], 2);
                text(&device["iothread"]).unwrap_or_else(|| device["iothread-vq-mapping"].to_string())
            })
            .collect();
        (objects.join(" "), assigned.join(" "))
    };
    let none = "null null";
    for (policy, dedicated, objects, assigned) in [
        (None, [false, false], "", none),
        (Some(IoThreads::Shared), [false, false], "iothread0", "iothread0 iothread0"),
        (Some(IoThreads::Shared), [false, true], "iothread0 iothread-disk1", "iothread0 iothread-disk1"),
        (Some(IoThreads::Pool(9)), [false, false], "iothread0 iothread1", "iothread0 iothread1"),
        (
            Some(IoThreads::Supplemental(2)),
            [false, true],
            "iothread0 iothread1 iothread-disk1",
            "[{\"iothread\":\"iothread0\"},{\"iothread\":\"iothread1\"}] iothread-disk1",
        ),
    ] {
        let found = threads(policy, &dedicated);
        assert_eq!(found, (objects.to_owned(), assigned.to_owned()), "{policy:?} {dedicated:?}");
    }
}

#[test]
fn a_shareable_disk_has_other_writers() {
    let tuning = DiskTuning { shareable: true, ..DiskTuning::default() };
    let shared = Disk { tuning, cache: CacheMode::None, ..disk(DiskBus::Scsi) };
    let line = line(&Launch { disks: vec![shared, disk(DiskBus::Scsi)], ..sample::kernel_boot() }, false);
    let devices = values(&line, "-device");
    let shares = devices
        .iter()
        .filter(|device| device.contains("scsi-hd"))
        .map(|device| device.contains("share-rw\":true"));
    assert_eq!(shares.collect::<Vec<_>>(), [true, false], "{devices:#?}");
}

#[test]
fn a_lun_is_the_device_of_the_host_in_all_that_it_tells() {
    let tuning = DiskTuning { scsi_passthrough: true, ..DiskTuning::default() };
    let lun = Disk { tuning, serial: String::new(), read_only: true, ..disk(DiskBus::Scsi) };
    let line = line(&Launch { disks: vec![lun, disk(DiskBus::Scsi)], ..sample::kernel_boot() }, true);
    let found = device(&line, "scsi-block");
    assert_eq!((&found["bus"], &found["drive"]), (&json!("scsi.0"), &json!("disk0")));
    for own in ["serial", "write-cache", "logical_block_size"] {
        assert_eq!(found.get(own), None, "{found}");
    }
    assert_eq!(values(&line, "-device").iter().filter(|device| device.contains("scsi-hd")).count(), 1);
}

#[test]
fn a_block_device_is_opened_as_one() {
    for (block_device, driver) in [(false, "file"), (true, "host_device")] {
        let image = ImageFd { fd: 10, kind: ImageKind { block_device, ..ImageKind::default() } };
        let content = blockdev::content(&disk(DiskBus::Virtio), "disk0", &DiskFds { image, backing: None });
        assert_eq!(content["file"]["driver"], driver);
    }
}

#[test]
fn an_overlay_gets_the_backing_image_we_name_and_no_other() {
    let mut launch = sample::kernel_boot();
    launch.disks.push(Disk {
        source: DiskSource::Qcow2 { path: "/e".into(), backing: None },
        read_only: true,
        cache: CacheMode::None,
        ..disk(DiskBus::Virtio)
    });
    let line = line(&launch, false);
    let blocks: Vec<Value> =
        values(&line, "-blockdev").iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    assert_eq!(blocks[0]["driver"], "qcow2");
    assert_eq!(blocks[0]["file"]["filename"], "/dev/fdset/10");
    assert_eq!(blocks[0]["backing"]["file"]["filename"], "/dev/fdset/11");
    assert_eq!(blocks[0]["backing"]["read-only"], true);
    assert_eq!(blocks[0]["read-only"], false);
    // Null means none, whatever the header says; absent would mean what the header says.
    assert_eq!(blocks[1].get("backing"), Some(&Value::Null));
    assert_eq!(blocks[1]["read-only"], true);
    assert_eq!(blocks[1]["cache"]["direct"], true);
}

#[test]
fn the_io_mode_is_that_of_the_image_and_its_backing_image() {
    for (io, expected) in [
        (None, Value::Null),
        (Some(IoMode::Native), json!("native")),
        (Some(IoMode::Threads), json!("threads")),
    ] {
        let mut launch = sample::kernel_boot();
        launch.disks[0].cache = CacheMode::None;
        launch.disks[0].io = io;
        let line = line(&launch, false);
        let top: Value = serde_json::from_str(values(&line, "-blockdev")[0]).unwrap();
        assert_eq!((&top["file"]["aio"], &top["backing"]["file"]["aio"]), (&expected, &expected));
        assert_eq!(top["file"]["cache"]["direct"], true);
    }
}

#[test]
fn each_bus_has_its_device() {
    let cdrom = |bus| Disk { device: DiskDevice::CdRom, read_only: true, ..disk(bus) };
    let table = [
        (disk(DiskBus::Virtio), "virtio-blk-pci", Value::Null),
        (disk(DiskBus::Sata), "ide-hd", json!("ide.0")),
        (cdrom(DiskBus::Sata), "ide-cd", json!("ide.0")),
        (disk(DiskBus::Scsi), "scsi-hd", json!("scsi.0")),
        (cdrom(DiskBus::Scsi), "scsi-cd", json!("scsi.0")),
        (disk(DiskBus::Usb), "scsi-hd", json!("usb-disk0.0")),
        (cdrom(DiskBus::Usb), "scsi-cd", json!("usb-disk0.0")),
    ];
    for (disk, driver, bus) in table {
        let line = line(&Launch { disks: vec![disk], ..sample::kernel_boot() }, false);
        let device = device(&line, driver);
        assert_eq!(device["bus"], bus, "{driver}");
        assert_eq!(device["drive"], "disk0", "{driver}");
    }
}

#[test]
fn an_empty_drive_has_a_device_and_no_content() {
    for (bus, driver) in [(DiskBus::Sata, "ide-cd"), (DiskBus::Scsi, "scsi-cd"), (DiskBus::Usb, "scsi-cd")] {
        let drive =
            Disk { device: DiskDevice::CdRom, read_only: true, source: DiskSource::NoMedium, ..disk(bus) };
        let line = line(&Launch { disks: vec![drive], ..sample::kernel_boot() }, false);
        let device = device(&line, driver);
        assert_eq!((device.get("drive"), &device["id"]), (None, &json!("device-disk0")), "{driver}");
        assert_eq!((values(&line, "-blockdev"), values(&line, "-add-fd")), (vec![], vec![]), "{driver}");
    }
}

#[test]
fn many_disks_share_slots_and_firmware_tries_the_first() {
    let mut launch =
        Launch { disks: vec![disk(DiskBus::Virtio); 60], hotplug: true, ..sample::kernel_boot() };
    launch.boot = BootSource::Bios { use_serial: false };
    let line = line(&launch, false);
    let disks: Vec<Value> =
        devices(&line).into_iter().filter(|device| device["driver"] == "virtio-blk-pci").collect();
    let addresses: Vec<_> = disks.iter().map(|disk| disk["addr"].as_str().unwrap()).collect();
    assert_eq!((addresses[0], addresses[7], addresses[8], addresses[59]), ("16.0", "16.7", "17.0", "1d.3"));
    let unique: std::collections::BTreeSet<_> = addresses.iter().collect();
    assert_eq!(unique.len(), 60);
    assert!(disks.iter().all(|disk| disk["multifunction"] == true));
    let tried: Vec<_> = disks.iter().filter_map(|disk| disk["bootindex"].as_u64()).collect();
    assert_eq!(tried, (1..=16).collect::<Vec<_>>());
    assert_eq!(device(&line, "pcie-root-port")["addr"], "1e.0");
    assert_eq!(device(&line, "virtio-net-pci").get("addr"), None);
}

#[test]
fn a_seventh_sata_disk_gets_a_second_controller() {
    let launch = Launch { disks: vec![disk(DiskBus::Sata); 8], ..sample::kernel_boot() };
    let line = line(&launch, false);
    let buses: Vec<_> =
        devices(&line).iter().filter(|d| d["driver"] == "ide-hd").map(|d| d["bus"].clone()).collect();
    assert_eq!(buses, ["ide.0", "ide.1", "ide.2", "ide.3", "ide.4", "ide.5", "ahci1.0", "ahci1.1"]);
    assert_eq!(device(&line, "ich9-ahci")["id"], "ahci1");
}

#[test]
fn nics_have_queues() {
    let offloaded = |nics: Vec<Vec<i32>>, vhost: Vec<Vec<i32>>, pairs| {
        let mut launch = sample::kernel_boot();
        launch.interfaces[0].queue_pairs = pairs;
        let line = arguments(&launch, &Resources { nics, vhost, ..bare() });
        let netdev: Value = serde_json::from_str(values(&line, "-netdev")[0]).unwrap();
        (netdev, device(&line, "virtio-net-pci"))
    };
    let net = |nics, pairs| offloaded(nics, vec![Vec::new()], pairs);
    let (netdev, _) = offloaded(vec![vec![7, 9]], vec![vec![10, 11]], 2);
    assert_eq!((&netdev["vhost"], &netdev["vhostfds"]), (&json!(true), &json!("10:11")));
    let (netdev, _) = offloaded(vec![vec![7]], vec![vec![10]], 1);
    assert_eq!((&netdev["vhost"], &netdev["vhostfd"]), (&json!(true), &json!("10")));
    let (netdev, _) = offloaded(vec![Vec::new()], vec![vec![10]], 1);
    assert_eq!((&netdev["vhost"], &netdev["vhostfd"]), (&json!(true), &Value::Null));
    let (netdev, nic) = net(vec![vec![7, 9]], 2);
    assert_eq!(netdev["vhost"], Value::Null);
    assert_eq!((&netdev["fds"], &nic["mq"], &nic["vectors"]), (&json!("7:9"), &json!(true), &json!(6)));
    let (netdev, nic) = net(vec![vec![7]], 2);
    assert_eq!((&netdev["fd"], &nic["mq"]), (&json!("7"), &Value::Null));
    let (netdev, nic) = net(vec![Vec::new()], 4);
    assert_eq!((&netdev["queues"], &nic["vectors"]), (&json!(4), &json!(10)));
    let (netdev, nic) = net(vec![Vec::new()], 1);
    assert_eq!((&netdev["queues"], &nic["mq"]), (&Value::Null, &Value::Null));
}

#[test]
fn frames_go_to_passt_by_a_socket() {
    let mut launch = sample::kernel_boot();
    launch.interfaces[0].peer = NicPeer::Passt;
    let line = arguments(&launch, &Resources { nics: vec![vec![7]], vhost: vec![Vec::new()], ..bare() });
    let netdev: Value = serde_json::from_str(values(&line, "-netdev")[0]).unwrap();
    let expected =
        json!({"type": "stream", "id": "net0", "server": false, "addr": {"type": "fd", "str": "7"}});
    assert_eq!(netdev, expected);
}

#[test]
fn what_users_name_cannot_add_options() {
    let mut launch = sample::kernel_boot();
    launch.disks[0].serial = "a,readonly=on\"}".into();
    launch.smbios.product = "x,uuid=y".into();
    launch.smbios.chassis.asset = "a,b".into();
    launch.interfaces[0].peer =
        NicPeer::Tap { device: "t,script=/x".into(), dhcp_device: "t,script=/x".into() };
    launch.boot = BootSource::Kernel(KernelFiles {
        kernel: "/k,1".into(),
        initrd: Some(PathBuf::from("/i,2")),
        command_line: "c=,3".into(),
    });
    let line = line(&launch, false);
    assert_eq!(device(&line, "virtio-blk-pci")["serial"], "a,readonly=on\"}");
    assert_eq!(values(&line, "-smbios"), ["type=1,product=x,,uuid=y", "type=3,asset=a,,b"]);
    let net: Value = serde_json::from_str(values(&line, "-netdev")[0]).unwrap();
    assert_eq!((&net["ifname"], &net["script"]), (&json!("t,script=/x"), &json!("no")));
    assert_eq!(values(&line, "-append"), ["c=,3"]);
}

#[test]
fn choices_show() {
    type Change = fn(&mut Launch);
    let table: [(Change, bool, &[&str]); 13] = [
        (|_| {}, true, &["-accel", "kvm"]),
        (|_| {}, true, &["-cpu", "host"]),
        (
            |l| {
                let features = [("avx", true), ("hle", false)];
                let features = features.map(|(name, on)| CpuFeature::new(name, on).unwrap());
                let model = CpuModel::Named("Skylake-Client".into());
                l.cpu = Cpu::new(l.cpu.topology(), model, features.into());
            },
            true,
            &["-cpu", "Skylake-Client,avx=on,hle=off"],
        ),
        (
            |l| {
                let features = vec![CpuFeature::new("erms", true).unwrap()];
                l.cpu = Cpu::new(l.cpu.topology(), CpuModel::HostModel, features);
            },
            false,
            &["-cpu", "max,erms=off,fsrm=off,erms=on"],
        ),
        (|l| l.boot = BootSource::Bios { use_serial: true }, false, &["q35,smm=off,vmport=off,graphics=off"]),
        (|l| l.reboot = RebootPolicy::Terminate, false, &["-no-reboot"]),
        (|l| l.start_paused = true, false, &["-S"]),
        (|l| l.video = Some(Video::Vga), false, &["-device", r#"{"driver":"VGA"}"#]),
        (|l| l.video = Some(Video::Virtio), false, &["-device", r#"{"driver":"virtio-vga"}"#]),
        (|l| l.tablets = 1, false, &["-device", r#"{"driver":"virtio-tablet-pci"}"#]),
        (
            |l| {
                l.video = Some(Video::Bochs);
                l.vnc_socket = Some("/vmi/a,b.sock".into());
            },
            false,
            &["-vnc", "unix:/vmi/a,,b.sock,share=ignore"],
        ),
        (
            |l| l.smbios.uuid = Some(*b"\x0f\x0e\x0d\x0c\x0b\x0a\x49\x08\x87\x06\x05\x04\x03\x02\x01\x00"),
            false,
            &["-uuid", "0f0e0d0c-0b0a-4908-8706-050403020100"],
        ),
        (
            |l| {
                let device = ExtraDevice::Watchdog(WatchdogAction::Reset);
                l.extra_devices.push(DeviceRequest { field: String::new(), device });
            },
            false,
            &["-device", "i6300esb", "-action", "watchdog=reset"],
        ),
    ];
    for (change, kvm, expected) in table {
        let mut launch = sample::kernel_boot();
        change(&mut launch);
        let line = line(&launch, kvm);
        assert!(line.windows(expected.len()).any(|part| part == expected), "{expected:?} not in {line:?}");
    }
}

#[test]
fn write_through_and_boot_order_reach_the_device() {
    let mut launch = sample::kernel_boot();
    launch.boot = BootSource::Bios { use_serial: false };
    launch.disks.push(Disk { cache: CacheMode::WriteThrough, ..disk(DiskBus::Sata) });
    let first = line(&launch, false);
    assert_eq!(device(&first, "virtio-blk-pci")["bootindex"], 1);
    assert_eq!(device(&first, "virtio-blk-pci")["write-cache"], "on");
    assert_eq!(device(&first, "ide-hd")["bootindex"], 2);
    assert_eq!(device(&first, "ide-hd")["write-cache"], "off");
    // With any boot order, only devices with one are tried.
    launch.interfaces[0].boot_order = Some(1);
    let second = line(&launch, false);
    assert_eq!(device(&second, "virtio-blk-pci")["bootindex"], Value::Null);
    assert_eq!(device(&second, "virtio-net-pci")["bootindex"], 1);
    assert_eq!(device(&second, "virtio-net-pci")["romfile"], Value::Null);
}

#[test]
fn each_error_policy_is_one_for_reads_and_one_for_writes() {
    for (error_policy, reads, writes) in [
        (ErrorPolicy::Stop, "stop", "stop"),
        (ErrorPolicy::Report, "report", "report"),
        (ErrorPolicy::Ignore, "ignore", "ignore"),
        (ErrorPolicy::Enospace, "report", "enospc"),
    ] {
        let launch =
            Launch { disks: vec![Disk { error_policy, ..disk(DiskBus::Scsi) }], ..sample::kernel_boot() };
        let device = device(&line(&launch, false), "scsi-hd");
        assert_eq!(
            (&device["rerror"], &device["werror"]),
            (&json!(reads), &json!(writes)),
            "{error_policy:?}"
        );
    }
}

#[test]
fn every_nic_model_is_one_of_qemus() {
    let models = [
        (NicModel::Virtio, "virtio-net-pci"),
        (NicModel::E1000, "e1000"),
        (NicModel::E1000e, "e1000e"),
        (NicModel::Igb, "igb"),
        (NicModel::Ne2kPci, "ne2k_pci"),
        (NicModel::Pcnet, "pcnet"),
        (NicModel::Rtl8139, "rtl8139"),
    ];
    for (model, driver) in models {
        let mut launch = sample::kernel_boot();
        launch.interfaces[0].model = model;
        let line = line(&launch, false);
        let virtio = model == NicModel::Virtio;
        assert_eq!(device(&line, driver)["romfile"], "");
        assert_eq!(device(&line, driver).get("host_mtu").is_some(), virtio);
        assert_eq!(values(&line, "-netdev")[0].contains("vnet_hdr"), virtio);
    }
}

/// QEMU does not start without the ROM of a NIC that has an order.
#[test]
fn the_launchers_image_has_the_rom_of_every_nic_that_may_boot() {
    const SCRIPT: &str = include_str!("../../../../hack/release-images");
    let (_, roms) = SCRIPT.split_once("/usr/lib/ipxe/qemu/efi-{").unwrap();
    let (roms, _) = roms.split_once("}.rom").unwrap();
    let mut roms: Vec<_> = roms.split(',').collect();
    // QEMU has none for it.
    roms.push(NicModel::Igb.as_str());
    roms.sort_unstable();
    assert_eq!(roms, NicModel::NAMES);
}

/// Debian has the host's USB devices and those of clients in files of their own.
#[test]
fn the_launchers_image_has_the_files_of_usb_devices() {
    const SCRIPT: &str = include_str!("../../../../hack/release-images");
    let (_, files) = SCRIPT.split_once("/qemu/hw-usb-{").unwrap();
    let (files, _) = files.split_once("}.so").unwrap();
    let host = ExtraDevice::Host(HostDevice::Usb("3:4".parse().unwrap()));
    let extra_devices = [host, ExtraDevice::UsbRedirection]
        .map(|device| DeviceRequest { field: "spec.x".to_owned(), device });
    let launch = Launch {
        extra_devices: extra_devices.into(),
        usb_redirection_sockets: vec!["/vmi/a.sock".into()],
        ..sample::kernel_boot()
    };
    let devices = values(&line(&launch, false), "-device").join(" ");
    for (driver, file) in [("usb-host", "host"), ("usb-redir", "redirect")] {
        assert!(devices.contains(driver), "{devices}");
        assert!(files.split(',').any(|given| given == file), "{files}");
    }
}

#[test]
fn efi_brings_its_flash_and_secure_boot_its_lock() {
    for secure in [false, true] {
        let firmware = Firmware { code: "/c,ode".into(), variables: None, secure };
        let launch = Launch {
            boot: BootSource::Efi { secure_boot: secure, persistent: None },
            ..sample::kernel_boot()
        };
        let launch = Launch { disks: Vec::new(), ..launch };
        let (firmware, variables) = (Some(&firmware), Some(8));
        let resources = Resources { firmware, variables, firmware_log: Some(7), ..bare() };
        let line = arguments(&launch, &resources);
        let smm = if secure { "on" } else { "off" };
        let machine = format!("q35,smm={smm},vmport=off");
        assert_eq!(values(&line, "-machine"), [machine.as_str(), "pflash0=efi-code,pflash1=efi-variables"]);
        assert!(values(&line, "-blockdev")[0].contains("\"/c,ode\""));
        assert!(values(&line, "-blockdev")[1].contains("\"/dev/fdset/8\""));
        assert_eq!(values(&line, "-add-fd"), ["fd=8,set=8"]);
        assert_eq!(values(&line, "-global").len(), usize::from(secure));
        assert_eq!(values(&line, "-serial"), [""; 0]);
        assert_eq!(values(&line, "-chardev"), ["socket,id=qmp,fd=9", "socket,id=firmware,fd=7"]);
        assert!(values(&line, "-device").contains(&"isa-debugcon,iobase=0x402,chardev=firmware"));
    }
}

#[test]
fn text_on_a_vga_adapter_needs_the_ranges_of_smm() {
    let bios = BootSource::Bios { use_serial: false };
    let efi = BootSource::Efi { secure_boot: false, persistent: None };
    for (boot, video, smm) in [
        (bios.clone(), Some(Video::Vga), "on"),
        (bios.clone(), Some(Video::Bochs), "off"),
        (bios, None, "off"),
        (efi.clone(), Some(Video::Vga), "off"),
        (efi, None, "off"),
    ] {
        let launch = Launch { boot, video, ..sample::kernel_boot() };
        let machine = format!("q35,smm={smm},vmport=off");
        assert_eq!(values(&line(&launch, true), "-machine"), [machine], "{:?}, {video:?}", launch.boot);
    }
}

#[test]
fn bios_is_the_one_that_was_found() {
    let firmware = Firmware { code: "/bios".into(), variables: None, secure: false };
    let launch =
        Launch { boot: BootSource::Bios { use_serial: true }, disks: Vec::new(), ..sample::kernel_boot() };
    let resources = Resources { firmware: Some(&firmware), firmware_log: Some(7), ..bare() };
    let line = arguments(&launch, &resources);
    assert_eq!(values(&line, "-bios"), ["/bios"]);
    assert_eq!(values(&line, "-machine"), ["q35,smm=off,vmport=off,graphics=off"]);
}

#[test]
fn an_open_kvm_is_inherited() {
    let launch = sample::kernel_boot();
    let launch = Launch { disks: Vec::new(), ..launch };
    let resources = Resources { kvm: true, kvm_device: Some(30), kernel: Some((20, None)), ..bare() };
    let line = arguments(&launch, &resources);
    assert_eq!(values(&line, "-accel"), ["kvm,device=/dev/fdset/30"]);
    assert!(values(&line, "-add-fd").contains(&"fd=30,set=30"), "{line:?}");
    let emulated = arguments(&launch, &Resources { kvm: false, ..resources });
    assert_eq!(values(&emulated, "-accel"), ["tcg"]);
}

#[test]
fn memory_may_be_of_huge_pages() {
    let line_of = |huge_page| line(&Launch { huge_page, ..sample::kernel_boot() }, true);
    assert_eq!(values(&line_of(None), "-object").iter().filter(|text| text.contains("memory")).count(), 0);
    let line = line_of(Some(HugePage::Mib2));
    let objects: Vec<Value> =
        values(&line, "-object").iter().filter_map(|text| serde_json::from_str(text).ok()).collect();
    let expected = json!({"qom-type": "memory-backend-memfd", "id": "ram", "size": 268_435_456,
        "hugetlb": true, "hugetlbsize": 2_097_152, "share": true});
    assert!(objects.contains(&expected), "{objects:?}");
    assert!(values(&line, "-machine").contains(&"memory-backend=ram"), "{line:?}");
    assert!(values(&line, "-m").contains(&"268435456B"), "{line:?}");
}

#[test]
fn nodes_and_real_time_have_their_options() {
    let host = [0, 1].map(|id| HostNode { id, cpus: vec![id], ..HostNode::default() });
    let numa = GuestNuma::of(&host, &[0, 1], 256 << 20, HugePage::Mib2).unwrap();
    let placement = CpuPlacement { realtime: Some(vec![0]), ..CpuPlacement::default() };
    let launch = Launch {
        huge_page: Some(HugePage::Mib2),
        cpu_placement: Some(placement),
        disks: Vec::new(),
        ..sample::kernel_boot()
    };
    let line = arguments(&launch, &Resources { kvm: true, numa: Some(&numa), ..bare() });
    assert_eq!(values(&line, "-cpu"), ["host,pmu=off"]);
    assert_eq!(values(&line, "-overcommit"), ["mem-lock=on-fault"]);
    let machine = values(&line, "-machine");
    assert!(machine.contains(&"mem-merge=off") && !machine.contains(&"memory-backend=ram"), "{machine:?}");
    let numa = values(&line, "-numa");
    assert_eq!((numa.len(), numa[0]), (4, "node,nodeid=0,memdev=ram-node0,cpus=0"), "{numa:?}");
    assert_eq!(values(&line, "-m"), ["268435456B"], "the sum of the nodes");
}
