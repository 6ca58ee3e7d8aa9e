//! Has `qemu-img` make a raw image of a qcow2 image.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, pidfd_open, set_parent_process_death_signal,
    setrlimit,
};

use crate::read::allocated;
use crate::sparse::Budget;

/// How often the length of the output is checked.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How many bytes of its messages are read.
const MESSAGES_LIMIT: u64 = 4096;

pub(crate) enum ConvertError {
    /// It is no valid image.
    Damaged,
    /// The program does not run.
    NoProgram(io::Error),
    /// No space is left, or another error.
    Io(io::Error),
}

impl From<io::Error> for ConvertError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Killed and reaped when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only where it is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Converts `disk` to `output`. It is ended where it takes more of the file system than the budget has: clusters that several
/// entries of a table name are written as often.
pub(crate) fn convert(
    disk: &File,
    output: &File,
    virtual_size: u64,
    budget: &mut Budget,
) -> Result<(), ConvertError> {
    let before = allocated(output)?;
    let mut messages = File::from(memfd_create("messages", MemfdFlags::CLOEXEC).map_err(io::Error::from)?);
    let mut command = Command::new("qemu-img");
    command
        .args(["convert", "-q", "-f", "qcow2", "-O", "raw", "/dev/stdin", "/dev/stdout"])
        // Each arena of an allocator takes 64 MiB of the address space, which is limited.
        .env("MALLOC_ARENA_MAX", "1")
        .stdin(disk.try_clone()?)
        .stdout(output.try_clone()?)
        .stderr(Stdio::from(messages.try_clone()?));
    // SAFETY: between fork and exec only async-signal-safe calls may run, and these are plain system calls.
    #[expect(unsafe_code, reason = "only the child itself can ask to die with its parent, and limit itself")]
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // It may write nothing beyond the disk.
            let maximum = getrlimit(Resource::Fsize).maximum;
            let most = maximum.map_or(virtual_size, |maximum| maximum.min(virtual_size));
            Ok(setrlimit(Resource::Fsize, Rlimit { current: Some(most), maximum })?)
        })
    };
    let mut child = Running(command.spawn().map_err(ConvertError::NoProgram)?);
    let pidfd = pidfd_open(Pid::from_child(&child.0), PidfdFlags::empty()).map_err(io::Error::from)?;
    let status: ExitStatus = loop {
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&POLL_INTERVAL)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let ended = child.0.try_wait()?;
        if allocated(output)?.saturating_sub(before) > budget.0 {
            return Err(io::Error::from(io::ErrorKind::StorageFull).into());
        }
        if let Some(status) = ended {
            break status;
        }
    };
    if status.success() {
        budget.spend(allocated(output)?.saturating_sub(before))?;
        return Ok(());
    }
    // The message quotes names in the image, which the user may not be allowed to read.
    let mut text = Vec::new();
    messages.rewind()?;
    messages.take(MESSAGES_LIMIT).read_to_end(&mut text)?;
    Err(match String::from_utf8_lossy(&text).contains("No space left on device") {
        true => io::Error::from(io::ErrorKind::StorageFull).into(),
        false => ConvertError::Damaged,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    /// A qcow2 image of 8 MiB whose 128 clusters are the same one.
    fn aliasing() -> File {
        const CLUSTER: u64 = 1 << 16;
        let file = tempfile::tempfile().unwrap();
        let at = |offset: u64, bytes: &[u8]| file.write_all_at(bytes, offset).unwrap();
        at(0, b"QFI\xfb\0\0\0\x02");
        at(20, &16_u32.to_be_bytes());
        at(24, &(8_u64 << 20).to_be_bytes());
        at(36, &1_u32.to_be_bytes());
        // The tables: one of the first level, the references, one of the second level, and the content.
        at(40, &CLUSTER.to_be_bytes());
        at(48, &(2 * CLUSTER).to_be_bytes());
        at(56, &1_u32.to_be_bytes());
        at(CLUSTER, &(3 * CLUSTER).to_be_bytes());
        for entry in 0..128 {
            at(3 * CLUSTER + entry * 8, &(4 * CLUSTER).to_be_bytes());
        }
        at(4 * CLUSTER, &[7; 1 << 16]);
        file
    }

    #[test]
    fn clusters_that_are_used_again_count_as_often() {
        let size = 8 << 20;
        let output = tempfile::tempfile().unwrap();
        assert!(convert(&aliasing(), &output, size, &mut Budget(size)).is_ok(), "there is space for it");
        let output = tempfile::tempfile().unwrap();
        let error = convert(&aliasing(), &output, size, &mut Budget(1 << 20));
        assert!(matches!(error, Err(ConvertError::Io(error)) if error.kind() == io::ErrorKind::StorageFull));
    }
}
