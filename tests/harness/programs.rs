//! Our own programs, as scenarios run them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The directory with `vmm`, `virt-launcher`, `virt-handler`, `virtctl` and `vireo`: `$VIREO_BIN_DIR`, or where `nested`
/// (this crate's binary, `env!("CARGO_BIN_EXE_nested")`) is, built now.
///
/// # Panics
/// If they do not build.
pub fn directory(nested: &str) -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        if let Some(directory) = std::env::var_os("VIREO_BIN_DIR") {
            return directory.into();
        }
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        // The whole workspace, as the tests are: parts of it have other features of the same crates, built once more.
        build.args(["build", "--quiet", "--workspace", "--bins", "--manifest-path"]);
        build.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"));
        forget_package(&mut build);
        let status = build.status().expect("cargo starts");
        assert!(status.success(), "the programs under test do not build");
        Path::new(nested).parent().unwrap_or(Path::new(".")).to_owned()
    })
}

/// Takes from a command that runs cargo the environment that the test runner sets for this package. Cargo would take it for a change to build
/// scripts, which look at it: half of the workspace was built anew by every run, and once more by the next one.
pub(crate) fn forget_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_EXE_"].iter().any(|ours| text.starts_with(ours)) {
            command.env_remove(&name);
        }
    }
}
