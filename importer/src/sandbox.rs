//! What this process may do, before it reads anything that is not trusted.

use std::io::{self, Seek as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};

use rustix::io::Errno;
use rustix::process::{Resource, Signal, set_parent_process_death_signal};
use rustix::thread::{UnshareFlags, set_no_new_privs, unshare_unsafe};
use vireo_privileges::Unprivileged;

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
pub const CONFINED: &str = "confined";

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

/// The lower limits of a process that gets images.
///
/// # Errors
/// Errors of the system calls.
pub fn limit_pull() -> Result<(), Errno> {
    vireo_privileges::limit(&[(Resource::As, PULL_MEMORY)])
}

fn protect() -> Result<(), Errno> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
}

/// Starts this program again in namespaces of its own: without a network, and without processes that it could see or that
/// stay when it ends. It gets the same request. Returns how it ended, and what could not be had.
///
/// # Errors
/// When it cannot be started.
pub fn run_confined(mut say_missing: impl FnMut(&str)) -> io::Result<ExitStatus> {
    let namespaces = [
        (UnshareFlags::NEWNET, "a network namespace"),
        (UnshareFlags::NEWPID, "a process ID namespace"),
        (UnshareFlags::NEWIPC, "an IPC namespace"),
        (UnshareFlags::NEWUTS, "a host name namespace"),
    ];
    for (flag, name) in namespaces {
        // SAFETY: only UnshareFlags::FILES can make descriptors vanish from other threads; it is not given.
        #[expect(unsafe_code, reason = "rustix marks unshare unsafe for its FILES flag")]
        let made = unsafe { unshare_unsafe(flag) };
        match made {
            Ok(()) => {}
            Err(Errno::PERM) => say_missing(name),
            Err(error) => return Err(error.into()),
        }
    }
    // The request is a file.
    let mut request = std::fs::File::from(io::stdin().as_fd().try_clone_to_owned()?);
    request.rewind()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("virt-importer").arg(CONFINED).stdin(Stdio::from(request));
    // SAFETY: between fork and exec only async-signal-safe calls may run, and this is one plain system call.
    #[expect(unsafe_code, reason = "only the child itself can ask to die with its parent")]
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?))
    };
    command.status()
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
