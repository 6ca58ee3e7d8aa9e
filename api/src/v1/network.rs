use super::shape::shapes;

shapes! {
    /// A network that an interface can be connected to: one of its sources must be set.
    pub struct Network {
        /// Name of the network: it matches the name of an interface.
        pub name: String,
        /// The default network of the pod.
        pub pod: Option<PodNetwork>,
        /// A NetworkAttachmentDefinition of Multus.
        pub multus: Option<MultusNetwork>,
        /// A network device that is allocated by dynamic resource allocation (DRA).
        pub resource_claim: Option<ResourceClaimNetwork>,
    }

    /// The default network of the pod.
    pub struct PodNetwork {
        /// IPv4 CIDR of the network inside the VMI, for the masquerade binding. Defaults to `10.0.2.0/24`.
        pub vm_network_cidr: String = "vmNetworkCIDR",
        /// IPv6 CIDR of the network inside the VMI, for the masquerade binding. Defaults to `fd10:0:2::/120`.
        pub vm_ipv6_network_cidr: String = "vmIPv6NetworkCIDR",
    }

    /// A NetworkAttachmentDefinition of Multus.
    pub struct MultusNetwork {
        /// Name of the NetworkAttachmentDefinition: `<name>` in the namespace of the VMI, or `<namespace>/<name>`.
        pub network_name: String,
        /// Makes this the default network: it replaces the pod network.
        pub default: Option<bool>,
    }

    /// A network device that is allocated by dynamic resource allocation (DRA).
    pub struct ResourceClaimNetwork {
        /// Name of an entry of `spec.resourceClaims` from which the device is allocated.
        pub claim_name: String,
        /// Name of the request in the resource claim for which the device is allocated.
        pub request_name: String,
    }
}
