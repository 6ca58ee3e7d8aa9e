use vireo_proto::convert::UnknownDevice;
use vireo_vmconfig::{
    BlockSize, Cpu, CpuFeature, CpuModel, CpuPlacement, CpuTopology, DeviceRequest, DiskBus, DiskDevice,
    ExtraDevice, HostNode, HyperV, HyperVFeature, IoThreads, NicModel, PanicModel, PciSlot, PlatformFeature,
    Video, WatchdogAction,
};
use vireo_vmm::config::VmConfig;

use super::*;
use crate::launch::{Disk, NicPeer, sample};

const NO_KVM: &str = "this host has no /dev/kvm";
const SOFTWARE: &str = "this KVM runs guests in software";
const NO_QEMU: &str = "qemu-system-x86_64 is not installed";

fn probe(kvm: KvmState, qemu: bool) -> Probe {
    Probe { kvm, qemu: if qemu { Ok(()) } else { Err(NO_QEMU.to_owned()) } }
}

fn forced(kind: Kind) -> HypervisorChoice {
    HypervisorChoice::Forced { kind, by: "--hypervisor".to_owned() }
}

const TPM: &str = "spec.domain.devices.tpm";

/// What a monitor-sized VM becomes where.
fn cpu(model: CpuModel, features: Vec<CpuFeature>) -> Cpu {
    Cpu::new(CpuTopology::new(1, 2, 1).unwrap(), model, features)
}

#[test]
fn file_systems_are_shared_by_the_monitor_as_far_as_there_are_slots() {
    let filesystem = |number: usize| crate::launch::Filesystem {
        name: format!("fs{number}"),
        field: format!("filesystems[{number}]"),
        directory: "/shared".into(),
        read_only: true,
    };
    for (count, kind) in [(1, Kind::Native), (16, Kind::Native), (VmConfig::DEVICE_SLOTS, Kind::Qemu)] {
        let launch = Launch { filesystems: (0..count).map(filesystem).collect(), ..sample::kernel_boot() };
        let choice = choose(&launch, &probe(KvmState::Usable, true)).unwrap();
        assert_eq!(choice.kind, kind, "{count}: {}", choice.reason);
    }
}

#[test]
fn the_host_decides_for_a_vm_both_can_run() {
    let software = || KvmState::SoftwareOnly(SOFTWARE.to_owned());
    let unusable = || KvmState::Unusable(NO_KVM.to_owned());
    let native = forced(Kind::Native);
    let qemu = forced(Kind::Qemu);
    let table = [
        (HypervisorChoice::Auto, KvmState::Usable, false, Ok((Kind::Native, "KVM is usable"))),
        (HypervisorChoice::Auto, software(), true, Ok((Kind::Qemu, SOFTWARE))),
        (HypervisorChoice::Auto, unusable(), true, Ok((Kind::Qemu, NO_KVM))),
        (HypervisorChoice::Auto, unusable(), false, Err((Code::NoQemu, NO_QEMU))),
        (native.clone(), KvmState::Usable, false, Ok((Kind::Native, "--hypervisor"))),
        (native.clone(), software(), false, Ok((Kind::Native, "--hypervisor"))),
        (native, unusable(), true, Err((Code::NoKvm, NO_KVM))),
        (qemu.clone(), KvmState::Usable, true, Ok((Kind::Qemu, "--hypervisor"))),
        (qemu, KvmState::Usable, false, Err((Code::NoQemu, NO_QEMU))),
    ];
    for (wanted, kvm, qemu, expect) in table {
        let launch = Launch { hypervisor: wanted.clone(), ..sample::kernel_boot() };
        let case = format!("{wanted:?} {kvm:?} qemu={qemu}");
        match (choose(&launch, &probe(kvm, qemu)), expect) {
            (Ok(choice), Ok((kind, reason))) => {
                assert_eq!(choice.kind, kind, "{case}");
                assert!(choice.reason.contains(reason), "{case}: {}", choice.reason);
            }
            (Err(fault), Err((code, detail))) => {
                assert_eq!(fault.code(), code, "{case}");
                assert!(fault.detail.contains(detail), "{case}: {}", fault.detail);
            }
            (got, _) => panic!("{case}: {got:?}"),
        }
    }
}

