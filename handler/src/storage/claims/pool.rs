//! The pool that claims are made of: the file system of their directory. Disks are sparse, so what was promised counts, and not
//! what was written.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use super::{Claims, DISK, DUMP};
use crate::storage::volumes::VolumeError;

/// The unit of `st_blocks`, stat(2).
const BLOCK: u64 = 512;

/// Bytes, for people. Rounded down, so that a message about free space does not change all the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        const GIB: u64 = 1 << 30;
        match self.0 {
            bytes if bytes >= GIB => write!(form, "{}.{} GiB", bytes / GIB, bytes % GIB * 10 / GIB),
            bytes => write!(form, "{} MiB", bytes >> 20),
        }
    }
}

/// What a pool has, and what was promised of it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pool {
    /// Free, or taken by claims.
    capacity: u64,
    /// The sizes of all claims.
    promised: u64,
}

impl Pool {
    /// What is left for other claims where so many percent of the capacity may be promised.
    fn left(self, percent: u64) -> u64 {
        let most = u128::from(self.capacity) * u128::from(percent) / 100;
        u64::try_from(most).unwrap_or(u64::MAX).saturating_sub(self.promised)
    }
}

impl Claims {
    /// The same, of which this percentage of the pool may be promised to claims.
    #[must_use]
    pub fn overcommit(self, percent: u64) -> Self {
        Self { overcommit: percent, ..self }
    }

    /// Checks whether a claim may have so many bytes more.
    pub(super) fn reserve(&self, path: &Path, more: u64) -> Result<(), VolumeError> {
        let pool = self.pool().map_err(|source| VolumeError::Open { path: self.root.clone(), source })?;
        self.fits(path, &pool, more)
    }

    /// Checks whether a disk that is not a claim's, and is about to be made, may have so many bytes: what is free on its file
    /// system, less what is promised to claims there and not written yet. Blocks.
    ///
    /// # Errors
    /// When it may not, or its directory is not there.
    pub fn admit_disk(&self, path: &Path, bytes: u64) -> Result<(), VolumeError> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        let open = |source| VolumeError::Open { path: path.to_owned(), source };
        let device = fs::metadata(directory).map_err(open)?.dev();
        // A node without claims has no directory of theirs.
        if fs::metadata(&self.root).is_ok_and(|root| root.dev() == device) {
            return self.reserve(path, bytes);
        }
        let stat = statvfs(directory).map_err(|errno| open(errno.into()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        self.fits(path, &Pool { capacity: free, promised: 0 }, bytes)
    }

    fn fits(&self, path: &Path, pool: &Pool, more: u64) -> Result<(), VolumeError> {
        let left = pool.left(self.overcommit);
        if more <= left {
            return Ok(());
        }
        Err(VolumeError::PoolFull {
            path: path.to_owned(),
            wanted: Size(more),
            left: Size(left),
            capacity: Size(pool.capacity),
            promised: Size(pool.promised),
            overcommit: self.overcommit,
        })
    }

    fn pool(&self) -> io::Result<Pool> {
        let stat = statvfs(&self.root)?;
        let (mut taken, mut promised) = (0_u64, 0_u64);
        for namespace in directories(&self.root)? {
            for claim in directories(&namespace)? {
                // A claim that is removed meanwhile promises nothing.
                if let Ok(disk) = fs::symlink_metadata(claim.join(DISK)) {
                    let occupied = disk.blocks().saturating_mul(BLOCK).saturating_add(dumped(&claim));
                    taken = taken.saturating_add(occupied);
                    // The disk of a claim that is written to and dumped to takes its size, and the dump comes on top.
                    promised = promised.saturating_add(disk.len().max(occupied));
                }
            }
        }
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        Ok(Pool { capacity: free.saturating_add(taken), promised })
    }
}

/// What memory dumps in a claim take. One that is removed meanwhile takes nothing.
fn dumped(claim: &Path) -> u64 {
    let entries = fs::read_dir(claim).into_iter().flatten().flatten();
    let dumps = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(DUMP));
    let blocks = dumps.filter_map(|entry| Some(entry.metadata().ok()?.blocks()));
    blocks.fold(0, |sum, blocks| sum.saturating_add(blocks.saturating_mul(BLOCK)))
}

/// The directories in a directory; none where that is not there.
pub(super) fn directories(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    Ok(paths.collect::<io::Result<Vec<_>>>()?.into_iter().filter(|path| path.is_dir()).collect())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::ImageReader;
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_was_promised_counts_up_to_the_percentage() {
        let pool = Pool { capacity: 1000, promised: 600 };
        assert_eq!([100, 150, 60, 50].map(|percent| pool.left(percent)), [400, 900, 0, 0]);
        assert_eq!(Pool { capacity: u64::MAX, promised: 1 }.left(1000), u64::MAX - 1);
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(
            [0, 5 * MIB + 1, 1536 * MIB, 20 << 30].map(|bytes| Size(bytes).to_string()),
            ["0 MiB", "5 MiB", "1.5 GiB", "20.0 GiB"]
        );
    }

    /// A file system of its own, gone when dropped.
    struct Small(tempfile::TempDir);

    impl Drop for Small {
        fn drop(&mut self) {
            let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
        }
    }

    #[test]
    fn claims_share_their_file_system_without_silent_overcommit() {
        let small = Small(tempfile::tempdir().unwrap());
        let mount = ["-t", "tmpfs", "-o", "size=64m", "tmpfs"];
        if !Command::new("mount")
            .args(mount)
            .arg(small.0.path())
            .status()
            .is_ok_and(|status| status.success())
        {
            eprintln!("SKIPPED: this test may not mount file systems");
            return;
        }
        let claims = Claims::below(small.0.path().to_owned(), ImageReader::InProcess);
        claims.provide("a", "one", 40 * MIB).unwrap();
        let full = claims.provide("b", "two", 40 * MIB).unwrap_err();
        assert!(
            full.to_string()
                .contains("needs 40 MiB, and 24 MiB are free of 64 MiB: 40 MiB are promised to claims"),
            "{full}"
        );
        claims.provide("b", "two", 20 * MIB).unwrap();
        // Nor by growing; and what was written counts once.
        fs::write(claims.path("a", "one"), vec![7; usize::try_from(8 * MIB).unwrap()]).unwrap();
        assert!(claims.provide("b", "two", 60 * MIB).is_err());
        claims.provide("a", "one", 40 * MIB).unwrap();
        claims.provide("b", "two", 24 * MIB).unwrap();
        // Nor do disks of other kinds get what is promised, here or where there are no claims.
        let disk = small.0.path().join("disk.qcow2");
        let refused = claims.admit_disk(&disk, 8 * MIB).unwrap_err();
        assert!(
            matches!(refused, VolumeError::PoolFull { promised: Size(promised), .. } if promised == 64 * MIB)
        );
        let elsewhere = tempfile::tempdir().unwrap();
        let claimless = Claims::below(elsewhere.path().join("claims"), ImageReader::InProcess);
        claimless.admit_disk(&disk, 48 * MIB).unwrap();
        assert!(claimless.admit_disk(&disk, 80 * MIB).is_err(), "8 of 64 MiB are written");
        claimless.overcommit(200).admit_disk(&disk, 80 * MIB).unwrap();
        // An administrator may promise more.
        let generous = claims.clone().overcommit(200);
        generous.provide("c", "three", 60 * MIB).unwrap();
        assert!(generous.provide("c", "four", 8 * MIB).is_err());
        claims.remove("c", "three").unwrap();
        claims.remove("a", "one").unwrap();
        claims.provide("c", "three", 40 * MIB).unwrap();
    }
}
