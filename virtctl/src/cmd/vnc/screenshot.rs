use std::io::Write as _;

use super::super::Failure;
use crate::cli::Screenshot;
use crate::client::Client;

/// The name of standard output.
const STDOUT: &str = "-";

#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}")]
struct WriteError {
    path: String,
    #[source]
    source: std::io::Error,
}

/// Saves the current contents of the display, as PNG.
pub(super) async fn run(client: &Client, args: &Screenshot) -> Result<(), Failure> {
    let move_cursor = if args.move_cursor { "?moveCursor=true" } else { "" };
    let path = format!("{}{move_cursor}", client.subresource(&args.vmi, "vnc/screenshot"));
    let picture = client.get_bytes(&path, "image/png").await?;
    let written = if args.file == STDOUT {
        std::io::stdout().lock().write_all(&picture)
    } else {
        std::fs::write(&args.file, &picture)
    };
    written.map_err(|source| WriteError { path: args.file.clone(), source })?;
    Ok(())
}
