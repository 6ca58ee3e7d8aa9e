//! Guests without an operating system, which rustc builds from `tests/kernel`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What makes an ELF image that starts by PVH, from 2 MiB on.
const OPTIONS: &[&str] = &[
    "--edition=2024",
    "-Copt-level=2",
    "-Cpanic=abort",
    "-Crelocation-model=static",
    "-Ctarget-feature=-crt-static",
    "-Clink-args=-nostdlib -nostartfiles -static -Wl,-e,pvh_start -Wl,--build-id=none",
];

/// Builds the kernel of a hostile driver in `directory`.
///
/// # Errors
/// Where the compiler cannot run, or finds errors: they are the text.
pub fn hostile(directory: &Path) -> io::Result<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let kernel = directory.join("hostile");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/kernel/main.rs");
    let output = Command::new(rustc).args(OPTIONS).arg("-o").arg(&kernel).arg(source).output()?;
    if output.status.success() {
        Ok(kernel)
    } else {
        Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
    }
}
