//! `virtctl pause`, `unpause`, `reset` and `soft-reboot`.

use super::{Failure, options};
use crate::cli::{Server, Steered};
use crate::client::Client;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum SteerError {
    #[error("{0:?} is neither vm nor vmi")]
    Kind(String),
}

/// What a user names.
#[derive(Debug, PartialEq, Eq)]
enum Target<'a> {
    Machine(&'a str),
    Instance(&'a str),
}

/// Asks for it, and returns once it is done.
pub(crate) async fn run(server: &Server, args: &Steered, what: &str) -> Result<(), Failure> {
    let client = Client::new(server)?;
    let name = match target(&args.target)? {
        Target::Instance(name) => name,
        Target::Machine(name) => {
            // A machine that is not there is told as such; its instance has its name.
            client.get(&client.machine(name)?).await?;
            name
        }
    };
    client.put(&client.part(name, what), &options(args.dry_run)).await?;
    println!("VMI {name} was scheduled to {what}");
    Ok(())
}

fn target(words: &[String]) -> Result<Target<'_>, SteerError> {
    match words {
        [kind, name] => match kind.to_lowercase().as_str() {
            "vm" | "vms" | "virtualmachine" | "virtualmachines" => Ok(Target::Machine(name)),
            "vmi" | "vmis" | "virtualmachineinstance" | "virtualmachineinstances" => {
                Ok(Target::Instance(name))
            }
            _ => Err(SteerError::Kind(kind.clone())),
        },
        _ => Ok(Target::Instance(words.first().map_or("", String::as_str))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_may_be_said_before_the_name() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(target(&words("vm x")), Ok(Target::Machine("x")));
        assert_eq!(target(&words("VirtualMachineInstance x")), Ok(Target::Instance("x")));
        assert_eq!(target(&words("x")), Ok(Target::Instance("x")));
        assert_eq!(target(&words("pod x")), Err(SteerError::Kind("pod".to_owned())));
    }
}
