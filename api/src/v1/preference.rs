use std::collections::BTreeMap;

use super::shape::shapes;
use super::{
    BlockSize, ClockUtc, CpuFeature, Efi, FeatureApic, FeatureHyperv, FeatureKvm, FeatureState,
    InterfaceBinding, LaunchSecurity, ObjectMeta, Quantity, Rng, Timer, TpmDevice, VirtualGpuOptions,
};

shapes! {
    /// A namespaced set of preferred attributes that VirtualMachines refer to by name.
    pub struct VirtualMachinePreference {
        /// API version: `instancetype.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// Kind of the object: `VirtualMachinePreference`.
        pub kind: String,
        /// Standard object metadata.
        pub metadata: ObjectMeta,
        /// Required spec of the preference.
        pub spec: VirtualMachinePreferenceSpec,
    }

    /// A cluster-scoped set of preferred attributes that VirtualMachines refer to by name.
    pub struct VirtualMachineClusterPreference {
        /// API version: `instancetype.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// Kind of the object: `VirtualMachineClusterPreference`.
        pub kind: String,
        /// Standard object metadata.
        pub metadata: ObjectMeta,
        /// Required spec of the preference.
        pub spec: VirtualMachinePreferenceSpec,
    }

    /// Preferred attributes. Each applies only where the template of the VirtualMachine does not set the field.
    pub struct VirtualMachinePreferenceSpec {
        /// Preferences for the clock.
        pub clock: Option<ClockPreferences>,
        /// Preferences for the CPU.
        pub cpu: Option<CpuPreferences>,
        /// Preferences for devices.
        pub devices: Option<DevicePreferences>,
        /// Preferences for features of the hypervisor.
        pub features: Option<FeaturePreferences>,
        /// Preferences for the firmware.
        pub firmware: Option<FirmwarePreferences>,
        /// Preferences for the machine type.
        pub machine: Option<MachinePreferences>,
        /// Preferences for volumes.
        pub volumes: Option<VolumePreferences>,
        /// Preferred seconds that the VMI has to shut down after it is requested to terminate.
        pub preferred_termination_grace_period_seconds: Option<i64>,
        /// Preferred subdomain of the VMI.
        pub preferred_subdomain: Option<String>,
        /// Minimum resources that a VirtualMachine, or its instance type, must provide.
        pub requirements: Option<PreferenceRequirements>,
        /// Annotations that are applied to the VMI.
        pub annotations: BTreeMap<String, String>,
        /// Preferred architecture of the VMI, such as `amd64`.
        pub preferred_architecture: Option<String>,
        /// Deprecated: use `cpu.spreadOptions.ratio` instead.
        pub prefer_spread_socket_to_core_ratio: Option<u32>,
        /// Preferred launch security (confidential computing).
        pub preferred_launch_security: Option<LaunchSecurity>,
    }

    /// Preferences for the clock.
    pub struct ClockPreferences {
        /// Preferred offset of the guest's clock from UTC.
        pub preferred_clock_offset: Option<ClockOffset>,
        /// Preferred timers that are attached to the VMI.
        pub preferred_timer: Option<Timer>,
    }

    /// Offset of the guest's clock: one of its members is set.
    pub struct ClockOffset {
        /// Sets the guest's clock to UTC on each boot.
        pub utc: Option<ClockUtc>,
        /// Sets the guest's clock to the local time of this time zone.
        pub timezone: Option<String>,
    }

    /// Preferences for the CPU.
    pub struct CpuPreferences {
        /// Preferred topology in which the vCPUs of an instance type are exposed: `sockets`, `cores`, `threads`,
        /// `spread` or `any`.
        pub preferred_cpu_topology: Option<String> = "preferredCPUTopology",
        /// How vCPUs are spread if the topology is `spread`.
        pub spread_options: Option<SpreadOptions>,
        /// Preferred CPU features.
        pub preferred_cpu_features: Vec<CpuFeature> = "preferredCPUFeatures",
    }

    /// How vCPUs are spread over the topology.
    pub struct SpreadOptions {
        /// Parts of the topology over which vCPUs are spread: `SocketsCoresThreads`, `SocketsCores` or `CoresThreads`.
        /// Defaults to `SocketsCores`.
        pub across: Option<String>,
        /// Number of cores per socket, or of threads per core with `CoresThreads`. Defaults to 2.
        pub ratio: Option<i64>,
    }

    /// Preferences for devices.
    pub struct DevicePreferences {
        /// Preferred value of `autoattachGraphicsDevice`.
        pub preferred_autoattach_graphics_device: Option<bool>,
        /// Preferred value of `autoattachMemBalloon`.
        pub preferred_autoattach_mem_balloon: Option<bool>,
        /// Preferred value of `autoattachPodInterface`.
        pub preferred_autoattach_pod_interface: Option<bool>,
        /// Preferred value of `autoattachSerialConsole`.
        pub preferred_autoattach_serial_console: Option<bool>,
        /// Preferred value of `autoattachInputDevice`.
        pub preferred_autoattach_input_device: Option<bool>,
        /// Preferred value of `disableHotplug`.
        pub preferred_disable_hotplug: Option<bool>,
        /// Preferred options of virtual GPUs.
        pub preferred_virtual_gpu_options: Option<VirtualGpuOptions> = "preferredVirtualGPUOptions",
        /// Preferred model of the sound device.
        pub preferred_sound_model: Option<String>,
        /// Preferred value of `useVirtioTransitional`.
        pub preferred_use_virtio_transitional: Option<bool>,
        /// Preferred bus of input devices.
        pub preferred_input_bus: Option<String>,
        /// Preferred type of input devices.
        pub preferred_input_type: Option<String>,
        /// Preferred bus of disks.
        pub preferred_disk_bus: Option<String>,
        /// Preferred bus of LUNs.
        pub preferred_lun_bus: Option<String>,
        /// Preferred bus of CD-ROMs.
        pub preferred_cdrom_bus: Option<String>,
        /// Preferred value of `dedicatedIOThread` of disks.
        pub preferred_disk_dedicated_io_thread: Option<bool>,
        /// Preferred cache mode of disks.
        pub preferred_disk_cache: Option<String>,
        /// Preferred I/O mode of disks.
        pub preferred_disk_io: Option<String> = "preferredDiskIO",
        /// Preferred block size of disks.
        pub preferred_disk_block_size: Option<BlockSize>,
        /// Preferred model of network interfaces.
        pub preferred_interface_model: Option<String>,
        /// Preferred random number generator device.
        pub preferred_rng: Option<Rng>,
        /// Preferred value of `blockMultiQueue`.
        pub preferred_block_multi_queue: Option<bool>,
        /// Preferred value of `networkInterfaceMultiqueue`.
        pub preferred_network_interface_multi_queue: Option<bool>,
        /// Preferred TPM device.
        pub preferred_tpm: Option<TpmDevice> = "preferredTPM",
        /// Preferred masquerade binding for interfaces on the pod network that set no binding.
        pub preferred_interface_masquerade: Option<InterfaceBinding>,
        /// Preferred model of panic devices.
        pub preferred_panic_device_model: Option<String>,
        /// Preferred model of the video device.
        pub preferred_video_type: Option<String>,
    }

    /// Preferences for features of the hypervisor.
    pub struct FeaturePreferences {
        /// Preferred state of ACPI.
        pub preferred_acpi: Option<FeatureState>,
        /// Preferred state of the APIC.
        pub preferred_apic: Option<FeatureApic>,
        /// Preferred Hyper-V enlightenments.
        pub preferred_hyperv: Option<FeatureHyperv>,
        /// Preferred presentation of KVM to the guest.
        pub preferred_kvm: Option<FeatureKvm>,
        /// Preferred state of paravirtualized spinlocks.
        pub preferred_pvspinlock: Option<FeatureState>,
        /// Preferred state of system management mode.
        pub preferred_smm: Option<FeatureState>,
    }

    /// Preferences for the firmware.
    pub struct FirmwarePreferences {
        /// Whether BIOS is preferred.
        pub preferred_use_bios: Option<bool>,
        /// Whether the BIOS output is preferably sent to the serial console. Requires `preferredUseBios`.
        pub preferred_use_bios_serial: Option<bool>,
        /// Deprecated: use `preferredEfi` instead.
        pub preferred_use_efi: Option<bool>,
        /// Deprecated: use `preferredEfi` with `secureBoot` instead.
        pub preferred_use_secure_boot: Option<bool>,
        /// Preferred UEFI boot loader.
        pub preferred_efi: Option<Efi>,
    }

    /// Preferences for the machine type.
    pub struct MachinePreferences {
        /// Preferred machine type.
        pub preferred_machine_type: String,
    }

    /// Preferences for volumes.
    pub struct VolumePreferences {
        /// Preferred StorageClass of the volumes of DataVolume templates.
        pub preferred_storage_class_name: String,
    }

    /// Minimum resources that a VirtualMachine, or its instance type, must provide.
    pub struct PreferenceRequirements {
        /// Required CPU resources.
        pub cpu: Option<CpuRequirement>,
        /// Required memory resources.
        pub memory: Option<MemoryRequirement>,
        /// Required architecture of the VMI.
        pub architecture: Option<String>,
    }

    /// Required CPU resources.
    pub struct CpuRequirement {
        /// Minimum number of vCPUs that the guest sees.
        pub guest: i64,
    }

    /// Required memory resources.
    pub struct MemoryRequirement {
        /// Minimum amount of memory that the guest sees.
        pub guest: Option<Quantity>,
    }
}
