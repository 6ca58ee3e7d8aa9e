use super::shape::shapes;

shapes! {
    /// DNS parameters of a pod, in addition to those generated from `dnsPolicy`.
    pub struct PodDnsConfig {
        /// IP addresses of DNS name servers, appended to those of the policy.
        pub nameservers: Vec<String>,
        /// DNS search domains for host-name lookup, appended to those of the policy.
        pub searches: Vec<String>,
        /// DNS resolver options, merged with those of the policy.
        pub options: Vec<PodDnsConfigOption>,
    }

    /// A DNS resolver option, such as `ndots:2`.
    pub struct PodDnsConfigOption {
        /// Name of the resolver option.
        pub name: String,
        /// Value of the resolver option.
        pub value: Option<String>,
    }

    /// A ResourceClaim of dynamic resource allocation (DRA): one of its sources must be set.
    pub struct PodResourceClaim {
        /// Name by which devices refer to the claim, unique in the VMI.
        pub name: String,
        /// Name of a ResourceClaim in the same namespace.
        pub resource_claim_name: Option<String>,
        /// Name of a ResourceClaimTemplate in the same namespace, from which a claim is created.
        pub resource_claim_template_name: Option<String>,
    }
}
