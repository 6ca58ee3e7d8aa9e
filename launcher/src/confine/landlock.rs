//! Rules of landlock, where the kernel has it: what mounts and the user's rights allow already, and nothing else, whatever
//! becomes of those.

use std::os::fd::BorrowedFd;
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath, Ruleset,
    RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

/// The newest rules that are asked for.
const NEWEST: ABI = ABI::V6;
/// Where the devices are that a launcher sees.
const DEVICES: &str = "/dev";

/// Restricts this process and what it starts: it reads and executes what it sees, and writes in `directory`, where its
/// sockets are. It listens on no TCP port, and signals and connects to nothing outside by the kernel's names. Returns whether
/// the kernel has landlock.
///
/// QEMU takes the guest's kernel by a path alone. It gets `/proc/self/fd/N` of the file that the node agent passed, and opening
/// that is checked by the directories above the file in the mounts of the node, hence the rule for their root, `node`. Rules
/// cannot be added once files are passed. Paths lead to no file of the node: the mounts of this process have none.
///
/// # Errors
/// When the kernel has landlock and refuses the rules.
pub(super) fn restrict(directory: &Path, node: BorrowedFd<'_>) -> Result<bool, RulesetError> {
    let read: BitFlags<AccessFs> = AccessFs::from_read(NEWEST);
    let devices = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let write = AccessFs::from_all(NEWEST) & !AccessFs::Execute;
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::BindTcp)?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?
        .add_rules(path_beneath_rules(["/"], read))?
        .add_rule(PathBeneath::new(node, AccessFs::ReadFile))?
        .add_rules(path_beneath_rules([DEVICES], devices))?
        .add_rules(path_beneath_rules([directory], write))?;
    Ok(rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
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
