//! Objects that cannot be read back. Each is moved out of the store to `unreadable/RESOURCE/NAMESPACE/NAME/REVISION.json`
//! beside it, as it was, and the others are served.
//!
//! The holders of its resources must not take such an object for deleted, so their keys stay known for as long as
//! their files are there.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tracing::error;

use super::Key;
use crate::files::write_atomically;

/// The directory for a namespace where there is none.
const CLUSTER: &str = "_";

/// Where the objects of a store are put that cannot be read.
pub(super) fn directory(store: &Path) -> PathBuf {
    store.with_file_name("unreadable")
}

/// Writes down what the store has of an object, which is not served any more; whether the store may forget it.
pub(super) fn set_aside(directory: &Path, key: &Key, revision: u64, json: &[u8], why: &str) -> bool {
    let Key { resource, namespace, name } = key;
    match put(directory, key, revision, json) {
        Ok(file) => {
            let file = file.display();
            error!(resource, namespace, name, %file, "an object cannot be read ({why}) and is not served; what is stored of it was moved to the file");
            true
        }
        Err(error) => {
            let cause = error.source().map(ToString::to_string);
            error!(resource, namespace, name, %error, cause, "an object cannot be read ({why}) and is not served");
            false
        }
    }
}

/// Writes a file and returns its path.
pub(super) fn put(directory: &Path, key: &Key, revision: u64, json: &[u8]) -> io::Result<PathBuf> {
    let namespace = if key.namespace.is_empty() { CLUSTER } else { &key.namespace };
    let parts = [key.resource.as_str(), namespace, &key.name];
    if parts.iter().any(|part| part.is_empty() || part.starts_with('.') || part.contains('/')) {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    let directory = parts.iter().fold(directory.to_owned(), |directory, part| directory.join(part));
    make_private(&directory)?;
    let file = directory.join(format!("{revision}.json"));
    write_atomically(&file, json).map_err(io::Error::other)?;
    Ok(file)
}

fn make_private(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// The keys of everything that was put there.
pub(super) fn keys(directory: &Path) -> BTreeSet<Key> {
    let mut keys = BTreeSet::new();
    for (resource, below) in entries(directory) {
        for (namespace, below) in entries(&below) {
            let namespace = if namespace == CLUSTER { "" } else { &namespace };
            let is_object = |(file, _): &(String, PathBuf)| file.ends_with(".json");
            let names = entries(&below).into_iter().filter(|(_, files)| entries(files).iter().any(is_object));
            keys.extend(names.map(|(name, _)| Key::new(&resource, namespace, &name)));
        }
    }
    keys
}

/// What is in a directory, with its paths. Nothing where there is none.
fn entries(directory: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_away_is_known_until_its_file_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let directory = directory(&dir.path().join("store.redb"));
        assert!(keys(&directory).is_empty());
        let known = [Key::new("events", "default", "a.b"), Key::new("clusterroles.rbac", "", "system:x")];
        let files: Vec<PathBuf> = known.iter().map(|key| put(&directory, key, 7, b"{").unwrap()).collect();
        assert_eq!(fs::read(&files[0]).unwrap(), b"{");
        assert_eq!(keys(&directory), known.clone().into());
        fs::remove_file(&files[0]).unwrap();
        assert_eq!(keys(&directory), BTreeSet::from([known[1].clone()]));
        for odd in ["", "..", "a/b"] {
            assert!(put(&directory, &Key::new("events", "default", odd), 7, b"{").is_err());
        }
    }
}
