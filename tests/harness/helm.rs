//! Helm, by `hack/helm`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The path of Helm, which is fetched now where it is not there.
///
/// # Panics
/// If there is none.
pub fn program() -> PathBuf {
    let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../hack/helm"));
    let output = script.stdin(Stdio::null()).stderr(Stdio::inherit()).output().expect("hack/helm starts");
    assert!(output.status.success(), "hack/helm: {}", output.status);
    String::from_utf8_lossy(&output.stdout).trim().into()
}
