//! `virtctl pause`, `unpause`, `reset` and `soft-reboot`.

use super::target::Kind;
use super::{Failure, options};
use crate::cli::{Server, Steered};
use crate::client::Client;

/// Asks for it, and returns once it is done.
pub(crate) async fn run(server: &Server, args: &Steered, what: &str) -> Result<(), Failure> {
    let client = Client::new(server).await?;
    let (kind, name) = match args.target.as_slice() {
        [kind, name] => (Kind::parse(kind)?, name.as_str()),
        _ => (Kind::Instance, args.target.first().map_or("", String::as_str)),
    };
    if kind == Kind::Machine {
        // A machine that is not there is told as such; its instance has its name.
        client.get(&client.machine(name)?).await?;
    }
    client.put(&client.part(name, what), &options(args.dry_run)).await?;
    println!("VMI {name} was scheduled to {what}");
    Ok(())
}
