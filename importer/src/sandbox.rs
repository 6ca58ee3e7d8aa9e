//! What this process may do, before it reads anything that is not trusted.
//!
//! A first process makes namespaces and waits; it reads nothing of an image. The second one, in those, gets a root directory
//! of its own ([`root`]), gives up the privileges of root, and is limited by rules of landlock and a filter of system calls
//! ([`filter`]).

mod filter;
mod root;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Seek as _};
use std::os::fd::{AsFd as _, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use rustix::io::Errno;
use rustix::process::{Resource, Signal, set_parent_process_death_signal};
use rustix::thread::{UnshareFlags, set_no_new_privs, unshare_unsafe};
use vireo_privileges::Unprivileged;
use vireo_privileges::landlock::{Rights, Rules};
use vireo_privileges::seccomp::{Seccomp, VARIABLE};

pub use filter::qemu_img;
pub use root::OwnRoot;

/// Address space of a process that gets images: a manifest that does not end meets this.
const PULL_MEMORY: u64 = 512 << 20;
/// Address space of a process that reads images, and of `qemu-img`.
const READ_MEMORY: u64 = 1 << 30;
/// The largest file: no disk is larger.
const LARGEST_FILE: u64 = 16 << 40;
/// Open files.
const FILES: u64 = 128;
/// Seconds of processor time: the node agent waits no longer for an import.
const SECONDS: u64 = 60 * 60;
/// The stack of a thread, which counts as address space.
const STACK: u64 = 1 << 20;
/// The argument of a process that is in the namespaces which this process has made.
const CONFINED: &str = "confined";
/// Instead, where those are a mount and a process ID namespace, too.
const CONFINED_WITH_ROOT: &str = "confined-with-root";
/// The program that the log names.
pub(crate) const PROGRAM: &str = "virt-importer";

/// What a process is going to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Get an image of a registry, with a network.
    Pull,
    /// Read an image.
    Read,
    /// Have `qemu-img` read a disk image.
    Convert,
}

/// Limits what this process may use, and what it may become, before it reads its request. The node agent limits the time.
///
/// # Errors
/// Errors of the system calls.
pub fn limit() -> Result<(), Errno> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    set_no_new_privs(true)?;
    protect()?;
    vireo_privileges::limit(&[
        (Resource::As, READ_MEMORY),
        (Resource::Nofile, FILES),
        (Resource::Core, 0),
        (Resource::Cpu, SECONDS),
        (Resource::Fsize, LARGEST_FILE),
        (Resource::Stack, STACK),
        (Resource::Msgqueue, 0),
    ])
}

/// The limits that only some processes have.
///
/// # Errors
/// Errors of the system calls.
pub fn limit_further(profile: Profile) -> Result<(), Errno> {
    match profile {
        Profile::Pull => vireo_privileges::limit(&[(Resource::As, PULL_MEMORY)]),
        Profile::Read | Profile::Convert => Ok(()),
    }
}

fn protect() -> Result<(), Errno> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
}

