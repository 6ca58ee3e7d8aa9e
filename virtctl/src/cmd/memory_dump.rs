//! `virtctl memory-dump`: the server writes the memory of a VM to a claim, which may be made for it.

use serde_json::{Value, json};
use vireo_api::spec::{Bytes, memory_dump_size};
use vireo_api::v1::VirtualMachineInstance;

use super::Failure;
use crate::cli::{MemoryDump, MemoryDumpCommand, NewClaim, Server};
use crate::client::{Client, ClientError};

/// What the file system of a claim takes of it, in percent: the default of CDI.
const FILE_SYSTEM: u64 = 6;
const MEBIBYTE: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
enum DumpError {
    #[error("error dumping vm memory")]
    Dump(#[source] ClientError),
    #[error("error removing memory dump association")]
    RemoveDump(#[source] ClientError),
    #[error(
        "cannot download the memory dump of {0}: that needs a VirtualMachineExport, and the server has none (export.kubevirt.io)"
    )]
    NoDownload(String),
    #[error("cannot make the claim {0} for the memory dump")]
    Claim(String, #[source] ClientError),
    #[error("the virtual machine instance {0} does not say how much memory it has")]
    NoMemory(String),
}

/// Requests a memory dump, or that it is forgotten.
pub(crate) async fn memory_dump(server: &Server, args: &MemoryDump) -> Result<(), Failure> {
    let client = Client::new(server).await?;
    match &args.command {
        MemoryDumpCommand::Get { vm, claim_name, new_claim } => {
            if let (true, Some(claim)) = (new_claim.create_claim, claim_name) {
                create(&client, vm, claim, new_claim).await?;
            }
            // Without a claim, it is that of the last dump.
            let request = json!({"claimName": claim_name, "phase": "Associating"});
            client.ask(vm, "memorydump", &request).await.map_err(DumpError::Dump)?;
            println!("Successfully submitted memory dump request of VMI {vm}");
        }
        MemoryDumpCommand::Download { vm, .. } => {
            return Err(DumpError::NoDownload(vm.clone()).into());
        }
        MemoryDumpCommand::Remove { vm } => {
            let removed = client.ask(vm, "removememorydump", &json!({})).await;
            removed.map_err(DumpError::RemoveDump)?;
            println!("Successfully submitted remove memory dump association of VMI {vm}");
        }
    }
    Ok(())
}

/// Makes a claim that is large enough for the memory of a VM that runs.
async fn create(client: &Client, vm: &str, name: &str, wanted: &NewClaim) -> Result<(), Failure> {
    let vmi = client.get(&client.kubevirt(&format!("virtualmachineinstances/{vm}"))?).await?;
    let vmi: VirtualMachineInstance = serde_json::from_value(vmi).map_err(ClientError::Json)?;
    let needed = memory_dump_size(&vmi.spec).ok_or_else(|| DumpError::NoMemory(vm.to_owned()))?;
    let claims = format!("/api/v1/namespaces/{}/persistentvolumeclaims", client.namespace());
    let made = client.post(&claims, &manifest(name, needed, wanted)).await;
    made.map_err(|error| DumpError::Claim(name.to_owned(), error))?;
    println!("PVC {}/{name} created", client.namespace());
    Ok(())
}

fn manifest(name: &str, needed: Bytes, wanted: &NewClaim) -> Value {
    let size = (needed.get() / 100).saturating_mul(100 + FILE_SYSTEM).div_ceil(MEBIBYTE);
    let mut spec = json!({
        "accessModes": [wanted.access_mode], "resources": {"requests": {"storage": format!("{size}Mi")}},
    });
    if let Some(class) = &wanted.storage_class {
        spec["storageClassName"] = json!(class);
    }
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec})
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn command(line: &str) -> Result<MemoryDumpCommand, clap::Error> {
        let words = ["virtctl", "memory-dump"].into_iter().chain(line.split(' '));
        let Command::MemoryDump(args) = Cli::try_parse_from(words)?.command else { panic!("{line}") };
        Ok(args.command)
    }

    #[test]
    fn a_claim_has_room_for_memory_and_file_system() {
        let line = "get web --claim-name=dumps --create-claim --storage-class=local";
        let MemoryDumpCommand::Get { new_claim, .. } = command(line).unwrap() else { panic!("{line}") };
        let claim = manifest("dumps", Bytes::mebibytes(1124), &new_claim);
        assert_eq!(
            claim["spec"],
            json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1192Mi"}},
                "storageClassName": "local"})
        );
    }

    #[test]
    fn a_claim_that_is_made_has_a_name() {
        for line in [
            "get web --create-claim",
            "get web --claim-name=dumps --storage-class=local",
            "get web --claim-name=dumps --create-claim --access-mode=ReadOnlyMany",
        ] {
            assert!(command(line).is_err(), "{line}");
        }
    }
}
