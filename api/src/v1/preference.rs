use std::collections::BTreeMap;

use super::shape::shapes;
use super::{
    BlockSize, ClockUtc, CpuFeature, Efi, FeatureApic, FeatureHyperv, FeatureKvm, FeatureState,
    InterfaceBinding, LaunchSecurity, ObjectMeta, Quantity, Rng, Timer, TpmDevice, VirtualGpuOptions,
};

shapes! {
    /// What fills the gaps in templates of machines that choose it by name, in its namespace.
    pub struct VirtualMachinePreference {
        /// `instancetype.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `VirtualMachinePreference`.
        pub kind: String,
        /// Name, labels and so on.
        pub metadata: ObjectMeta,
        /// What is preferred.
        pub spec: VirtualMachinePreferenceSpec,
    }

    /// What fills the gaps in templates of machines that choose it by name, in every namespace.
    pub struct VirtualMachineClusterPreference {
        /// `instancetype.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `VirtualMachineClusterPreference`.
        pub kind: String,
        /// Name, labels and so on.
        pub metadata: ObjectMeta,
        /// What is preferred.
        pub spec: VirtualMachinePreferenceSpec,
    }

    /// What is preferred where a template says nothing.
    pub struct VirtualMachinePreferenceSpec {
        /// The clock.
        pub clock: Option<ClockPreferences>,
        /// Processors.
        pub cpu: Option<CpuPreferences>,
        /// Devices.
        pub devices: Option<DevicePreferences>,
        /// Features of the machine.
        pub features: Option<FeaturePreferences>,
        /// How it starts.
        pub firmware: Option<FirmwarePreferences>,
        /// The machine's type.
        pub machine: Option<MachinePreferences>,
        /// Volumes.
        pub volumes: Option<VolumePreferences>,
        /// How long a guest gets to shut down.
        pub preferred_termination_grace_period_seconds: Option<i64>,
        /// The subdomain.
        pub preferred_subdomain: Option<String>,
        /// What a machine must have at least.
        pub requirements: Option<PreferenceRequirements>,
        /// Annotations of every instance.
        pub annotations: BTreeMap<String, String>,
        /// The architecture.
        pub preferred_architecture: Option<String>,
        /// Deprecated: cores for each socket; `spec.cpu.spreadOptions.ratio` replaces it.
        pub prefer_spread_socket_to_core_ratio: Option<u32>,
        /// Confidential computing.
        pub preferred_launch_security: Option<LaunchSecurity>,
    }

    /// The clock.
    pub struct ClockPreferences {
        /// What it shows: UTC, shifted or not, or the time of a zone.
        pub preferred_clock_offset: Option<ClockOffset>,
        /// Its timers.
        pub preferred_timer: Option<Timer>,
    }

    /// What a clock shows: one of the two.
    pub struct ClockOffset {
        /// UTC, or ahead of it.
        pub utc: Option<ClockUtc>,
        /// The time of a zone.
        pub timezone: Option<String>,
    }

    /// Processors.
    pub struct CpuPreferences {
        /// `sockets`, `cores`, `threads`, `spread` or `any`: how an instance type's processors are laid out.
        pub preferred_cpu_topology: Option<String> = "preferredCPUTopology",
        /// How `spread` lays them out.
        pub spread_options: Option<SpreadOptions>,
        /// Features by name.
        pub preferred_cpu_features: Vec<CpuFeature> = "preferredCPUFeatures",
    }

    /// How processors are spread.
    pub struct SpreadOptions {
        /// `SocketsCoresThreads`, `SocketsCores` or `CoresThreads`.
        pub across: Option<String>,
        /// Cores for each socket.
        pub ratio: Option<i64>,
    }

    /// Devices.
    pub struct DevicePreferences {
        /// As the template's field.
        pub preferred_autoattach_graphics_device: Option<bool>,
        /// As the template's field.
        pub preferred_autoattach_mem_balloon: Option<bool>,
        /// As the template's field.
        pub preferred_autoattach_pod_interface: Option<bool>,
        /// As the template's field.
        pub preferred_autoattach_serial_console: Option<bool>,
        /// As the template's field.
        pub preferred_autoattach_input_device: Option<bool>,
        /// As the template's field.
        pub preferred_disable_hotplug: Option<bool>,
        /// How virtual graphics processors show themselves.
        pub preferred_virtual_gpu_options: Option<VirtualGpuOptions> = "preferredVirtualGPUOptions",
        /// The sound device's model.
        pub preferred_sound_model: Option<String>,
        /// As the template's field.
        pub preferred_use_virtio_transitional: Option<bool>,
        /// The bus of inputs.
        pub preferred_input_bus: Option<String>,
        /// The type of inputs.
        pub preferred_input_type: Option<String>,
        /// The bus of disks.
        pub preferred_disk_bus: Option<String>,
        /// The bus of passed-through disks.
        pub preferred_lun_bus: Option<String>,
        /// The bus of CD-ROM drives.
        pub preferred_cdrom_bus: Option<String>,
        /// A thread for each disk.
        pub preferred_disk_dedicated_io_thread: Option<bool>,
        /// The cache of disks.
        pub preferred_disk_cache: Option<String>,
        /// How disks do their work.
        pub preferred_disk_io: Option<String> = "preferredDiskIO",
        /// The blocks of disks.
        pub preferred_disk_block_size: Option<BlockSize>,
        /// The model of network cards.
        pub preferred_interface_model: Option<String>,
        /// The entropy device.
        pub preferred_rng: Option<Rng>,
        /// As the template's field.
        pub preferred_block_multi_queue: Option<bool>,
        /// As the template's field.
        pub preferred_network_interface_multi_queue: Option<bool>,
        /// The TPM.
        pub preferred_tpm: Option<TpmDevice> = "preferredTPM",
        /// Binds a card on the pod network that says no binding.
        pub preferred_interface_masquerade: Option<InterfaceBinding>,
        /// The device that tells of panics.
        pub preferred_panic_device_model: Option<String>,
        /// The display adapter's type.
        pub preferred_video_type: Option<String>,
    }

    /// Features of the machine.
    pub struct FeaturePreferences {
        /// ACPI.
        pub preferred_acpi: Option<FeatureState>,
        /// The interrupt controller.
        pub preferred_apic: Option<FeatureApic>,
        /// What Windows looks for.
        pub preferred_hyperv: Option<FeatureHyperv>,
        /// What KVM tells of itself.
        pub preferred_kvm: Option<FeatureKvm>,
        /// Spin locks that yield.
        pub preferred_pvspinlock: Option<FeatureState>,
        /// System management mode.
        pub preferred_smm: Option<FeatureState>,
    }

    /// How it starts.
    pub struct FirmwarePreferences {
        /// By BIOS.
        pub preferred_use_bios: Option<bool>,
        /// BIOS shows itself on the serial port.
        pub preferred_use_bios_serial: Option<bool>,
        /// Deprecated: by UEFI.
        pub preferred_use_efi: Option<bool>,
        /// Deprecated: with secure boot.
        pub preferred_use_secure_boot: Option<bool>,
        /// By UEFI.
        pub preferred_efi: Option<Efi>,
    }

    /// The machine's type.
    pub struct MachinePreferences {
        /// As the template's field.
        pub preferred_machine_type: String,
    }

    /// Volumes.
    pub struct VolumePreferences {
        /// The storage class of volumes that are made with a machine.
        pub preferred_storage_class_name: String,
    }

    /// What a machine must have at least.
    pub struct PreferenceRequirements {
        /// Processors.
        pub cpu: Option<CpuRequirement>,
        /// Memory.
        pub memory: Option<MemoryRequirement>,
        /// The architecture.
        pub architecture: Option<String>,
    }

    /// Processors.
    pub struct CpuRequirement {
        /// How many.
        pub guest: i64,
    }

    /// Memory.
    pub struct MemoryRequirement {
        /// How much.
        pub guest: Option<Quantity>,
    }
}