/// A VM with such a property.
fn with_platform(device: ExtraDevice) -> Launch {
    let request = DeviceRequest { field: "spec.x".to_owned(), device };
    Launch { extra_devices: vec![request], ..sample::kernel_boot() }
}

#[test]
fn enlightenments_need_kvm_and_native_lacks_what_is_to_be_absent() {
    let relaxed = with_platform(ExtraDevice::HyperV(HyperV::Feature(HyperVFeature::Relaxed)));
    let choice = choose(&relaxed, &probe(KvmState::Usable, true)).unwrap();
    assert_eq!(choice.kind, Kind::Qemu);
    assert_eq!(
        choice.reason,
        "spec.x requests the Hyper-V enlightenment relaxed: native does not support that"
    );
    for hypervisor in [HypervisorChoice::Auto, forced(Kind::Qemu)] {
        let launch = Launch { hypervisor, ..relaxed.clone() };
        let fault = choose(&launch, &probe(KvmState::Unusable(NO_KVM.to_owned()), true)).unwrap_err();
        assert_eq!((fault.code(), fault.field.as_str()), (Code::Unsupported, "spec.x"));
        let expected =
            format!("spec.x requests the Hyper-V enlightenment relaxed, which needs KVM: {NO_KVM}");
        assert_eq!(fault.detail, expected);
    }
    for feature in PlatformFeature::ALL {
        let launch = with_platform(ExtraDevice::Platform(feature));
        let kind = choose(&launch, &probe(KvmState::Usable, true)).unwrap().kind;
        let expected = match feature {
            PlatformFeature::HpetOff | PlatformFeature::SmmOff => Kind::Native,
            _ => Kind::Qemu,
        };
        assert_eq!(kind, expected, "{feature}");
        let kvm = KvmState::SoftwareOnly(SOFTWARE.to_owned());
        assert_eq!(choose(&launch, &probe(kvm, true)).unwrap().kind, Kind::Qemu, "{feature}");
    }
}

/// The placement of a guest with the nodes of a host that has so many.
fn with_nodes(count: usize) -> CpuPlacement {
    CpuPlacement { numa: Some(vec![HostNode::default(); count]), ..CpuPlacement::default() }
}

#[test]
fn what_is_tuned_is_named_by_its_field() {
    type Change = fn(&mut Launch);
    let table: [(Change, Option<&str>); 12] = [
        (|l| l.cpu_placement = Some(CpuPlacement { realtime: Some(vec![0]), ..with_nodes(32) }), None),
        (|l| l.cpu_placement = Some(with_nodes(33)), Some("numa")),
        (|l| l.disks[0].tuning.dedicated_io_thread = true, None),
        (|l| l.io_threads = Some(IoThreads::Pool(4)), None),
        (|l| l.io_threads = Some(IoThreads::Supplemental(4)), Some("ioThreadsPolicy")),
        (|l| l.disks[0].tuning.block_size = BlockSize::Volume, None),
        (
            |l| {
                l.disks[0].tuning.block_size = BlockSize::Volume;
                l.disks[0].bus = DiskBus::Scsi;
            },
            Some("spec.domain.devices.disks[0].blockSize"),
        ),
        (|l| l.disks[0].tuning.multi_queue = true, None),
        (
            |l| l.disks[0].tuning.pci_slot = PciSlot::try_from(9).ok(),
            Some("spec.domain.devices.disks[0].disk.pciAddress"),
        ),
        (
            |l| l.interfaces[0].pci_slot = PciSlot::try_from(9).ok(),
            Some("spec.domain.devices.interfaces[0].pciAddress"),
        ),
        (|l| l.interfaces[0].acpi_index = Some(1), Some("spec.domain.devices.interfaces[0].acpiIndex")),
        (|l| l.interfaces[0].peer = NicPeer::Passt, None),
    ];
    for (change, field) in table {
        let mut launch = Launch { hypervisor: forced(Kind::Native), ..sample::kernel_boot() };
        change(&mut launch);
        let fault = choose(&launch, &probe(KvmState::Usable, true)).err();
        assert_eq!(fault.as_ref().map(|fault| fault.field.as_str()), field, "{fault:?}");
    }
}

#[test]
fn twenty_six_disks_beside_a_nic_rng_and_port_run_on_native() {
    let mut launch = sample::kernel_boot();
    launch.disks = vec![launch.disks[0].clone(); 26];
    assert_eq!(choose(&launch, &probe(KvmState::Usable, true)).unwrap().kind, Kind::Native);
}

