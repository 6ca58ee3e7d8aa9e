//! `virtctl objectgraph`: what a virtual machine depends on.

use std::collections::BTreeMap;

use serde_json::json;

use super::Failure;
use crate::cli::{ObjectGraph, Server};
use crate::client::{Client, ClientError};

#[derive(Debug, thiserror::Error)]
enum ObjectGraphError {
    #[error("--selector: {0:?} must be LABEL=VALUE")]
    Selector(String),
    #[error("error listing object graph of {kind} {name}")]
    List { kind: &'static str, name: String, source: ClientError },
}

/// Prints it.
pub(crate) async fn run(server: &Server, args: &ObjectGraph) -> Result<(), Failure> {
    let mut labels = BTreeMap::new();
    for one in &args.selector {
        let (label, value) = one.split_once('=').ok_or_else(|| ObjectGraphError::Selector(one.clone()))?;
        labels.insert(label, value);
    }
    let mut options = json!({"includeOptionalNodes": !args.exclude_optional});
    if !labels.is_empty() {
        options["labelSelector"] = json!({"matchLabels": labels});
    }
    let client = Client::new(server).await?;
    let (kind, path) = match args.vmi {
        true => ("VirtualMachineInstance", client.subresource(&args.name, "objectgraph")),
        false => ("VirtualMachine", client.vm_subresource(&args.name, "objectgraph")?),
    };
    let graph = client.get_with(&path, &options).await;
    let graph = graph.map_err(|source| ObjectGraphError::List { kind, name: args.name.clone(), source })?;
    match args.output.as_str() {
        "yaml" => print!("{}", serde_saphyr::to_string(&graph)?),
        _ => println!("{}", serde_json::to_string_pretty(&graph)?),
    }
    Ok(())
}
