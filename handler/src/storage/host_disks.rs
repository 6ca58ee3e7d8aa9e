//! Resolves the path of a `hostDisk`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::allowed::{AllowedDirectories, AllowedPaths, NotAllowed, list};

/// The path of an existing or new file without symbolic links. Later changes need write access to the allowed
/// directories, and guests and users of the API cannot create links there.
///
/// # Errors
/// When the path or its target is not allowed. The error does not reveal which, nor what exists there.
pub(super) fn find(allowed: &AllowedPaths, path: &Path) -> Result<PathBuf, NotAllowed> {
    let AllowedDirectories::Below(directories) = &allowed.host_disks else { return Ok(path.to_owned()) };
    allowed.check_host_disk(path)?;
    // A missing directory is created with the file.
    let led_to = |directory: &PathBuf| directory.canonicalize().or_else(|_| real(directory)).ok();
    let is_inside = |real: &PathBuf| {
        let mut directories = directories.iter().filter_map(led_to);
        directories.any(|directory| *real != directory && real.starts_with(&directory))
    };
    real(path).ok().filter(is_inside).ok_or_else(|| NotAllowed::LeadsElsewhere {
        path: path.display().to_string(),
        directories: list(directories),
    })
}

/// Resolves the existing part of the path, and appends the part that is to be created.
fn real(path: &Path) -> std::io::Result<PathBuf> {
    let mut rest: Vec<OsString> = path.file_name().map(OsString::from).into_iter().collect();
    let mut there = path.parent().unwrap_or(Path::new("/"));
    // A dangling link exists, too: it is an error, not a directory to be created.
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
    fn a_name_that_leads_elsewhere_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |path: &str| root.join(path);
        std::fs::create_dir_all(at("disks/own")).unwrap();
        std::fs::create_dir_all(at("secret")).unwrap();
        for (link, target) in
            [("disks/out", at("secret")), ("disks/in", at("disks/own")), ("disks/lost", at("absent"))]
        {
            symlink(target, at(link)).unwrap();
        }
        symlink(at("disks"), at("alias")).unwrap();
        let directories = vec![at("disks"), at("alias"), at("later/on"), at("disks/lost")];
        let allowed =
            AllowedPaths { host_disks: AllowedDirectories::Below(directories), ..AllowedPaths::any() };
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
            let found = find(&allowed, &at(path));
            assert_eq!(found.as_ref().ok(), leads.map(at).as_ref(), "{path}: {found:?}");
        }
        let message = find(&allowed, &at("disks/out/a")).unwrap_err().to_string();
        assert!(
            message.contains("disks/out/a does not lead to a file below") && !message.contains("secret"),
            "{message}"
        );
        assert_eq!(find(&AllowedPaths::any(), &at("disks/out/a")).unwrap(), at("disks/out/a"));
    }
}
