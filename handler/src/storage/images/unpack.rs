//! Writes a file of an image to the store, a disk in raw format.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tracing::debug;

use super::super::format::{self, Format};
use super::super::sparse;
use super::{ImageError, WantedFile, store};
use crate::jobs::{JobContext, child};

/// Sectors are 512 bytes: a raw image is padded to whole ones.
const SECTOR: u64 = 512;
/// The largest kernel or initrd.
pub(super) const BOOT_FILE_LIMIT: u64 = 4 << 30;

/// Writes a file of an image to a partial file of the store.
pub(super) fn unpack(
    mut file: File,
    wanted: &WantedFile,
    partial: &Path,
    job: &JobContext,
) -> Result<(), ImageError> {
    if !file.metadata().map_err(ImageError::Fetch)?.is_file() {
        let what = "a directory or a special file";
        return Err(ImageError::NotRegular { file: wanted.to_string(), what });
    }
    match wanted {
        WantedFile::Disk(_) => unpack_disk(file, wanted, partial, job),
        WantedFile::Boot(_) => copy_out(&mut file, partial, BOOT_FILE_LIMIT, job).map(drop),
    }
}

pub(super) fn unpack_disk(
    mut disk: File,
    wanted: &WantedFile,
    to: &Path,
    job: &JobContext,
) -> Result<(), ImageError> {
    let format = format::probe(&disk);
    match format.map_err(|source| ImageError::Format { file: wanted.to_string(), source })? {
        Format::Raw => {
            let length = copy_out(&mut disk, to, u64::MAX, job)?;
            let whole = length.next_multiple_of(SECTOR);
            File::options().write(true).open(to).and_then(|file| file.set_len(whole)).map_err(store(to))
        }
        Format::Qcow2 { virtual_size: _ } => convert(&disk, to, job),
    }
}

pub(super) fn copy_out(from: &mut File, to: &Path, limit: u64, job: &JobContext) -> Result<u64, ImageError> {
    let mut write = || -> io::Result<u64> {
        from.rewind()?;
        let mut out = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(to)?;
        sparse::copy(&mut from.by_ref(), &mut out, limit, job)
    };
    write().map_err(store(to))
}

/// Hands the image to `qemu-img` as an inherited file, so that its name in the image never reaches a command line.
pub(in crate::storage) fn convert(disk: &File, to: &Path, job: &JobContext) -> Result<(), ImageError> {
    let input = disk.try_clone().map_err(store(to))?;
    let mut command = Command::new("qemu-img");
    command.args(["convert", "-q", "-f", "qcow2", "-O", "raw", "/dev/stdin"]).arg(to);
    let done = child::run(command.stdin(Stdio::from(input)), job).map_err(ImageError::NoQemuImg)?;
    if done.status.success() {
        return Ok(());
    }
    // The message quotes names in the image, which the user may not be allowed to read.
    debug!(status = %done.status, stderr = ?done.stderr, "qemu-img failed");
    Err(match done.stderr.contains("No space left on device") {
        true => ImageError::Full,
        false => ImageError::Convert,
    })
}
