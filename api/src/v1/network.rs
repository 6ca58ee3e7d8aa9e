use super::shape::shapes;

shapes! {
    /// What an interface is attached to: one of its kinds.
    pub struct Network {
        /// How it is referred to.
        pub name: String,
        /// The pod's own network.
        pub pod: Option<PodNetwork>,
        /// A network attachment.
        pub multus: Option<MultusNetwork>,
        /// A dynamically allocated card.
        pub resource_claim: Option<ResourceClaimNetwork>,
    }

    /// The pod's own network.
    pub struct PodNetwork {
        /// What masquerade uses inside; `10.0.2.0/24` when empty.
        pub vm_network_cidr: String = "vmNetworkCIDR",
        /// `fd10:0:2::/120` when empty.
        pub vm_ipv6_network_cidr: String = "vmIPv6NetworkCIDR",
    }

    /// A network attachment.
    pub struct MultusNetwork {
        /// `[namespace/]name`.
        pub network_name: String,
        /// Replaces the pod's own network.
        pub default: Option<bool>,
    }

    /// A dynamically allocated card.
    pub struct ResourceClaimNetwork {
        /// The claim.
        pub claim_name: String,
        /// The request of that claim.
        pub request_name: String,
    }
}