/// Starts this program again, with the same request, in namespaces of its own: without processes that it could see or that
/// stay when it ends, with mounts that it may change, and without a network but to pull images. Its working directory is
/// `directory`, in the new mount namespace. Returns how it ended, and what could not be had.
///
/// # Errors
/// When it cannot be started.
pub fn run_confined(
    profile: Profile,
    directory: Option<BorrowedFd<'_>>,
    arguments: impl FnOnce(&'static str) -> Vec<String>,
    mut say_missing: impl FnMut(&str),
) -> io::Result<ExitStatus> {
    if let Some(directory) = directory {
        // The working directory moves to the new mount namespace, other descriptors do not.
        rustix::process::fchdir(directory)?;
    }
    let network = (UnshareFlags::NEWNET, "a network namespace");
    let namespaces = [
        (UnshareFlags::NEWPID, "a process ID namespace"),
        (UnshareFlags::NEWNS, "a mount namespace"),
        (UnshareFlags::NEWIPC, "an IPC namespace"),
        (UnshareFlags::NEWUTS, "a host name namespace"),
    ];
    let network = (profile != Profile::Pull).then_some(network);
    let mut argument = CONFINED_WITH_ROOT;
    for (flag, name) in namespaces.into_iter().chain(network) {
        // SAFETY: only UnshareFlags::FILES can make descriptors vanish from other threads; it is not given.
        #[expect(unsafe_code, reason = "rustix marks unshare unsafe for its FILES flag")]
        let made = unsafe { unshare_unsafe(flag) };
        match made {
            Ok(()) => {}
            Err(Errno::PERM) => {
                argument = CONFINED;
                say_missing(name);
            }
            Err(error) => return Err(error.into()),
        }
    }
    // The request is a file.
    let mut request = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    request.rewind()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0(PROGRAM).args(arguments(argument)).stdin(Stdio::from(request));
    // SAFETY: between fork and exec only async-signal-safe calls may run, and this is one plain system call.
    #[expect(unsafe_code, reason = "only the child itself can ask to die with its parent")]
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?))
    };
    command.status()
}

/// Whether an argument is that of a process in namespaces of its own, and whether those let it have its own root directory.
#[must_use]
pub fn confinement(argument: Option<&OsStr>) -> Option<bool> {
    let argument = argument?;
    (argument == CONFINED || argument == CONFINED_WITH_ROOT).then(|| argument == CONFINED_WITH_ROOT)
}

/// Becomes a user without privileges, for good. Returns what could not be had.
///
/// # Errors
/// Errors of the system calls, but for missing privileges.
pub fn give_up(user: Option<u32>, mut say_missing: impl FnMut(&str)) -> Result<(), Errno> {
    if !vireo_privileges::give_up(user, Unprivileged::GoesOn)? {
        say_missing("a user of its own");
    }
    // Both are lost when the user changes.
    protect()?;
    set_parent_process_death_signal(Some(Signal::KILL))
}

/// What a process uses by path, or opens anew.
#[derive(Debug, Default)]
pub struct Paths<'a> {
    /// Directories, and what may be done below them.
    pub directories: Vec<(PathBuf, Rights)>,
    /// Open files.
    pub files: Vec<(BorrowedFd<'a>, Rights)>,
}

/// Restricts files by landlock, where the kernel has it.
///
/// # Errors
/// When the kernel has it and refuses the rules.
pub fn restrict_files(paths: &Paths<'_>, mut say_missing: impl FnMut(&str)) -> io::Result<()> {
    let restrict = || {
        let mut rules = Rules::new()?;
        for (directory, rights) in &paths.directories {
            rules = rules.beneath(directory, *rights)?;
        }
        for (file, rights) in &paths.files {
            rules = rules.file(*file, *rights)?;
        }
        rules.restrict()
    };
    if !restrict().map_err(io::Error::other)? {
        say_missing("rules of landlock");
    }
    Ok(())
}

/// What becomes of system calls that are not listed, as the environment says.
///
/// # Errors
/// When it says nothing that is known.
pub fn seccomp() -> io::Result<Seccomp> {
    match std::env::var(VARIABLE) {
        Ok(text) => text.parse().map_err(|error| io::Error::other(format!("{VARIABLE}: {error}"))),
        Err(_) => Ok(Seccomp::default()),
    }
}

/// Restricts the system calls of this process, for what it is going to do.
///
/// # Errors
/// When the filter cannot be set.
pub fn restrict_calls(profile: Profile, seccomp: Seccomp) -> io::Result<()> {
    let restrict = || {
        seccomp.report_as(PROGRAM)?;
        filter::compile(profile, seccomp)?.apply_to_process()
    };
    restrict().map_err(io::Error::other)
}

/// A file that is inherited with this number, as a path.
#[must_use]
pub fn by_number(number: RawFd) -> PathBuf {
    Path::new("/proc/self/fd").join(number.to_string())
}

#[cfg(test)]
mod tests;
