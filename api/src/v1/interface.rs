use super::shape::shapes;

shapes! {
    /// A network card and how it is bound to its network: one of the bindings.
    pub struct Interface {
        /// The network it is on.
        pub name: String,
        /// `virtio`, `e1000`, `e1000e`, `igb`, `ne2k_pci`, `pcnet` or `rtl8139`.
        pub model: String,
        /// A bridge to the pod's interface.
        pub bridge: Option<InterfaceBinding>,
        /// Address translation behind the pod's address.
        pub masquerade: Option<InterfaceBinding>,
        /// A virtual function handed through.
        pub sriov: Option<InterfaceBinding>,
        /// A user-space translator.
        pub passt_binding: Option<InterfaceBinding>,
        /// Removed from KubeVirt.
        pub slirp: Option<InterfaceBinding>,
        /// Removed from KubeVirt.
        pub macvtap: Option<InterfaceBinding>,
        /// Removed from KubeVirt.
        pub passt: Option<InterfaceBinding>,
        /// A binding that someone registered.
        pub binding: Option<PluginBinding>,
        /// What is forwarded; everything when empty.
        pub ports: Vec<Port>,
        /// What is forwarded.
        pub port_ranges: Vec<PortRange>,
        /// The card's address.
        pub mac_address: String,
        /// From 1; shared with disks.
        pub boot_order: Option<u32>,
        /// Where on the PCI bus.
        pub pci_address: String,
        /// More that DHCP tells the guest.
        pub dhcp_options: Option<DhcpOptions>,
        /// Told to the guest in the config drive.
        pub tag: String,
        /// A number for a stable name.
        pub acpi_index: Option<i64>,
        /// `up`, `down` or `absent`.
        pub state: String,
    }

    /// A binding without settings.
    pub struct InterfaceBinding {}

    /// A binding that someone registered.
    pub struct PluginBinding {
        /// Its name.
        pub name: String,
    }

    /// A forwarded port.
    pub struct Port {
        /// How it is referred to.
        pub name: String,
        /// `TCP` or `UDP`.
        pub protocol: String,
        /// 1 to 65535.
        pub port: Option<i32>,
    }

    /// Forwarded ports.
    pub struct PortRange {
        /// `TCP` or `UDP`.
        pub protocol: String,
        /// The first.
        pub start: Option<i32>,
        /// The last.
        pub end: Option<i32>,
    }

    /// More that DHCP tells the guest.
    pub struct DhcpOptions {
        /// Option 67.
        pub boot_file_name: String,
        /// Option 66.
        pub tftp_server_name: String,
        /// Option 42.
        pub ntp_servers: Vec<String>,
        /// Options 224 to 254.
        pub private_options: Vec<DhcpPrivateOptions>,
    }

    /// A private option.
    pub struct DhcpPrivateOptions {
        /// 224 to 254.
        pub option: Option<i32>,
        /// Its text.
        pub value: String,
    }
}
