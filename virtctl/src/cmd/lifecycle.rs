//! `virtctl start`, `stop` and `restart`.

use serde_json::json;

use super::Failure;
use crate::cli::{Machine, Server};
use crate::client::Client;

/// Asks for it; the server does it in its own time.
pub(crate) async fn run(server: &Server, args: &Machine, what: &str) -> Result<(), Failure> {
    let options = if args.dry_run { json!({"dryRun": ["All"]}) } else { json!({}) };
    Client::new(server)?.ask(&args.vm, what, &options).await?;
    println!("VM {} was scheduled to {what}", args.vm);
    Ok(())
}
