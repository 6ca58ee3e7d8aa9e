//! One verb, one file.

pub(crate) mod admin;
pub(crate) mod agent;
pub(crate) mod completion;
pub(crate) mod console;
pub(crate) mod create;
pub(crate) mod credentials;
pub(crate) mod expand;
pub(crate) mod expose;
pub(crate) mod image_upload;
pub(crate) mod lifecycle;
pub(crate) mod memory_dump;
pub(crate) mod object_graph;
pub(crate) mod pause;
pub(crate) mod port_forward;
mod splice;
pub(crate) mod ssh;
mod target;
pub(crate) mod unserved;
pub(crate) mod usbredir;
pub(crate) mod version;
pub(crate) mod vnc;
pub(crate) mod volume;

/// The program of a name in the directories of `PATH`.
fn find_program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|program| program.is_file())
}

/// The body of a request that changes something.
fn options(dry_run: bool) -> serde_json::Value {
    if dry_run { serde_json::json!({"dryRun": ["All"]}) } else { serde_json::json!({}) }
}

/// What a verb ends with when it does not succeed.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// The user interrupted a command that prints a hint then.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;
