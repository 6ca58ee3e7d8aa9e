use super::shape::shapes;

shapes! {
    /// An entropy device.
    pub struct Rng {}

    /// Metrics of the host.
    pub struct DownwardMetrics {}

    /// USB devices of the client.
    pub struct ClientPassthroughDevices {}

    /// A watchdog: one of its kinds.
    pub struct Watchdog {
        /// How it is referred to.
        pub name: String,
        /// The PCI one.
        pub i6300esb: Option<WatchdogAction>,
        /// The s390x one.
        pub diag288: Option<WatchdogAction>,
    }

    /// What a watchdog does.
    pub struct WatchdogAction {
        /// `poweroff`, `reset` or `shutdown`.
        pub action: String,
    }

    /// A tablet.
    pub struct Input {
        /// `usb` or `virtio`.
        pub bus: String,
        /// `tablet`.
        pub r#type: String = "type",
        /// How it is referred to.
        pub name: String,
    }

    /// A sound card.
    pub struct SoundDevice {
        /// How it is referred to.
        pub name: String,
        /// `ich9` or `ac97`.
        pub model: String,
    }

    /// A trusted platform module.
    pub struct TpmDevice {
        /// True when absent.
        pub enabled: Option<bool>,
        /// Its state outlives the machine.
        pub persistent: Option<bool>,
    }

    /// A graphics adapter.
    pub struct VideoDevice {
        /// `vga`, `virtio`, `bochs`, `cirrus` or `ramfb`.
        pub r#type: String = "type",
    }

    /// Where a guest reports its own end.
    pub struct PanicDevice {
        /// `hyperv`, `isa` or `pvpanic`.
        pub model: Option<String>,
    }

    /// A shared directory.
    pub struct Filesystem {
        /// The volume, and the tag the guest mounts.
        pub name: String,
        /// Over virtio-fs.
        pub virtiofs: Option<FilesystemVirtiofs>,
    }

    /// Over virtio-fs.
    pub struct FilesystemVirtiofs {}

    /// A graphics card handed through.
    pub struct Gpu {
        /// How it is referred to.
        pub name: String,
        /// The resource it is taken from.
        pub device_name: String,
        /// The claim it is taken from.
        pub claim_name: Option<String>,
        /// The request of that claim.
        pub request_name: Option<String>,
        /// Of a virtual one.
        pub virtual_gpu_options: Option<VirtualGpuOptions> = "virtualGPUOptions",
        /// Told to the guest.
        pub tag: String,
    }

    /// Options of a virtual graphics card.
    pub struct VirtualGpuOptions {
        /// Its screen.
        pub display: Option<VirtualGpuDisplayOptions>,
    }

    /// The screen of a virtual graphics card.
    pub struct VirtualGpuDisplayOptions {
        /// True when absent.
        pub enabled: Option<bool>,
        /// A frame buffer in memory.
        pub ram_fb: Option<super::FeatureState> = "ramFB",
    }

    /// A device handed through.
    pub struct HostDevice {
        /// How it is referred to.
        pub name: String,
        /// The resource it is taken from.
        pub device_name: String,
        /// The claim it is taken from.
        pub claim_name: Option<String>,
        /// The request of that claim.
        pub request_name: Option<String>,
        /// Told to the guest.
        pub tag: String,
    }

    /// Threads of disks.
    pub struct IoThreads {
        /// How many the pool has.
        pub supplemental_pool_thread_count: Option<u32>,
    }
}
