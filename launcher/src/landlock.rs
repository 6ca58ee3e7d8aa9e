//! What landlock lets a launcher do, where the kernel has it. On a single host, the launcher sets the rules when it confines
//! itself; in a Pod, when it starts.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use tracing::warn;
use vireo_privileges::landlock::{LandlockError, Rights, Rules, can_move_files};

/// What every launcher may do in directories that it sees, and below them.
pub(crate) const RULES: [(&str, Rights); 2] = [
    ("/", Rights::ReadAndExecute),
    // Where the devices are.
    ("/dev", Rights::Device),
];

/// Restricts this thread and what it starts: it reads and executes what it sees, and writes in these directories. Returns
/// whether the kernel has landlock.
///
/// QEMU takes the guest's kernel by a path alone. It gets `/proc/self/fd/N` of the file that the node agent passed, and opening
/// that is checked by the directories above the file in the mounts that the file was opened in. On a single host, these are
/// those of the node: hence a rule for their root, `node`. Paths lead to no file of the node: the mounts of this process have
/// none. In a Pod, they may be those of another container, and QEMU gets a copy. Rules cannot be added once files are passed.
///
/// # Errors
/// When the kernel has landlock and refuses the rules.
pub fn restrict<'d>(
    writable: impl IntoIterator<Item = &'d Path>,
    node: Option<BorrowedFd<'_>>,
) -> Result<bool, LandlockError> {
    let mut rules = Rules::new()?;
    for (directory, rights) in RULES {
        rules = rules.beneath(Path::new(directory), rights)?;
    }
    if let Some(node) = node {
        rules = rules.file(node, Rights::Read)?;
    }
    for directory in writable {
        rules = rules.beneath(directory, Rights::All)?;
    }
    let is_restricted = rules.restrict()?;
    if !is_restricted {
        warn!("the kernel has no landlock: the launcher goes on without its rules");
    }
    Ok(is_restricted)
}

/// The same in a Pod, with the directory of the sockets and those of file systems that the guest shares and writes to. Nothing
/// with the latter where rules would keep the guest from moving files.
///
/// # Errors
/// When the kernel has landlock and refuses the rules.
pub fn restrict_in_pod(run: Option<&Path>, shared: &[PathBuf]) -> Result<bool, LandlockError> {
    if !shared.is_empty() && !can_move_files() {
        warn!(
            "this kernel's landlock does not let a guest move files: the launcher goes on without its rules"
        );
        return Ok(false);
    }
    restrict(shared.iter().map(PathBuf::as_path).chain(run), None)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_the_directories_are_written_to() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let shared = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("there"), "text").unwrap();
        // Rules hold for the thread that sets them, and those it starts.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let node = fs::File::open("/").unwrap();
                if !restrict([inside.path(), shared.path()], Some(node.as_fd())).unwrap() {
                    eprintln!("skipped: the kernel has no landlock");
                    return;
                }
                UnixListener::bind(inside.path().join("socket")).unwrap();
                fs::write(shared.path().join("new"), "").unwrap();
                if can_move_files() {
                    fs::rename(shared.path().join("new"), inside.path().join("moved")).unwrap();
                }
                assert_eq!(fs::read_to_string(outside.path().join("there")).unwrap(), "text");
                for done in [
                    fs::write(outside.path().join("there"), "other"),
                    fs::write(outside.path().join("new"), ""),
                    fs::remove_file(outside.path().join("there")),
                ] {
                    assert_eq!(done.unwrap_err().kind(), ErrorKind::PermissionDenied);
                }
                fs::write("/dev/null", "text").unwrap();
            });
        });
    }
}
