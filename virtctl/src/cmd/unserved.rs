//! Commands that need parts which a server may lack. The server says why it lacks them.

use super::Failure;
use crate::cli::{Guestfs, Server, VmExport};
use crate::client::{Client, ClientError};

#[derive(Debug, thiserror::Error)]
enum UnservedError {
    #[error("cannot {operation} {name}: the server has no VirtualMachineExports (export.kubevirt.io)")]
    NoExports { operation: String, name: String },
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
