use std::net::SocketAddr;
use std::process::Stdio;

use tokio::process::{Child, Command};

use super::VncError;
use crate::cmd::find_program;

/// How a viewer gets the address.
type Argument = fn(SocketAddr) -> String;

/// Programs that show a display, the one with the most comfort first.
const VIEWERS: [(&str, Argument); 4] = [
    ("remote-viewer", url),
    ("xtigervncviewer", two_colons),
    ("vncviewer", two_colons),
    ("gvncviewer", display),
];

fn url(address: SocketAddr) -> String {
    format!("vnc://{address}")
}

/// With one colon it would be the number of a display.
fn two_colons(address: SocketAddr) -> String {
    format!("{}::{}", address.ip(), address.port())
}

/// The number of a display, which counts from 5900 and may be negative there.
fn display(address: SocketAddr) -> String {
    format!("{}:{}", address.ip(), i32::from(address.port()) - 5900)
}

/// A viewer, running. Dropping it ends it.
pub(super) struct Viewer {
    program: String,
    child: Child,
}

impl Viewer {
    /// Waits until it is closed; one that fails is an error.
    pub(super) async fn ended(&mut self) -> Result<(), VncError> {
        let status = self.child.wait().await.map_err(VncError::Lost)?;
        if status.success() {
            return Ok(());
        }
        Err(VncError::Viewer { program: self.program.clone(), status })
    }
}

/// Starts the first viewer that is installed.
pub(super) fn start(address: SocketAddr) -> Result<Viewer, VncError> {
    let found = VIEWERS.iter().find_map(|(name, argument)| Some((find_program(name)?, argument)));
    let names = || VIEWERS.map(|(name, _)| name).join(", ");
    let (program, argument) = found.ok_or_else(|| VncError::NoViewer(names()))?;
    let started =
        Command::new(&program).arg(argument(address)).stdin(Stdio::null()).kill_on_drop(true).spawn();
    let program = program.to_string_lossy().into_owned();
    match started {
        Ok(child) => Ok(Viewer { program, child }),
        Err(source) => Err(VncError::Start { program, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_viewer_has_its_own_arguments() {
        let address = "127.0.0.1:5911".parse().unwrap();
        let arguments: Vec<_> = VIEWERS.iter().map(|(_, argument)| argument(address)).collect();
        assert_eq!(arguments, ["vnc://127.0.0.1:5911", "127.0.0.1::5911", "127.0.0.1::5911", "127.0.0.1:11"]);
    }
}
