use super::shape::shapes;

shapes! {
    /// A random number generator (RNG) device that gives the guest entropy of the host.
    pub struct Rng {}

    /// Exposes a limited set of host and VM metrics to the guest, in the format of vhostmd.
    pub struct DownwardMetrics {}

    /// Redirection of USB devices from the client's computer to the VMI.
    pub struct ClientPassthroughDevices {}

    /// A hardware watchdog device: one of its models must be set.
    pub struct Watchdog {
        /// Name of the watchdog.
        pub name: String,
        /// The i6300esb PCI watchdog.
        pub i6300esb: Option<WatchdogAction>,
        /// The diag288 watchdog of s390x.
        pub diag288: Option<WatchdogAction>,
    }

    /// A watchdog model, and the action it takes.
    pub struct WatchdogAction {
        /// Action when the watchdog expires: `poweroff`, `reset` or `shutdown`. Defaults to `reset`.
        pub action: String,
    }

    /// An input device.
    pub struct Input {
        /// Bus of the input device: `usb` or `virtio`. Defaults to `usb`.
        pub bus: String,
        /// Type of the input device. The only supported type is `tablet`.
        pub r#type: String = "type",
        /// Name of the input device.
        pub name: String,
    }

    /// An emulated sound device.
    pub struct SoundDevice {
        /// Name of the sound device.
        pub name: String,
        /// Model of the sound device: `ich9` or `ac97`. Defaults to `ich9`.
        pub model: String,
    }

    /// An emulated trusted platform module (TPM).
    pub struct TpmDevice {
        /// Whether the VMI has a TPM. Defaults to true.
        pub enabled: Option<bool>,
        /// Whether the state of the TPM is kept when the VM stops. Defaults to false.
        pub persistent: Option<bool>,
    }

    /// The video device.
    pub struct VideoDevice {
        /// Model of the video device: `vga`, `virtio`, `bochs`, `cirrus` or `ramfb`. The default depends on the
        /// architecture.
        pub r#type: String = "type",
    }

    /// A device by which the guest reports a crash of its kernel.
    pub struct PanicDevice {
        /// Model of the panic device: `hyperv`, `isa` or `pvpanic`.
        pub model: Option<String>,
    }

    /// A filesystem of a volume that is shared with the guest.
    pub struct Filesystem {
        /// Name of the filesystem: it matches the name of a volume and is the tag by which the guest mounts it.
        pub name: String,
        /// Shares the filesystem by virtio-fs. The only supported type.
        pub virtiofs: Option<FilesystemVirtiofs>,
    }

    /// Sharing of a filesystem by virtio-fs.
    pub struct FilesystemVirtiofs {}

    /// A GPU of the host that is passed through to the guest.
    pub struct Gpu {
        /// Name of the GPU device.
        pub name: String,
        /// Resource name under which a device plugin exposes the GPU. Mutually exclusive with `claimName`.
        pub device_name: String,
        /// Name of an entry of `spec.resourceClaims` from which the GPU is allocated.
        pub claim_name: Option<String>,
        /// Name of the request in the resource claim for which the GPU is allocated.
        pub request_name: Option<String>,
        /// Options of a virtual GPU.
        pub virtual_gpu_options: Option<VirtualGpuOptions> = "virtualGPUOptions",
        /// Tag that is published to the guest with the address of the device, in the metadata of a cloud-init config
        /// drive.
        pub tag: String,
    }

    /// Options of a virtual GPU (vGPU).
    pub struct VirtualGpuOptions {
        /// Display of the vGPU.
        pub display: Option<VirtualGpuDisplayOptions>,
    }

    /// Display of a vGPU.
    pub struct VirtualGpuDisplayOptions {
        /// Whether the vGPU has a display. Defaults to true.
        pub enabled: Option<bool>,
        /// A boot framebuffer in memory, shown until the guest's driver is loaded. Defaults to true.
        pub ram_fb: Option<super::FeatureState> = "ramFB",
    }

    /// A device of the host that is passed through to the guest.
    pub struct HostDevice {
        /// Name of the host device.
        pub name: String,
        /// Resource name under which a device plugin exposes the host device. Mutually exclusive with `claimName`.
        pub device_name: String,
        /// Name of an entry of `spec.resourceClaims` from which the host device is allocated.
        pub claim_name: Option<String>,
        /// Name of the request in the resource claim for which the host device is allocated.
        pub request_name: Option<String>,
        /// Tag that is published to the guest with the address of the device, in the metadata of a cloud-init config
        /// drive.
        pub tag: String,
    }

    /// IOThreads of the `supplementalPool` policy.
    pub struct IoThreads {
        /// Number of IOThreads in the shared pool.
        pub supplemental_pool_thread_count: Option<u32>,
    }
}

impl TpmDevice {
    /// Whether the VMI has a TPM.
    pub fn is_enabled(&self) -> bool {
        self.enabled != Some(false)
    }

    /// Whether it has one whose state is kept.
    pub fn is_persistent(&self) -> bool {
        self.is_enabled() && self.persistent == Some(true)
    }
}
