use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use vireo_proto::convert::UnknownDevice;
use vireo_proto::launcher::Identity;
use vireo_vmconfig::{DeviceRequest, DiskSource, MacAddr, NicModel, RebootPolicy, Smbios, Video};
use vireo_vmm::config::Cpus;

/// A machine as it is wanted, whoever will run it.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Whose machine this is.
    pub vmi: Identity,
    /// Who runs it, if that was decided elsewhere.
    pub hypervisor: Wanted,
    /// Processors.
    pub cpu: Cpu,
    /// Guest RAM in bytes; never zero.
    pub memory_bytes: u64,
    /// How it starts.
    pub boot: Boot,
    /// Disks in the order the guest sees them.
    pub disks: Vec<Disk>,
    /// Network cards in the order the guest sees them.
    pub interfaces: Vec<Interface>,
    /// Where the first serial port is served, if there is one.
    pub console_socket: Option<PathBuf>,
    /// An entropy device.
    pub rng: bool,
    /// The display adapter, if there is one.
    pub video: Option<Video>,
    /// Virtio tablets.
    pub tablets: u32,
    /// Volumes may be plugged in while it runs.
    pub hotplug: bool,
    /// The field that asks for one to be plugged in.
    pub hotplug_field: Option<String>,
    /// Where the screen is shown, if there is one and it is to be seen.
    pub vnc_socket: Option<PathBuf>,
    /// A memory balloon, where the hypervisor has one.
    pub memory_balloon: bool,
    /// The field that insists on it.
    pub memory_balloon_field: Option<String>,
    /// Private scratch directory; exists.
    pub runtime_dir: PathBuf,
    /// Devices that only some hypervisors have.
    pub extra_devices: Vec<DeviceRequest>,
    /// Devices that no hypervisor here has.
    pub unknown_devices: Vec<UnknownDevice>,
    /// What the guest reads about the machine.
    pub smbios: Smbios,
    /// Whether a reboot by the guest ends it.
    pub reboot: RebootPolicy,
    /// Start with the CPUs stopped.
    pub start_paused: bool,
    /// How long a SIGTERM to the launcher leaves the guest to power off.
    pub termination_grace: Duration,
}

/// Who shall run the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Whoever can, the monitor first.
    Auto,
    /// Exactly this one; `by` says who insists.
    Forced {
        /// The hypervisor.
        kind: Kind,
        /// A field path, an annotation, a flag.
        by: String,
    },
}

/// The two hypervisors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Our monitor, in this process.
    Native,
    /// `qemu-system-x86_64`, as a child.
    Qemu,
}

/// A disk with its content's path.
pub type Disk = vireo_vmconfig::Disk<DiskSource>;

/// Processors of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Topology.
    pub topology: Cpus,
    /// What the guest's CPUID shows.
    pub model: CpuModel,
    /// Features switched on or off by name.
    pub features: Vec<(String, bool)>,
}

/// What the guest's CPUID shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuModel {
    /// What the host has, as far as it can be virtualized ("host-model" and "host-passthrough").
    Host,
    /// A model by QEMU's name; letters, digits, `-`, `_` and `.` only.
    Named(String),
}

/// How the machine starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Boot {
    /// A kernel, loaded directly.
    Kernel {
        /// Kernel image.
        kernel: PathBuf,
        /// Initial RAM disk.
        initrd: Option<PathBuf>,
        /// Command line.
        command_line: String,
    },
    /// SeaBIOS.
    Bios {
        /// The firmware's own output goes to the serial port.
        use_serial: bool,
    },
    /// OVMF.
    Efi {
        /// With the keys that make secure boot refuse unsigned loaders.
        secure_boot: bool,
        /// Where variables live; absent: forgotten at power-off.
        variables: Option<PathBuf>,
    },
}

/// A network card on a tap device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The interface's name in the manifest.
    pub name: String,
    /// Its field.
    pub field: String,
    /// What the guest sees.
    pub model: NicModel,
    /// The guest's address.
    pub mac: MacAddr,
    /// The tap device in this network namespace.
    pub tap: String,
    /// What the guest is told about its MTU.
    pub mtu: Option<u16>,
    /// Rank among the boot devices.
    pub boot_order: Option<u32>,
    /// What the DHCP server answers.
    pub lease: Option<Lease>,
}

/// What a guest learns by DHCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The guest's address.
    pub address: Ipv4Addr,
    /// 0 to 32.
    pub prefix_length: u8,
    /// The router, which is also who answers: the tap's own address.
    pub gateway: Ipv4Addr,
    /// Resolvers.
    pub dns_servers: Vec<Ipv4Addr>,
    /// Where short names are looked up.
    pub search_domains: Vec<String>,
    /// The guest's name; may be empty.
    pub hostname: String,
    /// The guest's domain; may be empty.
    pub domain: String,
    /// Option 67; may be empty.
    pub boot_file: String,
    /// Option 66; may be empty.
    pub tftp_server: String,
    /// Option 42.
    pub ntp_servers: Vec<Ipv4Addr>,
    /// Options 224 to 254.
    pub private_options: Vec<(u8, String)>,
}
