use super::shape::{ListType, shapes};

shapes! {
    /// Keys or a password put into the guest.
    pub struct AccessCredential {
        /// Public keys.
        pub ssh_public_key: Option<SshPublicKeyAccessCredential>,
        /// Users and passwords.
        pub user_password: Option<UserPasswordAccessCredential>,
    }

    /// Public keys.
    pub struct SshPublicKeyAccessCredential {
        /// Where they are.
        pub source: CredentialSource,
        /// How they get in.
        pub propagation_method: PropagationMethod,
    }

    /// Users and passwords.
    pub struct UserPasswordAccessCredential {
        /// Where they are.
        pub source: CredentialSource,
        /// How they get in.
        pub propagation_method: PropagationMethod,
    }

    /// Where credentials are.
    pub struct CredentialSource {
        /// In a secret.
        pub secret: Option<AccessCredentialSecretSource>,
    }

    /// A secret.
    pub struct AccessCredentialSecretSource {
        /// Its name.
        pub secret_name: String,
    }

    /// How credentials get in: one of these.
    pub struct PropagationMethod {
        /// In the config drive.
        pub config_drive: Option<PropagationByDisk>,
        /// In the NoCloud disk.
        pub no_cloud: Option<PropagationByDisk>,
        /// Through the guest agent.
        pub qemu_guest_agent: Option<PropagationByAgent>,
    }

    /// On a disk made at start.
    pub struct PropagationByDisk {}

    /// Through the guest agent.
    pub struct PropagationByAgent {
        /// Whose keys.
        pub users: Vec<String> => ListType::Set,
    }
}
