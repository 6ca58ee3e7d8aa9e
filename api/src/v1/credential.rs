use super::shape::{ListType, shapes};

shapes! {
    /// A credential that is delivered to the guest: one of its members must be set.
    pub struct AccessCredential {
        /// SSH public keys that are allowed to log in.
        pub ssh_public_key: Option<SshPublicKeyAccessCredential>,
        /// Passwords that are set for users of the guest.
        pub user_password: Option<UserPasswordAccessCredential>,
    }

    /// SSH public keys, and how they are delivered to the guest.
    pub struct SshPublicKeyAccessCredential {
        /// Where the public keys are taken from.
        pub source: CredentialSource,
        /// How the public keys are delivered to the guest.
        pub propagation_method: PropagationMethod,
    }

    /// Passwords of users, and how they are delivered to the guest.
    pub struct UserPasswordAccessCredential {
        /// Where the users and passwords are taken from.
        pub source: CredentialSource,
        /// How the passwords are delivered to the guest.
        pub propagation_method: PropagationMethod,
    }

    /// Where credentials are taken from: one of its members must be set.
    pub struct CredentialSource {
        /// Secret that holds the credentials.
        pub secret: Option<AccessCredentialSecretSource>,
    }

    /// Reference to a Secret that holds credentials.
    pub struct AccessCredentialSecretSource {
        /// Name of the Secret in the namespace of the VMI.
        pub secret_name: String,
    }

    /// How credentials are delivered to the guest: one of its members must be set.
    pub struct PropagationMethod {
        /// Delivers the credentials in the metadata of the cloud-init ConfigDrive volume.
        pub config_drive: Option<PropagationByDisk>,
        /// Delivers the credentials in the metadata of the cloud-init NoCloud volume.
        pub no_cloud: Option<PropagationByDisk>,
        /// Delivers the credentials while the VMI runs, by the QEMU guest agent.
        pub qemu_guest_agent: Option<PropagationByAgent>,
    }

    /// Delivery of credentials by a cloud-init disk, when the VMI starts.
    pub struct PropagationByDisk {}

    /// Delivery of credentials by the QEMU guest agent.
    pub struct PropagationByAgent {
        /// Users of the guest whose `authorized_keys` receive the public keys. Passwords name their users in the
        /// Secret.
        pub users: Vec<String> => ListType::Set,
    }
}