fn sata(disk: &Disk) -> Disk {
    Disk { bus: DiskBus::Sata, ..disk.clone() }
}

#[test]
fn drives_of_three_buses_run_on_native() {
    let mut launch = sample::kernel_boot();
    let scsi = Disk { bus: DiskBus::Scsi, ..launch.disks[0].clone() };
    launch.disks.extend([
        sata(&scsi),
        Disk { device: DiskDevice::CdRom, read_only: true, ..sata(&scsi) },
        Disk { device: DiskDevice::CdRom, read_only: true, ..scsi.clone() },
        scsi,
    ]);
    let choice = choose(&launch, &probe(KvmState::Usable, true)).unwrap();
    assert_eq!(choice.kind, Kind::Native, "{}", choice.reason);
    launch.disks[1].read_only = true;
    let choice = choose(&launch, &probe(KvmState::Usable, true)).unwrap();
    assert!(choice.reason.contains("read-only"), "an ATA disk has no way to say so: {}", choice.reason);
}

/// Each thing the monitor lacks, and the field that is named for it.
#[test]
fn what_native_lacks_leads_to_qemu_and_refuses_force() {
    type Change = fn(&mut Launch);
    let table: [(Change, &str, &str); 15] = [
        (|l| l.disks[0].bus = DiskBus::Usb, "spec.domain.devices.disks[0].disk.bus", "the bus usb"),
        (
            |l| l.disks[0].device = DiskDevice::CdRom,
            "spec.domain.devices.disks[0].disk.bus",
            "a CD drive on the bus virtio",
        ),
        (
            |l| l.disks[0].tuning.scsi_passthrough = true,
            "spec.domain.devices.disks[0].lun",
            "SCSI commands of the guest",
        ),
        (|l| l.disks = vec![l.disks[0].clone(); 27], "disks", "30 PCI devices, of which 29 fit"),
        (|l| l.disks = vec![sata(&l.disks[0]); 7], "spec.domain.devices.disks[0].disk.bus", "6 drives"),
        (|l| l.disks[0].serial = "x".repeat(21), "spec.domain.devices.disks[0].disk.bus", "20 bytes"),
        (
            |l| {
                l.boot = BootSource::Bios { use_serial: false };
                l.interfaces[0].boot_order = Some(1);
            },
            "spec.domain.devices.interfaces[0].bootOrder",
            "network",
        ),
        (
            |l| l.boot = BootSource::Efi { secure_boot: true, persistent: None },
            "secureBoot",
            "system management mode",
        ),
        (
            |l| l.interfaces[0].model = NicModel::E1000,
            "spec.domain.devices.interfaces[0].model",
            "a e1000 NIC",
        ),
        (|l| l.cpu = cpu(CpuModel::Named("Skylake-Client".into()), Vec::new()), "cpu.model", "Skylake"),
        (
            |l| l.cpu = cpu(CpuModel::HostModel, vec![CpuFeature::new("avx", false).unwrap()]),
            "cpu.features",
            "avx",
        ),
        (|l| l.memory_bytes = 128 << 30, "memory", "64 GiB"),
        (|l| l.video = Some(Video::Cirrus), "video", "a cirrus display"),
        (|l| l.video = Some(Video::Ramfb), "video", "a ramfb display"),
        (
            |l| {
                let device = ExtraDevice::Tpm;
                l.extra_devices.push(DeviceRequest { field: TPM.to_owned(), device });
            },
            TPM,
            "a TPM",
        ),
    ];
    for (change, field, what) in table {
        let mut launch = sample::kernel_boot();
        change(&mut launch);
        let choice = choose(&launch, &probe(KvmState::Usable, true)).unwrap();
        assert_eq!(choice.kind, Kind::Qemu, "{field}");
        assert!(choice.reason.contains(field) && choice.reason.contains(what), "{}", choice.reason);

        launch.hypervisor = forced(Kind::Native);
        let fault = choose(&launch, &probe(KvmState::Usable, true)).unwrap_err();
        assert_eq!((fault.code(), fault.field.as_str()), (Code::Unsupported, field));
        assert!(fault.detail.contains(what), "{}", fault.detail);
    }
}

