//! `virtctl create`: manifests for `kubectl create -f -`. No request is sent; what is printed passed the same validation
//! that servers have.

mod cloud_init;
mod data_volumes;
mod infer;
mod kinds;
mod params;
mod vm;
mod volumes;

use serde::Serialize;
use vireo_api::spec::Bytes;
use vireo_api::v1::{ObjectMeta, Quantity};

use super::Failure;
use crate::cli::{Create, CreateCommand, Server};

/// Length of a generated name's suffix.
const LETTERS: usize = 5;

#[derive(Debug, thiserror::Error)]
#[error("--{flag}: {message}")]
struct FlagError {
    flag: &'static str,
    message: String,
}

impl FlagError {
    fn new(flag: &'static str, message: impl Into<String>) -> Self {
        Self { flag, message: message.into() }
    }
}

/// Prints a manifest.
pub(crate) fn run(server: &Server, args: &Create) -> Result<(), Failure> {
    let namespace = server.namespace.as_deref();
    match &args.command {
        CreateCommand::Vm(args) => print(&vm::vm(args, namespace)?),
        CreateCommand::Instancetype(args) => print(&kinds::instancetype(args, namespace)?),
        CreateCommand::Preference(args) => print(&kinds::preference(args, namespace)),
    }
}

fn print(object: &impl Serialize) -> Result<(), Failure> {
    // By way of JSON, which leaves out what is not there at every level.
    print!("{}", serde_saphyr::to_string(&serde_json::to_value(object)?)?);
    Ok(())
}

fn random_name(prefix: &str) -> String {
    let letters: String = (0..LETTERS).map(|_| fastrand::lowercase()).collect();
    format!("{prefix}-{letters}")
}

fn metadata(name: Option<&str>, prefix: &str, namespace: Option<&str>) -> ObjectMeta {
    ObjectMeta {
        name: name.map_or_else(|| random_name(prefix), str::to_owned),
        namespace: namespace.unwrap_or_default().to_owned(),
        ..ObjectMeta::default()
    }
}

fn quantity(flag: &'static str, text: &str) -> Result<Quantity, FlagError> {
    let quantity = Quantity(text.to_owned());
    match Bytes::try_from(&quantity) {
        Ok(_) => Ok(quantity),
        Err(error) => Err(FlagError::new(flag, error.to_string())),
    }
}
