//! `virtctl guestosinfo`, `fslist` and `userlist`: data of the guest agent.

use super::Failure;
use crate::cli::{Instance, Server};
use crate::client::Client;

/// Prints it as JSON.
pub(crate) async fn run(server: &Server, args: &Instance, what: &str) -> Result<(), Failure> {
    let client = Client::new(server).await?;
    let response = client.get(&client.subresource(&args.vmi, what)).await?;
    println!("{}", serde_json::to_string_pretty(&response)?);
    Ok(())
}
