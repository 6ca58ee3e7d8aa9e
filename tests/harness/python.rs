//! Programs of PyPI, each in an environment of its own.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache;

/// The interpreter that finds a package (`name==version`), installed first if need be.
pub fn with(package: &str) -> io::Result<PathBuf> {
    let environment =
        cache::once("python", &cache::key(&[package]), |directory| install(package, directory))?;
    Ok(environment.join("bin/python"))
}

fn install(package: &str, directory: &Path) -> io::Result<()> {
    run(package, Command::new("virtualenv").arg("--quiet").arg(directory))?;
    run(
        package,
        Command::new(directory.join("bin/python")).args(["-m", "pip", "install", "--quiet", package]),
    )
}

fn run(package: &str, command: &mut Command) -> io::Result<()> {
    let failed = |what: String| io::Error::other(format!("cannot install {package}: {what}"));
    let status = command.status().map_err(|error| failed(format!("{error} (hack/setup test)")))?;
    if status.success() { Ok(()) } else { Err(failed(status.to_string())) }
}