#[test]
fn a_disk_starts_through_firmware_on_either() {
    for boot in
        [BootSource::Bios { use_serial: true }, BootSource::Efi { secure_boot: false, persistent: None }]
    {
        let launch = Launch { boot, ..sample::kernel_boot() };
        assert_eq!(choose(&launch, &probe(KvmState::Usable, true)).unwrap().kind, Kind::Native);
    }
}

#[test]
fn a_display_with_a_tablet_works_on_either() {
    for video in [Video::Vga, Video::Bochs, Video::Virtio] {
        let launch = Launch { video: Some(video), tablets: 1, ..sample::kernel_boot() };
        assert_eq!(choose(&launch, &probe(KvmState::Usable, true)).unwrap().kind, Kind::Native);
    }
}

#[test]
fn a_rejection_has_every_problem_at_once() {
    let mut launch = sample::kernel_boot();
    launch.disks[0].bus = DiskBus::Usb;
    launch.video = Some(Video::Ramfb);
    launch.hypervisor = forced(Kind::Native);
    let fault = choose(&launch, &probe(KvmState::Usable, true)).unwrap_err();
    assert_eq!(fault.field, "spec.domain.devices.disks[0].disk.bus");
    assert!(fault.detail.contains("usb") && fault.detail.contains("video requests"));
}

#[test]
fn what_neither_has_is_rejected_by_both() {
    for wanted in [HypervisorChoice::Auto, forced(Kind::Qemu), forced(Kind::Native)] {
        let mut launch = Launch { hypervisor: wanted.clone(), ..sample::kernel_boot() };
        let unknown = UnknownDevice { field: TPM.to_owned(), what: "another TPM".to_owned() };
        launch.unknown_devices.push(unknown);
        let fault = choose(&launch, &probe(KvmState::Usable, true)).unwrap_err();
        assert_eq!(fault.code(), Code::Unsupported, "{wanted:?}");
        assert_eq!(fault.field, TPM, "{wanted:?}");
    }
}

#[test]
fn a_balloon_forces_no_hypervisor() {
    let launch = Launch { memory_balloon: true, ..sample::kernel_boot() };
    let choice = choose(&launch, &probe(KvmState::Usable, true)).unwrap();
    assert_eq!(choice.kind, Kind::Native);
}

#[test]
fn native_has_what_watches_a_guest_and_what_it_talks_by() {
    let devices = [
        ExtraDevice::Panic(PanicModel::Isa),
        ExtraDevice::Panic(PanicModel::Pci),
        ExtraDevice::Watchdog(WatchdogAction::Reset),
        ExtraDevice::Vsock,
    ];
    for device in devices {
        let choice = choose(&with_platform(device), &probe(KvmState::Usable, true)).unwrap();
        assert_eq!(choice.kind, Kind::Native, "{device}");
    }
    let request = DeviceRequest { field: "spec.x".to_owned(), device: ExtraDevice::Panic(PanicModel::Pci) };
    let launch = Launch { extra_devices: vec![request; VmConfig::DEVICE_SLOTS], ..sample::kernel_boot() };
    let choice = choose(&launch, &probe(KvmState::Usable, true)).unwrap();
    assert_eq!(choice.kind, Kind::Qemu, "each takes a slot");
}

#[test]
fn attached_volumes_run_on_native_as_far_as_there_are_slots() {
    let mut launch = sample::kernel_boot();
    launch.hotplug = true;
    launch.hotplug_field = Some("spec.volumes[1].persistentVolumeClaim".to_owned());
    for (disks, volumes, expected) in
        [(1, 8, Kind::Native), (1, 9, Kind::Qemu), (24, 2, Kind::Native), (24, 3, Kind::Qemu)]
    {
        let disks = vec![launch.disks[0].clone(); disks];
        let launch = Launch { disks, hotplug_volumes: volumes, ..launch.clone() };
        let choice = choose(&launch, &probe(KvmState::Usable, true)).unwrap();
        assert_eq!(choice.kind, expected, "{volumes}: {}", choice.reason);
    }
    launch.hotplug_volumes = 9;
    launch.hypervisor = forced(Kind::Native);
    let fault = choose(&launch, &probe(KvmState::Usable, true)).unwrap_err();
    assert_eq!(fault.field, "spec.volumes[1].persistentVolumeClaim");
    assert!(fault.detail.contains("9 volumes that are attached, of which 8 fit"), "{}", fault.detail);
}
