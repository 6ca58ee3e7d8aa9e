//! Which paths of this node manifests may name.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// Directories of this node, below which manifests may name files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedDirectories {
    /// All paths of the node: the author of the manifests is trusted.
    Any,
    /// These; without any, nothing is allowed.
    Below(Vec<PathBuf>),
}

/// The paths that manifests may name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedPaths {
    /// The directories of files that may be a `hostDisk`.
    pub host_disks: AllowedDirectories,
    /// The directories of OCI images, for a `containerDisk` and a `kernelBoot`. An image may also be such a directory.
    pub images: AllowedDirectories,
    /// The directories whose layouts and archives are found by the names of their images: `localhost/name:tag`.
    pub named_images: Vec<PathBuf>,
}

/// Why a path is not allowed. It does not reveal what exists there.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotAllowed {
    /// No file may be a `hostDisk`. The first words are KubeVirt's.
    #[error(
        "HostDisk feature gate is not enabled: start vireo with --host-disks DIR, and use files below that"
    )]
    NoHostDisks,
    /// No image may be used.
    #[error("images of this node are not enabled: start vireo with --images DIR, and use images below that")]
    NoImages,
    /// No image may be used by a name without a registry.
    #[error(
        "localhost is no registry: start vireo with --images DIR, and have an OCI layout or archive with an image of this name in DIR"
    )]
    NoNamedImages,
    /// It is elsewhere.
    #[error("{path} is not below a directory of {option}: {directories}")]
    Elsewhere {
        /// As the manifest names it.
        path: String,
        /// The option that sets the directories.
        option: &'static str,
        /// The allowed directories.
        directories: String,
    },
    /// A symbolic link on its path leads out of the allowed directories, or is dangling.
    #[error("{path} does not lead to a file below a directory of --host-disks: {directories}")]
    LeadsElsewhere {
        /// As the manifest names it.
        path: String,
        /// The allowed directories.
        directories: String,
    },
}

impl AllowedPaths {
    /// Everything, for manifests of the node's administrator.
    pub fn any() -> Self {
        let (host_disks, images) = (AllowedDirectories::Any, AllowedDirectories::Any);
        Self { host_disks, images, named_images: Vec::new() }
    }

    /// Whether a file may be a `hostDisk` by its path, whatever is there.
    ///
    /// # Errors
    /// When it may not.
    pub fn check_host_disk(&self, path: &Path) -> Result<(), NotAllowed> {
        let is_below = |(_, rest): (&Path, &Path)| rest != Path::new("");
        match &self.host_disks {
            AllowedDirectories::Any => Ok(()),
            AllowedDirectories::Below(directories) if directories.is_empty() => Err(NotAllowed::NoHostDisks),
            allowed if allowed.containing(path).is_some_and(is_below) => Ok(()),
            AllowedDirectories::Below(directories) => Err(elsewhere(path, "--host-disks", directories)),
        }
    }

    /// The directories in which images are found by their local names.
    ///
    /// # Errors
    /// When there are none.
    pub fn check_named_image(&self) -> Result<&[PathBuf], NotAllowed> {
        match self.named_images.as_slice() {
            [] => Err(NotAllowed::NoNamedImages),
            directories => Ok(directories),
        }
    }

    /// Whether an image may be used by its path, whatever is there.
    ///
    /// # Errors
    /// When it may not.
    pub fn check_image(&self, path: &Path) -> Result<(), NotAllowed> {
        match &self.images {
            AllowedDirectories::Any => Ok(()),
            AllowedDirectories::Below(directories) if directories.is_empty() => Err(NotAllowed::NoImages),
            allowed if allowed.containing(path).is_some() => Ok(()),
            AllowedDirectories::Below(directories) => Err(elsewhere(path, "--images", directories)),
        }
    }
}

impl AllowedDirectories {
    /// The innermost directory that a path is below by its name, and the rest of the path; none where everything is
    /// allowed.
    pub(super) fn containing<'a>(&'a self, path: &'a Path) -> Option<(&'a Path, &'a Path)> {
        let Self::Below(directories) = self else { return None };
        let containing =
            directories.iter().filter_map(|one| Some((one.as_path(), path.strip_prefix(one).ok()?)));
        containing.min_by_key(|(_, rest)| rest.as_os_str().len())
    }
}

fn elsewhere(path: &Path, option: &'static str, directories: &[PathBuf]) -> NotAllowed {
    NotAllowed::Elsewhere { path: path.display().to_string(), option, directories: list(directories) }
}

pub(super) fn list(directories: &[PathBuf]) -> String {
    directories.iter().map(|one| one.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(directories: &[&str]) -> AllowedDirectories {
        AllowedDirectories::Below(directories.iter().map(PathBuf::from).collect())
    }

    #[test]
    fn a_path_is_allowed_below_a_directory_and_not_beside_it() {
        let both = |directories: AllowedDirectories| AllowedPaths {
            host_disks: directories.clone(),
            images: directories,
            named_images: Vec::new(),
        };
        let (none, two) = (both(below(&[])), both(below(&["/srv/disks", "/data"])));
        for (allowed, path, is_disk, is_image) in [
            (&AllowedPaths::any(), "/etc/shadow", true, true),
            (&none, "/srv/disks/a", false, false),
            (&two, "/srv/disks/a/b", true, true),
            (&two, "/data/a", true, true),
            // A layout is a directory.
            (&two, "/srv/disks", false, true),
            (&two, "/srv/disks2/a", false, false),
            (&two, "/etc/shadow", false, false),
        ] {
            let path = Path::new(path);
            assert_eq!(allowed.check_host_disk(path).is_ok(), is_disk, "{path:?} {allowed:?}");
            assert_eq!(allowed.check_image(path).is_ok(), is_image, "{path:?} {allowed:?}");
        }
        let path = Path::new("/a");
        for (message, part) in [
            (none.check_host_disk(path), "HostDisk feature gate is not enabled"),
            (none.check_image(path), "--images DIR"),
            (two.check_host_disk(path), "/a is not below a directory of --host-disks: /srv/disks, /data"),
            (two.check_image(path), "/a is not below a directory of --images: /srv/disks, /data"),
        ] {
            let message = message.unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn of_nested_directories_the_innermost_counts() {
        let allowed = below(&["/images", "/images/debian", "/im"]);
        let found = |path: &'static str| {
            let found = allowed.containing(Path::new(path));
            found.map(|(directory, rest)| (directory.to_owned(), rest.to_owned()))
        };
        assert_eq!(found("/images/debian/disk"), Some(("/images/debian".into(), "disk".into())));
        assert_eq!(found("/images/disk"), Some(("/images".into(), "disk".into())));
        assert_eq!(found("/images"), Some(("/images".into(), "".into())));
        assert_eq!(found("/imag"), None);
        assert_eq!(AllowedDirectories::Any.containing(Path::new("/images")), None);
    }
}
