use vireo_proto::launcher::Identity;
use vireo_vmconfig::{
    BootSource, CacheMode, Cpu, CpuModel, CpuTopology, DiskBus, DiskDevice, DiskSource, DiskTuning,
    ErrorPolicy, FieldPaths, KernelFiles, NicModel, RebootPolicy, Smbios,
};

use super::*;

/// Each named after itself.
pub(crate) fn fields() -> FieldPaths {
    FieldPaths {
        memory: "memory".into(),
        huge_pages: "hugepages".into(),
        cpu_model: "cpu.model".into(),
        dedicated_cpus: "dedicatedCpuPlacement".into(),
        numa: "numa".into(),
        realtime: "realtime".into(),
        cpu_features: "cpu.features".into(),
        firmware: "firmware".into(),
        bootloader: "bootloader".into(),
        bios: "bios".into(),
        efi: "efi".into(),
        secure_boot: "secureBoot".into(),
        kernel_boot: "kernelBoot".into(),
        devices: "devices".into(),
        disks: "disks".into(),
        video: "video".into(),
        io_threads: "ioThreadsPolicy".into(),
    }
}

/// A VM both hypervisors can run: a kernel, one virtio disk, one virtio NIC.
pub(crate) fn kernel_boot() -> Launch {
    Launch {
        vmi: Identity { namespace: "default".into(), name: "web".into(), uid: "0f00".into() },
        hypervisor: HypervisorChoice::Auto,
        fields: fields(),
        cpu: Cpu::new(CpuTopology::new(1, 2, 1).expect("two vCPUs"), CpuModel::HostModel, Vec::new()),
        cpu_placement: None,
        memory_bytes: 256 << 20,
        huge_page: None,
        tpm_state: None,
        downward_metrics: None,
        clock_offset: 0,
        io_threads: None,
        boot: BootSource::Kernel(KernelFiles {
            kernel: "/images/kernel".into(),
            initrd: Some("/images/initrd".into()),
            command_line: "console=ttyS0 a=b,c".into(),
        }),
        disks: vec![Disk {
            name: "root".into(),
            field: "spec.domain.devices.disks[0].disk.bus".into(),
            bus: DiskBus::Virtio,
            read_only: false,
            device: DiskDevice::Disk,
            serial: String::new(),
            boot_order: None,
            source: DiskSource::Qcow2 {
                path: "/vmi/root.qcow2".into(),
                backing: Some("/images/base.raw".into()),
            },
            cache: CacheMode::WriteBack,
            io: None,
            error_policy: ErrorPolicy::Stop,
            tuning: DiskTuning::default(),
        }],
        filesystems: Vec::new(),
        interfaces: vec![Interface {
            name: "default".into(),
            field: "spec.domain.devices.interfaces[0]".into(),
            model: NicModel::Virtio,
            mac: "52:54:00:12:34:56".parse().expect("a unicast address"),
            peer: NicPeer::Tap { device: "tap0".into(), dhcp_device: "tap0".into() },
            ipv6_lease: None,
            mtu: Some(1450),
            boot_order: None,
            queue_pairs: 1,
            link_up: true,
            pci_slot: None,
            acpi_index: None,
            lease: None,
        }],
        console_socket: Some("/vmi/console.sock".into()),
        rng: true,
        video: None,
        tablets: 0,
        hotplug: false,
        nic_hotplug: false,
        hotplug_field: None,
        hotplug_volumes: 0,
        vnc_socket: None,
        usb_redirection_sockets: Vec::new(),
        memory_balloon: false,
        keep_free_pages: false,
        runtime_dir: "/vmi/run".into(),
        extra_devices: Vec::new(),
        unknown_devices: Vec::new(),
        smbios: Smbios::default(),
        acpi_tables: Vec::new(),
        reboot: RebootPolicy::Reboot,
        start_paused: false,
        termination_grace: std::time::Duration::from_secs(30),
    }
}
