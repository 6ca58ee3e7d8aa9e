use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use vireo_api::v1::{CloudInitSource, Volume};

use super::super::Failure;
use super::FlagError;
use crate::cli::CloudInit;

/// As upstream calls it.
const NAME: &str = "cloudinitdisk";

/// The cloud-init disk, if there is user data.
pub(super) fn volume(args: &CloudInit) -> Result<Option<Volume>, Failure> {
    let source = CloudInitSource {
        user_data: of_user(args)?.unwrap_or_default(),
        user_data_base64: encoded("cloud-init-user-data", args.cloud_init_user_data.as_deref())?,
        network_data_base64: encoded("cloud-init-network-data", args.cloud_init_network_data.as_deref())?,
        ..CloudInitSource::default()
    };
    if source == CloudInitSource::default() {
        return Ok(None);
    }
    let volume = Volume { name: NAME.to_owned(), ..Volume::default() };
    match args.cloud_init.as_str() {
        "nocloud" => Ok(Some(Volume { cloud_init_no_cloud: Some(Box::new(source)), ..volume })),
        "configdrive" => Ok(Some(Volume { cloud_init_config_drive: Some(Box::new(source)), ..volume })),
        _ => {
            let message = "none conflicts with cloud-init data: remove one of the two";
            Err(FlagError::new("cloud-init", message).into())
        }
    }
}

fn encoded(flag: &'static str, text: Option<&str>) -> Result<String, FlagError> {
    let Some(text) = text else { return Ok(String::new()) };
    match STANDARD.decode(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(FlagError::new(flag, format!("invalid base64: {error}"))),
    }
}

/// User data that makes a user.
fn of_user(args: &CloudInit) -> Result<Option<String>, Failure> {
    let mut config = Map::new();
    if let Some(user) = &args.user {
        config.insert("user".to_owned(), json!(user));
    }
    if let Some(file) = &args.password_file {
        let failed = |error| FlagError::new("password-file", format!("{}: {error}", file.display()));
        let password = std::fs::read_to_string(file).map_err(failed)?;
        config.insert("password".to_owned(), json!(password.trim_end_matches(['\r', '\n'])));
        config.insert("chpasswd".to_owned(), json!({"expire": false}));
    }
    if !args.ssh_key.is_empty() {
        config.insert("ssh_authorized_keys".to_owned(), json!(args.ssh_key));
    }
    if config.is_empty() {
        return Ok(None);
    }
    Ok(Some(format!("#cloud-config\n{}", serde_saphyr::to_string(&Value::Object(config))?)))
}
