//! `virtctl pause`, `unpause`, `reset` and `soft-reboot`.

use super::target::Kind;
use super::{Failure, options};
use crate::cli::{PauseArgs, Server};
use crate::client::Client;

/// Calls the subresource, and returns once it is done.
pub(crate) async fn run(server: &Server, args: &PauseArgs, what: &str) -> Result<(), Failure> {
    let client = Client::new(server).await?;
    let (kind, name) = match args.target.as_slice() {
        [kind, name] => (Kind::parse(kind)?, name.as_str()),
        _ => (Kind::Vmi, args.target.first().map_or("", String::as_str)),
    };
    if kind == Kind::Vm {
        // A missing VM is reported as such; its instance has the same name.
        client.get(&client.vm(name)?).await?;
    }
    client.put(&client.subresource(name, what), &options(args.dry_run)).await?;
    println!("VMI {name} was scheduled to {what}");
    Ok(())
}
