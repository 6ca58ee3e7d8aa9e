//! `virtctl addvolume` and `removevolume`.

use serde_json::{Value, json};

use super::{Failure, options};
use crate::cli::{AddVolume, Plugged, Server};
use crate::client::{Client, ClientError};

#[derive(Debug, thiserror::Error)]
enum VolumeError {
    #[error("error adding volume")]
    Adding(#[source] ClientError),
    #[error("error adding volume, Volume {0} is not a DataVolume or PersistentVolumeClaim")]
    NoClaim(String),
    #[error("error removing volume")]
    Removing(#[source] ClientError),
}

/// What a volume is made of.
#[derive(Clone, Copy)]
enum Source {
    DataVolume,
    Claim,
}

pub(crate) async fn add(server: &Server, args: &AddVolume) -> Result<(), Failure> {
    let client = Client::new(server).await?;
    let Plugged { vmi, volume_name, dry_run, .. } = &args.plugged;
    let source = source(&client, volume_name).await?;
    let path = path(&client, vmi, "addvolume").await.map_err(VolumeError::Adding)?;
    client.put(&path, &body(args, source, *dry_run)).await.map_err(VolumeError::Adding)?;
    println!("Successfully submitted add volume request to VM {vmi} for volume {volume_name}");
    Ok(())
}

pub(crate) async fn remove(server: &Server, args: &Plugged) -> Result<(), Failure> {
    let client = Client::new(server).await?;
    let Plugged { vmi, volume_name, dry_run, .. } = args;
    let mut body = options(*dry_run);
    body["name"] = json!(volume_name);
    let path = path(&client, vmi, "removevolume").await.map_err(VolumeError::Removing)?;
    client.put(&path, &body).await.map_err(VolumeError::Removing)?;
    println!("Successfully submitted remove volume request to VM {vmi} for volume {volume_name}");
    Ok(())
}

/// A DataVolume if there is one, else a claim. Where CDI is not installed, many users may not read its kinds.
async fn source(client: &Client, name: &str) -> Result<Source, VolumeError> {
    let data_volume = client.data_volume(name).map_err(VolumeError::Adding)?;
    match exists(client, &data_volume).await {
        Ok(true) => return Ok(Source::DataVolume),
        Ok(false) => {}
        Err(error) if error.is_forbidden() => {}
        Err(error) => return Err(VolumeError::Adding(error)),
    }
    let claim = client.claim(name).map_err(VolumeError::Adding)?;
    match exists(client, &claim).await.map_err(VolumeError::Adding)? {
        true => Ok(Source::Claim),
        false => Err(VolumeError::NoClaim(name.to_owned())),
    }
}

async fn exists(client: &Client, path: &str) -> Result<bool, ClientError> {
    match client.get(path).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// A VM is changed, and with it its instance; an instance itself only where it has no VM.
async fn path(client: &Client, name: &str, what: &str) -> Result<String, ClientError> {
    if exists(client, &client.vm(name)?).await? {
        client.vm_subresource(name, what)
    } else {
        Ok(client.subresource(name, what))
    }
}

fn body(args: &AddVolume, source: Source, dry_run: bool) -> Value {
    let claim = &args.plugged.volume_name;
    let name = args.disk_name.as_ref().unwrap_or(claim);
    let mut disk = json!({"name": name});
    disk[args.disk_type.as_str()] = json!({"bus": args.bus});
    if let Some(serial) = &args.serial {
        disk["serial"] = json!(serial);
    }
    if let Some(cache) = &args.cache {
        disk["cache"] = json!(cache);
    }
    let mut body = options(dry_run);
    body["name"] = json!(name);
    body["disk"] = disk;
    body["volumeSource"] = match source {
        Source::DataVolume => json!({"dataVolume": {"name": claim, "hotpluggable": true}}),
        Source::Claim => json!({"persistentVolumeClaim": {"claimName": claim, "hotpluggable": true}}),
    };
    body
}
