//! Has `qemu-img` make a raw image of a qcow2 image.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, pidfd_open, set_parent_process_death_signal,
    setrlimit,
};
use vireo_privileges::seccomp::Filters;

use crate::read::allocated;
use crate::{Answer, Failure, FailureKind};

/// The program.
const PROGRAM: &str = "qemu-img";
/// How often the length of the output is checked.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How many bytes of its messages are read.
const MESSAGES_LIMIT: u64 = 4096;

/// Why a disk image is not converted. It quotes nothing that is in the image.
#[derive(Debug, thiserror::Error)]
enum ConvertError {
    #[error("qemu-img cannot convert the disk image: it is damaged")]
    Damaged,
    #[error("cannot run qemu-img (Debian package qemu-utils)")]
    NoProgram(#[source] io::Error),
    #[error("no space is left on the node for the disk image")]
    Full,
    #[error("cannot write the disk image")]
    Io(#[source] io::Error),
}

impl From<io::Error> for ConvertError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::Io(error),
        }
    }
}

impl From<ConvertError> for Answer {
    fn from(error: ConvertError) -> Self {
        let kind = match error {
            ConvertError::Damaged => FailureKind::Convert,
            ConvertError::Full => FailureKind::Full,
            ConvertError::NoProgram(_) | ConvertError::Io(_) => FailureKind::Other,
        };
        Self::Failed(Failure::new(kind, crate::failure::causes(&error)))
    }
}

/// `qemu-img`, which runs; killed and reaped when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    output: File,
    messages: File,
    /// What the output took before.
    before: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only where it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where `qemu-img` is.
#[must_use]
pub fn qemu_img() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(PROGRAM)).find(|path| path.is_file())
}

/// Starts the conversion of `disk` to `output`, with a filter of its system calls.
///
/// # Errors
/// The answer that it cannot be started.
pub fn start_qemu_img(
    program: Option<&Path>,
    (disk, output): (&File, &File),
    virtual_size: u64,
    filters: Filters,
) -> Result<Running, Answer> {
    start(program.unwrap_or(Path::new(PROGRAM)), (disk, output), virtual_size, filters).map_err(Answer::from)
}

fn start(
    program: &Path,
    (disk, output): (&File, &File),
    virtual_size: u64,
    filters: Filters,
) -> Result<Running, ConvertError> {
    let before = allocated(output)?;
    let messages = File::from(memfd_create("messages", MemfdFlags::CLOEXEC).map_err(io::Error::from)?);
    let mut command = Command::new(program);
    command
        .args(["convert", "-q", "-f", "qcow2", "-O", "raw", "/proc/self/fd/0", "/proc/self/fd/1"])
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
            setrlimit(Resource::Fsize, Rlimit { current: Some(most), maximum })?;
            filters.apply().map_err(|_| io::Error::from(ErrorKind::PermissionDenied))
        })
    };
    let child = command.spawn().map_err(ConvertError::NoProgram)?;
    Ok(Running { child, output: output.try_clone()?, messages, before })
}

impl Running {
    /// Waits for its end: [`Answer::Unpacked`]. It is ended where it takes more of the file system than `most_bytes`: clusters
    /// that several entries of a table name are written as often.
    #[must_use]
    pub fn finish(mut self, most_bytes: u64) -> Answer {
        match self.wait(most_bytes) {
            Ok(()) => Answer::Unpacked,
            Err(error) => error.into(),
        }
    }

    fn wait(&mut self, most_bytes: u64) -> Result<(), ConvertError> {
        let pidfd = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()).map_err(io::Error::from)?;
        let status: ExitStatus = loop {
            match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&POLL_INTERVAL)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
            let ended = self.child.try_wait()?;
            if allocated(&self.output)?.saturating_sub(self.before) > most_bytes {
                return Err(ConvertError::Full);
            }
            if let Some(status) = ended {
                break status;
            }
        };
        if status.success() {
            return Ok(());
        }
        // The message quotes names in the image, which the user may not be allowed to read.
        let mut text = Vec::new();
        self.messages.rewind()?;
        (&self.messages).take(MESSAGES_LIMIT).read_to_end(&mut text)?;
        Err(match String::from_utf8_lossy(&text).contains("No space left on device") {
            true => ConvertError::Full,
            false => ConvertError::Damaged,
        })
    }
}

/// Converts `disk` to `output` without a filter of system calls. Blocks.
#[must_use]
pub fn convert((disk, output): (&File, &File), virtual_size: u64, most_bytes: u64) -> Answer {
    match start_qemu_img(None, (disk, output), virtual_size, Filters::default()) {
        Ok(running) => running.finish(most_bytes),
        Err(answer) => answer,
    }
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
        assert_eq!(convert((&aliasing(), &output), size, size), Answer::Unpacked, "there is space for it");
        let output = tempfile::tempfile().unwrap();
        let answer = convert((&aliasing(), &output), size, 1 << 20);
        let Answer::Failed(failure) = answer else { panic!("{answer:?}") };
        assert_eq!(failure.kind, FailureKind::Full);
    }
}
