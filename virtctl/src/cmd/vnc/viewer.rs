use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::{Child, Command};

use super::VncError;
use crate::cli::ViewerType;
use crate::cmd::find_program;

/// How a viewer gets the address.
type Arguments = fn(SocketAddr) -> Vec<String>;
/// The name of a viewer's program, and its arguments.
type Candidate = (&'static str, Arguments);

const REMOTE_VIEWER: Candidate = ("remote-viewer", url);
const TIGER: [Candidate; 2] = [("xtigervncviewer", two_colons), ("vncviewer", two_colons)];
const REAL: Candidate = ("vncviewer", real);
const CHICKEN: Candidate = ("Chicken", one_colon);
/// Programs that show a display, the one with the most comfort first.
const VIEWERS: [Candidate; 4] = [REMOTE_VIEWER, TIGER[0], TIGER[1], ("gvncviewer", display)];

fn url(address: SocketAddr) -> Vec<String> {
    vec![format!("vnc://{address}")]
}

/// With one colon it would be the number of a display.
fn two_colons(address: SocketAddr) -> Vec<String> {
    vec![format!("{}::{}", address.ip(), address.port())]
}

fn one_colon(address: SocketAddr) -> Vec<String> {
    vec![address.to_string()]
}

/// Without its questions about the connection, which does not leave this host unencrypted.
fn real(address: SocketAddr) -> Vec<String> {
    [two_colons(address), vec!["-WarnUnencrypted=0".to_owned(), "-ShareFiles=0".to_owned()]].concat()
}

/// The number of a display, which counts from 5900 and may be negative there.
fn display(address: SocketAddr) -> Vec<String> {
    vec![format!("{}:{}", address.ip(), i32::from(address.port()) - 5900)]
}

/// The programs that viewers of a kind are, or of any.
fn candidates(kind: Option<ViewerType>) -> Vec<Candidate> {
    match kind {
        None => VIEWERS.to_vec(),
        Some(ViewerType::Tiger) => TIGER.to_vec(),
        Some(ViewerType::Chicken) => vec![CHICKEN],
        Some(ViewerType::Real) => vec![REAL],
        Some(ViewerType::RemoteViewer) => vec![REMOTE_VIEWER],
    }
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

/// The viewer at a path, or the first that is installed; of a kind, if one is requested.
fn choose(kind: Option<ViewerType>, path: Option<&Path>) -> Result<(PathBuf, Arguments), VncError> {
    let candidates = candidates(kind);
    let chosen = match (path, candidates.first()) {
        (Some(path), Some((_, arguments))) => Some((path.to_owned(), *arguments)),
        _ => candidates.iter().find_map(|(name, arguments)| Some((find_program(name)?, *arguments))),
    };
    let names = || candidates.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    chosen.ok_or_else(|| VncError::NoViewer(names()))
}

/// Starts a viewer.
pub(super) fn start(
    address: SocketAddr,
    kind: Option<ViewerType>,
    path: Option<&Path>,
) -> Result<Viewer, VncError> {
    let (program, arguments) = choose(kind, path)?;
    let started =
        Command::new(&program).args(arguments(address)).stdin(Stdio::null()).kill_on_drop(true).spawn();
    let program = program.to_string_lossy().into_owned();
    match started {
        Ok(child) => Ok(Viewer { program, child }),
        Err(source) => Err(VncError::Start { program, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 5911);

    #[test]
    fn each_viewer_has_its_own_arguments() {
        let arguments: Vec<_> = VIEWERS.iter().flat_map(|(_, arguments)| arguments(ADDRESS)).collect();
        assert_eq!(arguments, ["vnc://127.0.0.1:5911", "127.0.0.1::5911", "127.0.0.1::5911", "127.0.0.1:11"]);
    }

    #[test]
    fn a_viewer_at_a_path_has_the_arguments_of_its_kind() {
        let path = Path::new("/opt/viewer");
        for (kind, expected) in [
            (ViewerType::Tiger, &["127.0.0.1::5911"][..]),
            (ViewerType::Chicken, &["127.0.0.1:5911"]),
            (ViewerType::Real, &["127.0.0.1::5911", "-WarnUnencrypted=0", "-ShareFiles=0"]),
            (ViewerType::RemoteViewer, &["vnc://127.0.0.1:5911"]),
        ] {
            let (program, arguments) = choose(Some(kind), Some(path)).unwrap();
            assert_eq!(
                (program.as_path(), arguments(ADDRESS)),
                (path, expected.iter().map(|text| (*text).to_owned()).collect()),
                "{kind:?}"
            );
        }
    }
}
