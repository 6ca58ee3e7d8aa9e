use super::shape::shapes;

shapes! {
    /// Core `PodDNSConfig`.
    pub struct PodDnsConfig {
        /// IP addresses.
        pub nameservers: Vec<String>,
        /// Domains to search.
        pub searches: Vec<String>,
        /// Resolver options.
        pub options: Vec<PodDnsConfigOption>,
    }

    /// A resolver option, `ndots:2`.
    pub struct PodDnsConfigOption {
        /// Its name.
        pub name: String,
        /// Its value.
        pub value: Option<String>,
    }

    /// A handle for a dynamically allocated device.
    pub struct PodResourceClaim {
        /// How it is referred to.
        pub name: String,
        /// An existing claim.
        pub resource_claim_name: Option<String>,
        /// A template claims are made from.
        pub resource_claim_template_name: Option<String>,
    }
}
