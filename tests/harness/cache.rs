//! Things that take long to make and stay the same: made once per user, outside the tree.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Where caches live: `$VIREO_CACHE`, else `$XDG_CACHE_HOME/vireo`, else `~/.cache/vireo`.
pub fn directory() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("VIREO_CACHE").unwrap_or_else(|| {
        set("XDG_CACHE_HOME")
            .or_else(|| set("HOME").map(|home| home.join(".cache")))
            .unwrap_or_else(std::env::temp_dir)
            .join("vireo")
    })
}

/// A name for what `recipe` makes: any change to a part changes it.
pub fn key(recipe: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in recipe {
        hash.update(part.len().to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The directory `kind/key` of the cache, made by `make` in a scratch directory beside it if it is not there yet.
///
/// It appears whole or not at all, and of several processes that want it one makes it while the others wait.
pub fn once<E: From<io::Error>>(
    kind: &str,
    key: &str,
    make: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<PathBuf, E> {
    let parent = directory().join(kind);
    let target = parent.join(key);
    if target.is_dir() {
        return Ok(target);
    }
    fs::create_dir_all(&parent)?;
    let lock = File::create(parent.join(format!("{key}.lock")))?;
    lock.lock()?;
    if target.is_dir() {
        return Ok(target);
    }
    let scratch = tempfile::Builder::new().prefix(&format!("{key}.tmp-")).tempdir_in(&parent)?;
    make(scratch.path())?;
    fs::rename(scratch.keep(), &target)?;
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_eq!(key(&["ab", "c"]), key(&["ab", "c"]));
    }
}
