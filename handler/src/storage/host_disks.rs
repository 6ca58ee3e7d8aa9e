//! Which files of this node VMs may have for disks.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::volumes::VolumeError;

/// Where a `hostDisk` may be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum HostDisks {
    /// Wherever a manifest says: who writes it is trusted with the node.
    #[default]
    Anywhere,
    /// Below one of these directories; nowhere, if there are none.
    Below(Vec<PathBuf>),
}

/// Why a `hostDisk` may not be where it is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotAllowed {
    /// Nothing may be one. The first words are KubeVirt's.
    #[error(
        "HostDisk feature gate is not enabled: start vireo with --host-disks DIR, and use files below that"
    )]
    Off,
    /// It is elsewhere.
    #[error("{path} is not below a directory of --host-disks: {directories}")]
    Elsewhere {
        /// The file, as it is asked for or as it is once symbolic links are followed.
        path: String,
        /// What there is.
        directories: String,
    },
}

impl HostDisks {
    /// Whether a file may be one by its name, whatever is there.
    ///
    /// # Errors
    /// When it may not.
    pub fn judge(&self, path: &Path) -> Result<(), NotAllowed> {
        match self {
            Self::Anywhere => Ok(()),
            Self::Below(directories) if directories.is_empty() => Err(NotAllowed::Off),
            Self::Below(directories) if directories.iter().any(|one| is_below(path, one)) => Ok(()),
            Self::Below(_) => Err(self.elsewhere(path)),
        }
    }

    /// Where a file really is or is to be made, with no symbolic link on the way there. Only who may write to the
    /// directories could change that later, and guests and users of the API cannot make links.
    ///
    /// # Errors
    /// When it may not be a disk, by its name or by where that leads.
    pub(super) fn find(&self, path: &Path) -> Result<PathBuf, VolumeError> {
        let Self::Below(directories) = self else { return Ok(path.to_owned()) };
        self.judge(path)?;
        let real = real(path).map_err(|source| VolumeError::Open { path: path.to_owned(), source })?;
        // One that is not there yet is made with the file.
        let led_to = |directory: &PathBuf| directory.canonicalize().or_else(|_| self::real(directory)).ok();
        let allowed = directories.iter().filter_map(led_to);
        match allowed.into_iter().any(|directory| is_below(&real, &directory)) {
            true => Ok(real),
            false => Err(self.elsewhere(&real).into()),
        }
    }

    fn elsewhere(&self, path: &Path) -> NotAllowed {
        let Self::Below(directories) = self else { return NotAllowed::Off };
        let directories: Vec<_> = directories.iter().map(|one| one.display().to_string()).collect();
        NotAllowed::Elsewhere { path: path.display().to_string(), directories: directories.join(", ") }
    }
}

fn is_below(path: &Path, directory: &Path) -> bool {
    path != directory && path.starts_with(directory)
}

/// Follows the links in the directories that there are, and adds the rest of the path, which is to be made.
fn real(path: &Path) -> std::io::Result<PathBuf> {
    let mut rest: Vec<OsString> = path.file_name().map(OsString::from).into_iter().collect();
    let mut there = path.parent().unwrap_or(Path::new("/"));
    // A link that leads nowhere is there, too: it is an error, and no directory to be made.
    while there.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        rest.extend(there.file_name().map(OsString::from));
        there = there.parent().unwrap_or(Path::new("/"));
    }
    Ok(rest.iter().rev().fold(there.canonicalize()?, |path, name| path.join(name)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_name_is_allowed_below_a_directory_and_not_beside_it() {
        let below = |directories: &[&str]| HostDisks::Below(directories.iter().map(PathBuf::from).collect());
        let (none, two) = (below(&[]), below(&["/srv/disks", "/data"]));
        for (allowed, path, fits) in [
            (&HostDisks::Anywhere, "/etc/shadow", true),
            (&none, "/srv/disks/a", false),
            (&two, "/srv/disks/a/b", true),
            (&two, "/data/a", true),
            (&two, "/srv/disks", false),
            (&two, "/srv/disks2/a", false),
            (&two, "/etc/shadow", false),
        ] {
            assert_eq!(allowed.judge(Path::new(path)).is_ok(), fits, "{path} {allowed:?}");
        }
        let told = none.judge(Path::new("/a")).unwrap_err().to_string();
        assert!(told.starts_with("HostDisk feature gate is not enabled"), "{told}");
        let told = two.judge(Path::new("/a")).unwrap_err().to_string();
        assert!(told.ends_with(": /srv/disks, /data"), "{told}");
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |path: &str| root.join(path);
        std::fs::create_dir_all(at("disks/own")).unwrap();
        std::fs::create_dir_all(at("secret")).unwrap();
        for (link, target) in
            [("disks/out", at("secret")), ("disks/in", at("disks/own")), ("disks/lost", at("nowhere"))]
        {
            symlink(target, at(link)).unwrap();
        }
        symlink(at("disks"), at("alias")).unwrap();
        let allowed = HostDisks::Below(vec![at("disks"), at("alias"), at("later/on"), at("disks/lost")]);
        for (path, leads) in [
            ("disks/a", Some("disks/a")),
            ("disks/new/deep/a", Some("disks/new/deep/a")),
            ("disks/in/a", Some("disks/own/a")),
            ("alias/a", Some("disks/a")),
            ("later/on/a", Some("later/on/a")),
            ("later/a", None),
            ("disks/out/a", None),
            ("disks/out/new/a", None),
            ("disks/lost/a", None),
            ("disks/lost/new/a", None),
            ("secret/a", None),
        ] {
            let found = allowed.find(&at(path));
            assert_eq!(found.as_ref().ok(), leads.map(at).as_ref(), "{path}: {found:?}");
        }
        let told = allowed.find(&at("disks/out/a")).unwrap_err().to_string();
        assert!(told.contains("secret/a is not below"), "{told}");
        assert_eq!(HostDisks::Anywhere.find(&at("disks/out/a")).unwrap(), at("disks/out/a"));
    }
}
