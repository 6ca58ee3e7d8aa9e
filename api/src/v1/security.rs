use super::shape::shapes;

shapes! {
    /// Launch security (confidential computing) of the VMI: one of its members is set.
    pub struct LaunchSecurity {
        /// AMD Secure Encrypted Virtualization (SEV and SEV-ES).
        pub sev: Option<Sev>,
        /// AMD SEV with Secure Nested Paging (SEV-SNP).
        pub snp: Option<SevSnp>,
        /// Intel Trust Domain Extensions (TDX).
        pub tdx: Option<Tdx>,
    }

    /// AMD Secure Encrypted Virtualization (SEV and SEV-ES).
    pub struct Sev {
        /// Guest policy flags.
        pub policy: Option<SevPolicy>,
        /// If set, the VMI is started paused, and runs after a successful attestation.
        pub attestation: Option<SevAttestation>,
        /// Base64-encoded session blob.
        pub session: String,
        /// Base64-encoded Diffie-Hellman key of the guest owner.
        pub dh_cert: String,
    }

    /// Guest policy flags of SEV.
    pub struct SevPolicy {
        /// Whether SEV-ES is required. Defaults to false.
        pub encrypted_state: Option<bool>,
    }

    /// Attestation of a VMI with SEV.
    pub struct SevAttestation {}

    /// AMD SEV with Secure Nested Paging (SEV-SNP).
    pub struct SevSnp {}

    /// Intel Trust Domain Extensions (TDX).
    pub struct Tdx {}
}
