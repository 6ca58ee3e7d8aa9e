//! A VNC client that others wrote: PyPI's `vncdotool`, in an environment of its own.

use std::fs::File;
use std::io::{self, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use crate::picture::Picture;
use crate::python;

const PACKAGE: &str = "vncdotool==1.4.2";
/// Its command; the script beside Python names the directory it was installed in.
const RUN: &str = "import sys; from vncdotool.command import vncdo; sys.exit(vncdo())";
/// For one run, in seconds.
const TIMEOUT: &str = "90";

/// The client.
#[derive(Clone, Debug)]
pub struct Client {
    python: PathBuf,
}

impl Client {
    /// The client, installed first if need be.
    pub fn get() -> io::Result<Self> {
        Ok(Self { python: python::with(PACKAGE)? })
    }

    /// Connects, acts (`type TEXT`, `key NAME`, `move X Y`, `click N`), looks and leaves: what it saw at last. The server
    /// answers in order, so by then it has read what was typed.
    pub fn act(&self, server: SocketAddr, actions: &[&str]) -> io::Result<Picture> {
        let scratch = tempfile::tempdir()?;
        let path = scratch.path().join("seen.png");
        let mut vncdo = Command::new(&self.python);
        vncdo.args(["-c", RUN, "-t", TIMEOUT, "-s"]).arg(format!("{}::{}", server.ip(), server.port()));
        let output = vncdo.args(actions).arg("capture").arg(&path).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(io::Error::other(format!("vncdo {actions:?}: {}\n{said}", output.status)));
        }
        Picture::png(BufReader::new(File::open(path)?))
    }
}
