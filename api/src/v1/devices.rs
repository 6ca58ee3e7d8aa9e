use super::shape::shapes;
use super::{
    ClientPassthroughDevices, Disk, DownwardMetrics, Filesystem, Gpu, HostDevice, Input, Interface,
    PanicDevice, Rng, SoundDevice, TpmDevice, VideoDevice, Watchdog,
};

shapes! {
    /// Disks, network interfaces and other devices of the guest.
    pub struct Devices {
        /// Uses virtio-transitional devices, which guests with drivers older than virtio 1.0 can use.
        pub use_virtio_transitional: Option<bool>,
        /// Disables the hotplug of disks and network interfaces.
        pub disable_hotplug: Option<bool>,
        /// Disks, CD-ROMs and LUNs of the VMI. Each shows the volume of the same name.
        pub disks: Vec<Disk>,
        /// A watchdog device.
        pub watchdog: Option<Watchdog>,
        /// Network interfaces of the VMI. Each is connected to the network of the same name.
        pub interfaces: Vec<Interface>,
        /// Input devices.
        pub inputs: Vec<Input>,
        /// Whether to attach an interface on the pod network if no interface is specified. Defaults to true.
        pub autoattach_pod_interface: Option<bool>,
        /// Whether to attach the default graphics device. Without it, VNC is not available. Defaults to true.
        pub autoattach_graphics_device: Option<bool>,
        /// Whether to attach the default virtio serial console. Without it, the serial console is not available.
        /// Defaults to true.
        pub autoattach_serial_console: Option<bool>,
        /// Whether to log the output of the default serial console. The cluster configuration holds the default.
        pub log_serial_console: Option<bool>,
        /// Whether to attach the memory balloon device with its default period. Without it, memory statistics are not
        /// available. Defaults to true.
        pub autoattach_mem_balloon: Option<bool>,
        /// Whether to attach an input device. Defaults to false.
        pub autoattach_input_device: Option<bool>,
        /// Whether to attach the VSOCK device, by which the guest and the host communicate. Defaults to false.
        pub autoattach_vsock: Option<bool> = "autoattachVSOCK",
        /// Whether the guest has a random number generator device that takes entropy from the host.
        pub rng: Option<Rng>,
        /// Whether to enable multiple queues of virtio disks: as many as vCPUs. Defaults to false.
        pub block_multi_queue: Option<bool>,
        /// Whether to enable multiple queues of virtio network interfaces: as many as vCPUs. Defaults to false.
        pub network_interface_multiqueue: Option<bool>,
        /// GPUs of the host that are passed through to the VMI.
        pub gpus: Vec<Gpu>,
        /// Exposes host and VM metrics to the guest over a virtio serial port.
        pub downward_metrics: Option<DownwardMetrics>,
        /// Filesystems that are shared with the VMI.
        pub filesystems: Vec<Filesystem>,
        /// Devices of the host that are passed through to the VMI.
        pub host_devices: Vec<HostDevice>,
        /// Enables the redirection of USB devices from the client's computer to the VMI.
        pub client_passthrough: Option<ClientPassthroughDevices>,
        /// An emulated sound device.
        pub sound: Option<SoundDevice>,
        /// An emulated TPM device.
        pub tpm: Option<TpmDevice>,
        /// The video device. Without it, the model depends on the architecture and the firmware.
        pub video: Option<VideoDevice>,
        /// Panic devices, by which the guest reports a crash.
        pub panic_devices: Vec<PanicDevice>,
    }
}
