use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::Ipv4Net;
use vireo_proto::convert::UnknownDevice;
use vireo_proto::launcher::Identity;
use vireo_vmconfig::{
    AcpiTable, BootSource, Cpu, CpuPlacement, DeviceRequest, DiskSource, FieldPaths, HugePage, IoThreads,
    MacAddr, NicModel, PciSlot, RebootPolicy, Smbios, Video,
};

/// The requested VM, for either hypervisor.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Whose VM this is.
    pub vmi: Identity,
    /// Who runs it, if that was decided elsewhere.
    pub hypervisor: HypervisorChoice,
    /// The manifest's fields, for faults.
    pub fields: FieldPaths,
    /// vCPUs.
    pub cpu: Cpu,
    /// The CPUs of the host that it has for itself, if it has.
    pub cpu_placement: Option<CpuPlacement>,
    /// Guest RAM in bytes; never zero.
    pub memory_bytes: u64,
    /// The huge pages that back it; those of the hypervisor's choice otherwise.
    pub huge_page: Option<HugePage>,
    /// Where the state of its TPM is kept, if it is.
    pub tpm_state: Option<PathBuf>,
    /// Where the metrics are that its guest reads at a port, if it does.
    pub downward_metrics: Option<PathBuf>,
    /// How many seconds its real-time clock is ahead of UTC when it starts.
    pub clock_offset: i64,
    /// The threads of virtio disks without a dedicated one.
    pub io_threads: Option<IoThreads>,
    /// How it starts.
    pub boot: BootSource,
    /// Disks in the guest's order.
    pub disks: Vec<Disk>,
    /// File systems that it shares.
    pub filesystems: Vec<Filesystem>,
    /// NICs in the guest's order.
    pub interfaces: Vec<Interface>,
    /// Where the first serial port is served, if there is one.
    pub console_socket: Option<PathBuf>,
    /// An entropy device.
    pub rng: bool,
    /// The display adapter, if there is one.
    pub video: Option<Video>,
    /// Virtio tablets.
    pub tablets: u32,
    /// Volumes may be attached while it runs.
    pub hotplug: bool,
    /// NICs, too.
    pub nic_hotplug: bool,
    /// The field of the first volume that is attached as soon as it runs.
    pub hotplug_field: Option<String>,
    /// How many volumes are attached as soon as it runs.
    pub hotplug_volumes: u32,
    /// Socket of the VNC server, if the display is to be served.
    pub vnc_socket: Option<PathBuf>,
    /// Sockets of the slots for USB devices of clients.
    pub usb_redirection_sockets: Vec<PathBuf>,
    /// A memory balloon.
    pub memory_balloon: bool,
    /// It gives no free pages of the guest back to the host.
    pub keep_free_pages: bool,
    /// Private scratch directory; exists.
    pub runtime_dir: PathBuf,
    /// Devices that only some hypervisors have.
    pub extra_devices: Vec<DeviceRequest>,
    /// Devices that no hypervisor here has.
    pub unknown_devices: Vec<UnknownDevice>,
    /// What the guest reads about the VM.
    pub smbios: Smbios,
    /// ACPI tables beside those of every VM.
    pub acpi_tables: Vec<AcpiTable>,
    /// Whether a reboot by the guest ends it.
    pub reboot: RebootPolicy,
    /// Start with the CPUs stopped.
    pub start_paused: bool,
    /// How long a SIGTERM to the launcher leaves the guest to power off.
    pub termination_grace: Duration,
}

impl Launch {
    /// Whether vCPUs may be scheduled in real time.
    pub fn is_realtime(&self) -> bool {
        self.cpu_placement.as_ref().is_some_and(|placement| placement.realtime.is_some())
    }
}

/// Who shall run the VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HypervisorChoice {
    /// The first that supports the VM; the monitor is preferred.
    Auto,
    /// Exactly this one; `by` names what forces it.
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

/// A file system that the guest shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filesystem {
    /// The tag by which the guest mounts it: at most 36 bytes.
    pub name: String,
    /// Its field.
    pub field: String,
    /// Its directory, which this process sees.
    pub directory: PathBuf,
    /// Whether the guest only reads it.
    pub read_only: bool,
}

/// A NIC on a tap device.
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
    /// What its frames go to.
    pub peer: NicPeer,
    /// The MTU to announce to the guest.
    pub mtu: Option<u16>,
    /// Rank among the boot devices.
    pub boot_order: Option<u32>,
    /// From 1; a tap device has as many queues.
    pub queue_pairs: usize,
    /// Whether the link is up when the guest starts.
    pub link_up: bool,
    /// Its slot on the PCI bus, if it is chosen.
    pub pci_slot: Option<PciSlot>,
    /// By which the guest names it.
    pub acpi_index: Option<u32>,
    /// What the DHCP server answers.
    pub lease: Option<Lease>,
    /// What the guest learns of IPv6.
    pub ipv6_lease: Option<Ipv6Lease>,
}

/// The other end of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NicPeer {
    /// A tap device in this network namespace.
    Tap {
        /// Its name.
        device: String,
        /// The device that DHCP requests arrive at: the tap device, or the bridge that it is in.
        dhcp_device: String,
    },
    /// A process of passt, by a socket.
    Passt,
}

impl NicPeer {
    /// The tap device, if it is one.
    pub fn tap(&self) -> Option<&str> {
        match self {
            Self::Tap { device, .. } => Some(device),
            Self::Passt => None,
        }
    }
}

/// A route of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network that it leads to.
    pub destination: Ipv4Net,
    /// By which router; unspecified for what is on the link.
    pub gateway: Ipv4Addr,
}

/// What a guest learns by router advertisements and DHCPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv6Lease {
    /// The guest's address.
    pub address: Ipv6Addr,
    /// That of the network on the link: 0 to 128.
    pub prefix_length: u8,
    /// Resolvers.
    pub dns_servers: Vec<Ipv6Addr>,
    /// Where short names are looked up; each fits DNS.
    pub search_domains: Vec<String>,
}

/// What a guest learns by DHCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The guest's address.
    pub address: Ipv4Addr,
    /// 0 to 32.
    pub prefix_length: u8,
    /// The router, if there is one.
    pub gateway: Option<Ipv4Addr>,
    /// Who answers: an address of the device that the requests arrive at.
    pub server: Ipv4Addr,
    /// Option 121, beside the route by the gateway.
    pub routes: Vec<Route>,
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
