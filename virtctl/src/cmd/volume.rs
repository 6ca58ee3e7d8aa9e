//! `virtctl addvolume` and `removevolume`.

use hyper::StatusCode;
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

pub(crate) async fn add(server: &Server, args: &AddVolume) -> Result<(), Failure> {
    let client = Client::new(server).await?;
    let Plugged { vmi, volume_name, persist, dry_run } = &args.plugged;
    let path = path(&client, vmi, *persist, "addvolume")?;
    match client.get(&client.claim(volume_name)?).await {
        Ok(_) => {}
        Err(ClientError::Refused { code: StatusCode::NOT_FOUND, .. }) => {
            return Err(VolumeError::NoClaim(volume_name.clone()).into());
        }
        Err(error) => return Err(VolumeError::Adding(error).into()),
    }
    client.put(&path, &body(args, *dry_run)).await.map_err(VolumeError::Adding)?;
    println!("Successfully submitted add volume request to VM {vmi} for volume {volume_name}");
    Ok(())
}

pub(crate) async fn remove(server: &Server, args: &Plugged) -> Result<(), Failure> {
    let client = Client::new(server).await?;
    let Plugged { vmi, volume_name, persist, dry_run } = args;
    let mut body = options(*dry_run);
    body["name"] = json!(volume_name);
    let path = path(&client, vmi, *persist, "removevolume")?;
    client.put(&path, &body).await.map_err(VolumeError::Removing)?;
    println!("Successfully submitted remove volume request to VM {vmi} for volume {volume_name}");
    Ok(())
}

/// A persistent change is requested of the VM, else of its instance alone.
fn path(client: &Client, name: &str, persist: bool, what: &str) -> Result<String, ClientError> {
    let vm = client.vm_subresource(name, what)?;
    Ok(if persist { vm } else { client.subresource(name, what) })
}

fn body(args: &AddVolume, dry_run: bool) -> Value {
    let name = &args.plugged.volume_name;
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
    body["volumeSource"] = json!({"persistentVolumeClaim": {"claimName": name, "hotpluggable": true}});
    body
}
