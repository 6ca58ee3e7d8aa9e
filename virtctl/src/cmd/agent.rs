//! `virtctl guestosinfo`, `fslist` and `userlist`: what a guest's agent says.

use super::Failure;
use crate::cli::{Instance, Server};
use crate::client::Client;

/// Prints it as JSON.
pub(crate) async fn run(server: &Server, args: &Instance, what: &str) -> Result<(), Failure> {
    let client = Client::new(server).await?;
    let told = client.get(&client.part(&args.vmi, what)).await?;
    println!("{}", serde_json::to_string_pretty(&told)?);
    Ok(())
}
