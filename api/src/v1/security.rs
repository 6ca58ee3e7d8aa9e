use super::shape::shapes;

shapes! {
    /// Confidential computing: one of its kinds.
    pub struct LaunchSecurity {
        /// AMD SEV and SEV-ES.
        pub sev: Option<Sev>,
        /// AMD SEV-SNP.
        pub snp: Option<SevSnp>,
        /// Intel TDX.
        pub tdx: Option<Tdx>,
    }

    /// AMD SEV and SEV-ES.
    pub struct Sev {
        /// What the guest's owner demands.
        pub policy: Option<SevPolicy>,
        /// The start waits for an attestation.
        pub attestation: Option<SevAttestation>,
        /// Base64.
        pub session: String,
        /// Base64.
        pub dh_cert: String,
    }

    /// What the guest's owner demands.
    pub struct SevPolicy {
        /// SEV-ES.
        pub encrypted_state: Option<bool>,
    }

    /// The start waits for an attestation.
    pub struct SevAttestation {}

    /// AMD SEV-SNP.
    pub struct SevSnp {}

    /// Intel TDX.
    pub struct Tdx {}
}
