//! `virtctl expand`: a virtual machine expanded with its instance type and preference.

use std::io::Read as _;

use serde_json::Value;

use super::Failure;
use crate::cli::{Expand, Server};
use crate::client::Client;

#[derive(Debug, thiserror::Error)]
enum ExpandError {
    #[error("cannot read {0}")]
    Read(String, #[source] std::io::Error),
    #[error("{0} is not a virtual machine in YAML")]
    Syntax(String, #[source] Box<dyn std::error::Error>),
}

/// Prints it.
pub(crate) async fn run(server: &Server, args: &Expand) -> Result<(), Failure> {
    let client = Client::new(server).await?;
    let expanded = match (&args.vm, &args.file) {
        (Some(name), _) => client.get(&client.vm_subresource(name, "expand-spec")?).await?,
        (None, file) => {
            let vm = read(file.as_deref().unwrap_or("-"))?;
            serde_json::from_slice(&client.put(&client.expand()?, &vm).await?)?
        }
    };
    match args.output.as_str() {
        "json" => println!("{}", serde_json::to_string_pretty(&expanded)?),
        _ => print!("{}", serde_saphyr::to_string(&expanded)?),
    }
    Ok(())
}

fn read(file: &str) -> Result<Value, ExpandError> {
    let failed = |error| ExpandError::Read(file.to_owned(), error);
    let mut text = String::new();
    match file {
        "-" => std::io::stdin().read_to_string(&mut text).map_err(failed)?,
        path => {
            text = std::fs::read_to_string(path).map_err(failed)?;
            text.len()
        }
    };
    serde_saphyr::from_str(&text).map_err(|error| ExpandError::Syntax(file.to_owned(), Box::new(error)))
}
