use super::Failure;
use crate::cli::{Server, Version};
use crate::client::Client;

/// Prints this command's version, then the server's.
pub(crate) async fn run(server: &Server, args: &Version) -> Result<(), Failure> {
    println!("Client Version: {}", env!("CARGO_PKG_VERSION"));
    if args.client {
        return Ok(());
    }
    let client = Client::new(server).await?;
    let version = client.get(&client.version()?).await?;
    let text = version.get("gitVersion").and_then(|version| version.as_str()).unwrap_or("unknown");
    println!("Server Version: {text}");
    Ok(())
}
