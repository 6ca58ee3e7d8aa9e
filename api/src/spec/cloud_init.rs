use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Field;
use super::report::Findings;
use crate::v1;

/// The most that is taken inline, as KubeVirt has it: more has to be in a secret.
const INLINE: usize = 2048;

/// What cloud-init in the guest is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloudInit {
    user_data: Option<CloudInitData>,
    network_data: Option<CloudInitData>,
}

/// Where a file for cloud-init comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloudInitData {
    /// The manifest.
    Inline(Vec<u8>),
    /// An entry of the Secret of this name.
    Secret(String),
}

impl CloudInit {
    /// The file `user-data` of NoCloud, or `user_data` of a config drive.
    pub fn user_data(&self) -> Option<&CloudInitData> {
        self.user_data.as_ref()
    }

    /// The file `network-config` of NoCloud, or `network_data.json` of a config drive.
    pub fn network_data(&self) -> Option<&CloudInitData> {
        self.network_data.as_ref()
    }
}

pub(super) fn read(source: &v1::CloudInitSource, at: &Field, found: &mut Findings) -> Option<CloudInit> {
    let before = found.problems.len();
    let user_data = one(
        &source.user_data,
        &source.user_data_base64,
        source.secret_ref.as_ref(),
        [&at.at("userData"), &at.at("userDataBase64"), &at.at("secretRef")],
        found,
    );
    let network_data = one(
        &source.network_data,
        &source.network_data_base64,
        source.network_data_secret_ref.as_ref(),
        [&at.at("networkData"), &at.at("networkDataBase64"), &at.at("networkDataSecretRef")],
        found,
    );
    if found.problems.len() > before {
        return None;
    }
    if user_data.is_none() && network_data.is_none() {
        found.required_value(at, "give userData, userDataBase64, secretRef, networkData, networkDataBase64 or networkDataSecretRef");
        return None;
    }
    Some(CloudInit { user_data, network_data })
}

/// Reads the one of the three ways that is used. `fields` are theirs, in order.
fn one(
    plain: &str,
    base64: &str,
    secret: Option<&v1::LocalObjectReference>,
    fields: [&Field; 3],
    found: &mut Findings,
) -> Option<CloudInitData> {
    let [plain_field, base64_field, secret_field] = fields;
    let ways = [!plain.is_empty(), !base64.is_empty(), secret.is_some()];
    if ways.iter().filter(|used| **used).count() > 1 {
        let last = if secret.is_some() { secret_field } else { base64_field };
        found.invalid(last, "is one of several sources of the same data: keep one");
        return None;
    }
    if let Some(secret) = secret {
        let name = super::projected::name((&secret.name, &secret_field.at("name")), "Secret", found);
        return Some(CloudInitData::Secret(name));
    }
    let (field, data) = if base64.is_empty() {
        (plain_field, plain.as_bytes().to_vec())
    } else {
        match STANDARD.decode(base64) {
            Ok(data) => (base64_field, data),
            Err(error) => {
                found.invalid(base64_field, format!("Invalid value: must be base64: {error}"));
                return None;
            }
        }
    };
    if data.len() > INLINE {
        found.invalid(field, format!("is {} bytes long: at most {INLINE} are taken inline", data.len()));
    }
    (!data.is_empty()).then_some(CloudInitData::Inline(data))
}
