use super::Failure;
use crate::cli::Server;
use crate::client::Client;

/// Prints this command's version, then the server's if one answers.
pub(crate) async fn run(server: &Server) -> Result<(), Failure> {
    println!("Client Version: {}", env!("CARGO_PKG_VERSION"));
    let version = Client::new(server)?.get("/version").await?;
    let text = version.get("gitVersion").and_then(|version| version.as_str()).unwrap_or("unknown");
    println!("Server Version: {text}");
    Ok(())
}
