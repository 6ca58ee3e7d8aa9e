use super::shape::shapes;
use super::{
    ClientPassthroughDevices, Disk, DownwardMetrics, Filesystem, Gpu, HostDevice, Input, Interface,
    PanicDevice, Rng, SoundDevice, TpmDevice, VideoDevice, Watchdog,
};

shapes! {
    /// Everything attached to the guest.
    pub struct Devices {
        /// Virtio devices of before 1.0.
        pub use_virtio_transitional: Option<bool>,
        /// Nothing can be plugged in later.
        pub disable_hotplug: Option<bool>,
        /// Disks, CD-ROMs and LUNs.
        pub disks: Vec<Disk>,
        /// A watchdog.
        pub watchdog: Option<Watchdog>,
        /// Network cards.
        pub interfaces: Vec<Interface>,
        /// Tablets.
        pub inputs: Vec<Input>,
        /// Whether a machine without a card gets one; true when absent.
        pub autoattach_pod_interface: Option<bool>,
        /// A screen; true when absent.
        pub autoattach_graphics_device: Option<bool>,
        /// A first serial port; true when absent.
        pub autoattach_serial_console: Option<bool>,
        /// The serial port is logged.
        pub log_serial_console: Option<bool>,
        /// A memory balloon; true when absent.
        pub autoattach_mem_balloon: Option<bool>,
        /// A tablet.
        pub autoattach_input_device: Option<bool>,
        /// A socket to the host.
        pub autoattach_vsock: Option<bool> = "autoattachVSOCK",
        /// An entropy device.
        pub rng: Option<Rng>,
        /// As many queues as vCPUs on virtio disks.
        pub block_multi_queue: Option<bool>,
        /// As many queues as vCPUs on virtio cards.
        pub network_interface_multiqueue: Option<bool>,
        /// Graphics cards handed through.
        pub gpus: Vec<Gpu>,
        /// Metrics of the host over a virtio port.
        pub downward_metrics: Option<DownwardMetrics>,
        /// Shared directories.
        pub filesystems: Vec<Filesystem>,
        /// Devices handed through.
        pub host_devices: Vec<HostDevice>,
        /// USB devices of the client.
        pub client_passthrough: Option<ClientPassthroughDevices>,
        /// A sound card.
        pub sound: Option<SoundDevice>,
        /// A trusted platform module.
        pub tpm: Option<TpmDevice>,
        /// A graphics adapter.
        pub video: Option<VideoDevice>,
        /// Where a guest reports its own end.
        pub panic_devices: Vec<PanicDevice>,
    }
}
