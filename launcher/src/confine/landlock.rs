//! What landlock lets a launcher do, where the kernel has it.

use std::os::fd::BorrowedFd;
use std::path::Path;

use vireo_privileges::landlock::{LandlockError, Rights, Rules};

/// Where the devices are that a launcher sees.
const DEVICES: &str = "/dev";

/// Restricts this process and what it starts: it reads and executes what it sees, and writes in `directory`, where its
/// sockets are. Returns whether the kernel has landlock.
///
/// QEMU takes the guest's kernel by a path alone. It gets `/proc/self/fd/N` of the file that the node agent passed, and opening
/// that is checked by the directories above the file in the mounts of the node, hence the rule for their root, `node`. Rules
/// cannot be added once files are passed. Paths lead to no file of the node: the mounts of this process have none.
///
/// # Errors
/// When the kernel has landlock and refuses the rules.
pub(super) fn restrict(directory: &Path, node: BorrowedFd<'_>) -> Result<bool, LandlockError> {
    Rules::new()?
        .beneath(Path::new("/"), Rights::ReadAndExecute)?
        .file(node, Rights::Read)?
        .beneath(Path::new(DEVICES), Rights::Device)?
        .beneath(directory, Rights::All)?
        .restrict()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_the_directory_is_written_to() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("there"), "text").unwrap();
        // Rules hold for the thread that sets them, and those it starts.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let node = fs::File::open("/").unwrap();
                if !restrict(inside.path(), node.as_fd()).unwrap() {
                    eprintln!("skipped: the kernel has no landlock");
                    return;
                }
                UnixListener::bind(inside.path().join("socket")).unwrap();
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
