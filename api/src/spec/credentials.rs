//! Keys and passwords of Secrets that guests get: `accessCredentials`.

use super::projected::name;
use super::report::Findings;
use super::{Field, VolumeSource};
use crate::v1;

/// The keys or passwords of a Secret, and how the guest gets them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessCredential {
    index: usize,
    field: Field,
    secret: String,
    method: CredentialMethod,
}

impl AccessCredential {
    /// The position in the manifest, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The field that names the Secret: `spec.accessCredentials[0].sshPublicKey.source.secret`.
    pub fn field(&self) -> &Field {
        &self.field
    }

    /// The name of the Secret, in the namespace of the VMI.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// How the guest gets it.
    pub fn method(&self) -> &CredentialMethod {
        &self.method
    }

    /// Whether the guest agent sets it while the guest runs.
    pub fn is_by_agent(&self) -> bool {
        matches!(self.method, CredentialMethod::AgentKeys { .. } | CredentialMethod::AgentPasswords)
    }
}

/// How a guest gets keys or passwords. Each entry of the Secret is a public SSH key, or the password of the user of that
/// name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialMethod {
    /// Public SSH keys in the metadata of NoCloud volumes.
    NoCloudKeys,
    /// Public SSH keys in the metadata of config drives.
    ConfigDriveKeys,
    /// Public SSH keys that the guest agent adds to those of users.
    AgentKeys {
        /// At least one.
        users: Vec<String>,
    },
    /// Passwords that the guest agent sets.
    AgentPasswords,
}

/// Which volumes for cloud-init there are.
struct Seeds {
    no_cloud: bool,
    config_drive: bool,
}

pub(super) fn read(spec: &v1::VirtualMachineInstanceSpec, found: &mut Findings) -> Vec<AccessCredential> {
    let at = Field::new("spec.accessCredentials");
    let seeds = Seeds {
        no_cloud: spec.volumes.iter().any(|volume| volume.cloud_init_no_cloud.is_some()),
        config_drive: spec.volumes.iter().any(|volume| volume.cloud_init_config_drive.is_some()),
    };
    let mut credentials = Vec::new();
    for (index, credential) in spec.access_credentials.iter().enumerate() {
        let at = at.index(index);
        let read = match (&credential.ssh_public_key, &credential.user_password) {
            (Some(key), None) => {
                let of = at.at("sshPublicKey");
                let method = key_method(&key.propagation_method, (&seeds, &at), found);
                secret(&key.source, (&of, &at), found).zip(method)
            }
            (None, Some(password)) => {
                let of = at.at("userPassword");
                let method = password_method(&password.propagation_method, &at, found);
                secret(&password.source, (&of, &at), found).zip(method)
            }
            (None, None) | (Some(_), Some(_)) => {
                found.invalid(&at, format!("{at} must have exactly one access credential type set"));
                None
            }
        };
        credentials.extend(read.map(|((secret, field), method)| AccessCredential {
            index,
            field,
            secret,
            method,
        }));
    }
    credentials
}

/// The Secret that a credential `of` comes from.
fn secret(
    source: &v1::CredentialSource,
    (of, at): (&Field, &Field),
    found: &mut Findings,
) -> Option<(String, Field)> {
    let field = of.at("source");
    let Some(secret) = &source.secret else {
        found.invalid(&field, format!("{at} must have exactly one source set"));
        return None;
    };
    let field = field.at("secret");
    Some((name((&secret.secret_name, &field.at("secretName")), "Secret", found), field))
}

fn key_method(
    method: &v1::PropagationMethod,
    (seeds, at): (&Seeds, &Field),
    found: &mut Findings,
) -> Option<CredentialMethod> {
    let field = at.at("sshPublicKey").at("propagationMethod");
    let mut needs = |is_asked: bool, is_there: bool, what: &str| {
        if is_asked && !is_there {
            let rule = format!("a {what} volume to exist when the {what} propagationMethod is in use.");
            found.invalid(&field, format!("{at} requires {rule}"));
        }
    };
    needs(method.no_cloud.is_some(), seeds.no_cloud, "noCloud");
    needs(method.config_drive.is_some(), seeds.config_drive, "configDrive");
    let agent = method.qemu_guest_agent.as_ref();
    if let Some(agent) = agent {
        let field = field.at("qemuGuestAgent").at("users");
        if agent.users.is_empty() {
            found.invalid(&field, format!("{at} requires at least one user to be present in the users list"));
        }
        for (index, user) in agent.users.iter().enumerate().filter(|(_, user)| user.is_empty()) {
            found.invalid_value(&field.index(index), user, "must be the name of a user of the guest");
        }
    }
    match (&method.no_cloud, &method.config_drive, agent) {
        (Some(_), None, None) => Some(CredentialMethod::NoCloudKeys),
        (None, Some(_), None) => Some(CredentialMethod::ConfigDriveKeys),
        (None, None, Some(agent)) => Some(CredentialMethod::AgentKeys { users: agent.users.clone() }),
        _ => {
            found.invalid(&field, format!("{at} must have exactly one propagationMethod set"));
            None
        }
    }
}

fn password_method(
    method: &v1::PropagationMethod,
    at: &Field,
    found: &mut Findings,
) -> Option<CredentialMethod> {
    let field = at.at("userPassword").at("propagationMethod");
    for (name, is_set) in
        [("configDrive", method.config_drive.is_some()), ("noCloud", method.no_cloud.is_some())]
    {
        if is_set {
            found.not_supported(&field.at(name), "passwords are set by the guest agent: use qemuGuestAgent");
        }
    }
    let Some(agent) = &method.qemu_guest_agent else {
        found.invalid(&field, format!("{at} must have exactly one propagationMethod set"));
        return None;
    };
    if !agent.users.is_empty() {
        let text = "is for SSH keys: the users of passwords are the keys of the Secret";
        found.invalid(&field.at("qemuGuestAgent").at("users"), text);
    }
    Some(CredentialMethod::AgentPasswords)
}

impl CredentialMethod {
    /// Whether a volume of this source has it in its metadata.
    pub fn is_in(&self, source: &VolumeSource) -> bool {
        matches!(
            (self, source),
            (Self::NoCloudKeys, VolumeSource::CloudInitNoCloud(_))
                | (Self::ConfigDriveKeys, VolumeSource::CloudInitConfigDrive(_))
        )
    }
}
