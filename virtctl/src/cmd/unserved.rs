//! Commands that need parts which a server may lack. The server says why it lacks them.

use serde_json::json;

use super::Failure;
use crate::cli::{Guestfs, MemoryDump, MemoryDumpCommand, Server, VmExport};
use crate::client::{Client, ClientError};

#[derive(Debug, thiserror::Error)]
enum UnservedError {
    #[error("error dumping vm memory")]
    Dump(#[source] ClientError),
    #[error("error removing memory dump association")]
    RemoveDump(#[source] ClientError),
    #[error("cannot {operation} {name}: the server has no VirtualMachineExports (export.kubevirt.io)")]
    NoExports { operation: String, name: String },
    #[error(
        "cannot download the memory dump of {0}: that needs a VirtualMachineExport, and the server has none (export.kubevirt.io)"
    )]
    NoDownload(String),
    #[error("cannot attach {0}")]
    Guestfs(String, #[source] ClientError),
    #[error("this virtctl does not {0}: use that of KubeVirt")]
    Client(&'static str),
}

/// Asks for the image of libguestfs' tools.
pub(crate) async fn guestfs(server: &Server, args: &Guestfs) -> Result<(), Failure> {
    let client = Client::new(server).await?;
    let image = client.get(&client.document("guestfs")?).await;
    image.map_err(|error| UnservedError::Guestfs(args.claim.clone(), error))?;
    Err(UnservedError::Client("run libguestfs' tools").into())
}

/// Asks whether there are exports.
pub(crate) async fn vmexport(server: &Server, args: &VmExport) -> Result<(), Failure> {
    let client = Client::new(server).await?;
    client.document("")?;
    let VmExport { operation, name, .. } = args;
    match client.get("/apis/export.kubevirt.io").await {
        Ok(_) => Err(UnservedError::Client("export volumes").into()),
        Err(error) if error.is_not_found() => {
            Err(UnservedError::NoExports { operation: operation.clone(), name: name.clone() }.into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Requests a memory dump, or that it is forgotten.
pub(crate) async fn memory_dump(server: &Server, args: &MemoryDump) -> Result<(), Failure> {
    let client = Client::new(server).await?;
    match &args.command {
        MemoryDumpCommand::Get { vm, claim_name } => {
            // Without one, it is that of the last dump.
            let request = json!({"claimName": claim_name, "phase": "Associating"});
            client.ask(vm, "memorydump", &request).await.map_err(UnservedError::Dump)?;
            println!("Successfully submitted memory dump request of VMI {vm}");
        }
        MemoryDumpCommand::Download { vm, .. } => {
            return Err(UnservedError::NoDownload(vm.clone()).into());
        }
        MemoryDumpCommand::Remove { vm } => {
            let removed = client.ask(vm, "removememorydump", &json!({})).await;
            removed.map_err(UnservedError::RemoveDump)?;
            println!("Successfully submitted remove memory dump association of VMI {vm}");
        }
    }
    Ok(())
}
