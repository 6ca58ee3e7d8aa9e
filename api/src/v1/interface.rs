use super::shape::shapes;

shapes! {
    /// A network interface of the guest, and the binding by which it is connected to its network.
    pub struct Interface {
        /// Name of the interface: it matches the name of a network.
        pub name: String,
        /// Interface model: `virtio`, `e1000`, `e1000e`, `igb`, `ne2k_pci`, `pcnet` or `rtl8139`. Defaults to `virtio`.
        pub model: String,
        /// Connects the guest to the network by a Linux bridge.
        pub bridge: Option<InterfaceBinding>,
        /// Connects the guest to the network by NAT behind the address of the pod.
        pub masquerade: Option<InterfaceBinding>,
        /// Passes an SR-IOV virtual function through to the guest.
        pub sriov: Option<InterfaceBinding>,
        /// Connects the guest to the network by passt, in user space.
        pub passt_binding: Option<InterfaceBinding>,
        /// Deprecated: removed from KubeVirt in v1.3.
        pub slirp: Option<InterfaceBinding>,
        /// Deprecated: removed from KubeVirt in v1.3.
        pub macvtap: Option<InterfaceBinding>,
        /// Deprecated: removed from KubeVirt in v1.3.
        pub passt: Option<InterfaceBinding>,
        /// Connects the guest to the network by a registered network binding plugin.
        pub binding: Option<PluginBinding>,
        /// Ports that are forwarded to the guest. If empty, all ports are.
        pub ports: Vec<Port>,
        /// Ranges of ports that are forwarded to the guest.
        pub port_ranges: Vec<PortRange>,
        /// MAC address of the interface, such as `de:ad:00:00:be:af` or `DE-AD-00-00-BE-AF`.
        pub mac_address: String,
        /// Position in the boot order, greater than 0. Disks and interfaces with a boot order are tried from the
        /// smallest value, and no two of them share one; those without come last.
        pub boot_order: Option<u32>,
        /// PCI address of the interface, such as `0000:81:01.0`.
        pub pci_address: String,
        /// Additional options that the DHCP server passes to the guest.
        pub dhcp_options: Option<DhcpOptions>,
        /// Tag that is published to the guest with the address of the interface, in the metadata of a cloud-init config
        /// drive.
        pub tag: String,
        /// ACPI index, which gives the interface a stable name in the guest.
        pub acpi_index: Option<i64>,
        /// Requested state of the link: `up`, `down`, or `absent` to unplug the interface. Defaults to `up`.
        pub state: String,
    }

    /// A binding without options.
    pub struct InterfaceBinding {}

    /// A registered network binding plugin.
    pub struct PluginBinding {
        /// Name of the binding plugin, as registered in the KubeVirt configuration.
        pub name: String,
    }

    /// A port that is forwarded to the guest.
    pub struct Port {
        /// Name of the port, unique in the VMI.
        pub name: String,
        /// Protocol of the port: `TCP` or `UDP`. Defaults to `TCP`.
        pub protocol: String,
        /// Port number, from 1 to 65535.
        pub port: Option<i32>,
    }

    /// A range of ports that are forwarded to the guest.
    pub struct PortRange {
        /// Protocol of the ports: `TCP` or `UDP`. Defaults to `TCP`.
        pub protocol: String,
        /// First port of the range.
        pub start: Option<i32>,
        /// Last port of the range, inclusive.
        pub end: Option<i32>,
    }

    /// Additional options that the DHCP server passes to the guest.
    pub struct DhcpOptions {
        /// Boot file name: DHCP option 67.
        pub boot_file_name: String,
        /// TFTP server name: DHCP option 66.
        pub tftp_server_name: String,
        /// NTP servers: DHCP option 42.
        pub ntp_servers: Vec<String>,
        /// Private DHCP options, 224 to 254.
        pub private_options: Vec<DhcpPrivateOptions>,
    }

    /// A private DHCP option.
    pub struct DhcpPrivateOptions {
        /// Number of the option, from 224 to 254.
        pub option: Option<i32>,
        /// Value of the option.
        pub value: String,
    }
}

impl Interface {
    /// The state of a NIC that is unplugged, or is to be.
    pub const ABSENT: &str = "absent";

    /// Whether the guest is not to have it.
    pub fn is_absent(&self) -> bool {
        self.state == Self::ABSENT
    }
}
