//! The pool that claims and empty disks are made of: their file system. Disks are sparse, so what was promised counts, and
//! not what was written.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::statvfs;

use super::dumps::DUMP;
use super::{Claims, DISK};
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
    /// Free, or taken by what it was promised to.
    capacity: u64,
    /// The sizes of all claims and empty disks.
    promised: u64,
}

impl Pool {
    /// What is left for others where so many percent of the capacity may be promised.
    fn left(self, percent: u64) -> u64 {
        let most = u128::from(self.capacity) * u128::from(percent) / 100;
        u64::try_from(most).unwrap_or(u64::MAX).saturating_sub(self.promised)
    }

    /// Adds a disk of a size, of which some may be written.
    fn add(&mut self, size: u64, occupied: u64) {
        self.capacity = self.capacity.saturating_add(occupied);
        // What is written beyond the size, such as the metadata of an image, is gone as well.
        self.promised = self.promised.saturating_add(size.max(occupied));
    }
}

/// What is promised beside the disks of claims that exist, on any file system: empty disks of VMs, which may be written up to
/// their capacities, and what claims are about to get. The lock is never held while a file system is asked, which may hang.
#[derive(Debug, Clone, Default)]
pub(super) struct Promises(Arc<Mutex<Vec<Arc<Promise>>>>);

/// Two promises of one path differ: each is known by its address.
#[derive(Debug)]
struct Promise {
    /// The disk's.
    path: PathBuf,
    capacity: u64,
    /// Its file exists. Later, one without a file is gone with its VM.
    is_made: bool,
}

impl Promises {
    fn known(&self) -> MutexGuard<'_, Vec<Arc<Promise>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Promises bytes to a disk that is about to be made or to grow. Returns what was promised before.
    fn reserve(&self, path: &Path, capacity: u64) -> (Reservation, Vec<Arc<Promise>>) {
        let promise = Arc::new(Promise { path: path.to_owned(), capacity, is_made: false });
        let mut known = self.known();
        let before = known.clone();
        known.push(Arc::clone(&promise));
        (Reservation { promises: self.clone(), promise }, before)
    }

    /// Promises a disk that exists its capacity, in place of what was promised to it earlier or is `reserved` for it.
    fn keep(&self, path: &Path, capacity: u64, reserved: Option<&Arc<Promise>>) {
        let is_replaced = |promise: &Arc<Promise>| {
            reserved.is_some_and(|reserved| Arc::ptr_eq(reserved, promise))
                || promise.is_made && promise.path == path
        };
        let mut known = self.known();
        known.retain(|promise| !is_replaced(promise));
        known.push(Arc::new(Promise { path: path.to_owned(), capacity, is_made: true }));
    }

    fn remove(&self, gone: &[Arc<Promise>]) {
        self.known().retain(|promise| !gone.iter().any(|gone| Arc::ptr_eq(gone, promise)));
    }
}

/// The capacity of a disk that is about to be made or to grow. It is given back when this is dropped, unless an empty disk was
/// made.
#[derive(Debug)]
pub struct Reservation {
    promises: Promises,
    promise: Arc<Promise>,
}

impl Reservation {
    /// The disk was made: the capacity is its own as long as its file exists.
    pub fn keep(self) {
        self.promises.keep(&self.promise.path, self.promise.capacity, Some(&self.promise));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.promises.remove(std::slice::from_ref(&self.promise));
    }
}

impl Claims {
    /// The same, of which this percentage of the pool may be promised.
    #[must_use]
    pub fn overcommit(self, percent: u64) -> Self {
        Self { overcommit: percent, ..self }
    }

    /// Checks whether a claim may have so many bytes more, which are its own until its disk has them. Blocks.
    pub(super) fn reserve(&self, path: &Path, more: u64) -> Result<Reservation, VolumeError> {
        let open = |source| VolumeError::Open { path: self.root.clone(), source };
        self.admit(path, more, |promised| self.pool(&self.root, promised).map_err(open))
    }

    /// Checks whether an empty disk that is about to be made may have so many bytes: what is free on its file system, less
    /// what is promised to claims and other empty disks there and not written yet. It is promised from then on. Blocks.
    ///
    /// # Errors
    /// When it may not, or its directory is not there.
    pub fn admit_disk(&self, path: &Path, bytes: u64) -> Result<Reservation, VolumeError> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        let open = |source| VolumeError::Open { path: path.to_owned(), source };
        self.admit(path, bytes, |promised| self.pool(directory, promised).map_err(open))
    }

    /// Promises bytes to a disk, if they fit. What does not fit beside what is promised already, and is asked for again and again,
    /// takes nothing from others meanwhile. Of several that ask at a time, some may be refused that fit.
    fn admit(
        &self,
        disk: &Path,
        bytes: u64,
        scan: impl Fn(&[Arc<Promise>]) -> Result<(Pool, Vec<Arc<Promise>>), VolumeError>,
    ) -> Result<Reservation, VolumeError> {
        // The lock is not held during the scan.
        let known = self.promises.known().clone();
        let (pool, _) = scan(&known)?;
        self.fits(disk, &pool, bytes)?;
        self.promise(disk, bytes, scan)
    }

    /// Promises bytes to a disk before it looks whether `scan` has space beside what was promised earlier, so that two that ask
    /// at a time do not get the same bytes.
    fn promise(
        &self,
        disk: &Path,
        bytes: u64,
        scan: impl FnOnce(&[Arc<Promise>]) -> Result<(Pool, Vec<Arc<Promise>>), VolumeError>,
    ) -> Result<Reservation, VolumeError> {
        let (reservation, before) = self.promises.reserve(disk, bytes);
        let (pool, gone) = scan(&before)?;
        self.promises.remove(&gone);
        self.fits(disk, &pool, bytes)?;
        Ok(reservation)
    }

    /// Counts an empty disk that was made before, whatever space there is. One that is not there is forgotten when space is
    /// asked for.
    pub fn promise_disk(&self, path: &Path, bytes: u64) {
        self.promises.keep(path, bytes, None);
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

    /// The pool of the file system that a directory is on, and the promises of disks that are gone.
    fn pool(&self, directory: &Path, promises: &[Arc<Promise>]) -> io::Result<(Pool, Vec<Arc<Promise>>)> {
        let device = fs::metadata(directory)?.dev();
        let stat = statvfs(directory)?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        let (mut pool, mut gone) = (Pool { capacity: free, promised: 0 }, Vec::new());
        // A node without claims has no directory of theirs.
        if fs::metadata(&self.root).is_ok_and(|root| root.dev() == device) {
            self.add_claims(&mut pool)?;
        }
        for promise in promises {
            // What is about to be written takes nothing yet; a claim that grows counts with the size that it has.
            let file = promise.is_made.then(|| fs::symlink_metadata(&promise.path)).transpose();
            let (its_device, occupied) = match file {
                Ok(Some(file)) => (Some(file.dev()), file.blocks().saturating_mul(BLOCK)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    gone.push(Arc::clone(promise));
                    continue;
                }
                // Its directory is where it is, or will be.
                Ok(None) | Err(_) => {
                    (promise.path.parent().and_then(|at| Some(fs::metadata(at).ok()?.dev())), 0)
                }
            };
            if its_device == Some(device) {
                pool.add(promise.capacity, occupied);
            }
        }
        Ok((pool, gone))
    }

    fn add_claims(&self, pool: &mut Pool) -> io::Result<()> {
        for namespace in directories(&self.root)? {
            for claim in directories(&namespace)? {
                // A claim that is removed meanwhile promises nothing.
                if let Ok(disk) = fs::symlink_metadata(claim.join(DISK)) {
                    pool.add(disk.len(), disk.blocks().saturating_mul(BLOCK));
                    // It comes on top: the disk may still be written up to its size.
                    let dump = dumped(&claim);
                    pool.add(dump, dump);
                }
            }
        }
        Ok(())
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

    /// One of 64 MiB.
    fn small() -> Option<Small> {
        let small = Small(tempfile::tempdir().unwrap());
        let mount = ["-t", "tmpfs", "-o", "size=64m", "tmpfs"];
        let mounted = Command::new("mount").args(mount).arg(small.0.path()).status();
        if !mounted.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: this test may not mount file systems");
            return None;
        }
        Some(small)
    }

    #[test]
    fn a_disk_adds_what_it_may_have_and_what_it_has() {
        let mut pool = Pool { capacity: 100, promised: 0 };
        pool.add(50, 20);
        assert_eq!(pool, Pool { capacity: 120, promised: 50 });
        assert_eq!(pool.left(100), 70, "of 100 free bytes, 30 are still to be written");
        pool.add(10, 15);
        assert_eq!(pool, Pool { capacity: 135, promised: 65 }, "written beyond its size");
        pool.add(u64::MAX, 0);
        assert_eq!((pool.promised, pool.left(100)), (u64::MAX, 0));
    }

    fn full(result: Result<impl fmt::Debug, VolumeError>) -> (u64, u64) {
        match result {
            Err(VolumeError::PoolFull { left: Size(left), promised: Size(promised), .. }) => {
                (left / MIB, promised / MIB)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_empty_disk_stays_promised_until_it_is_gone() {
        let Some(small) = small() else { return };
        let claims = Claims::below(small.0.path().join("claims"), ImageReader::InProcess);
        let at = |name: &str| small.0.path().join(name);
        let reserved = claims.admit_disk(&at("one"), 40 * MIB).unwrap();
        // Before its file is made, too, and not when it is not made after all.
        assert_eq!(full(claims.admit_disk(&at("two"), 30 * MIB)), (24, 40));
        drop(reserved);
        drop(claims.admit_disk(&at("two"), 30 * MIB).unwrap());
        let reserved = claims.admit_disk(&at("one"), 40 * MIB).unwrap();
        fs::write(at("one"), "header").unwrap();
        reserved.keep();
        // Other empty disks and claims get what is left; what was written counts once.
        assert_eq!(full(claims.clone().admit_disk(&at("two"), 30 * MIB)), (24, 40));
        assert_eq!(full(claims.provide("a", "claim", 30 * MIB)), (24, 40));
        fs::write(at("one"), vec![7; usize::try_from(8 * MIB).unwrap()]).unwrap();
        claims.provide("a", "claim", 20 * MIB).unwrap();
        assert_eq!(full(claims.provide("a", "claim", 30 * MIB)), (4, 60));
        // A disk of another file system takes nothing here.
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("other"), "header").unwrap();
        claims.promise_disk(&elsewhere.path().join("other"), 1 << 50);
        claims.provide("a", "claim", 24 * MIB).unwrap();
        // One that is gone is not promised any longer.
        fs::remove_file(at("one")).unwrap();
        claims.provide("b", "claim", 40 * MIB).unwrap();
        assert_eq!(claims.promises.known().len(), 1, "the other one");
    }

    #[test]
    fn what_is_promised_during_a_scan_stays_promised() {
        let Some(small) = small() else { return };
        let claims = Claims::below(small.0.path().join("claims"), ImageReader::InProcess);
        let at = |name: &str| small.0.path().join(name);
        claims.promise_disk(&at("one"), 40 * MIB);
        let scanned = claims.promise(&at("two"), 10 * MIB, |before| {
            // The disk was gone, and was made anew before that is noticed.
            let (pool, gone) = claims.pool(small.0.path(), before).unwrap();
            assert_eq!(gone.len(), 1);
            let made = claims.admit_disk(&at("one"), 40 * MIB).unwrap();
            fs::write(at("one"), "header").unwrap();
            made.keep();
            Ok((pool, gone))
        });
        assert_eq!(full(claims.admit_disk(&at("three"), 20 * MIB)), (14, 50));
        drop(scanned.unwrap());
        drop(claims.admit_disk(&at("three"), 20 * MIB).unwrap());
    }

    #[test]
    fn two_that_ask_at_a_time_do_not_get_the_same_bytes() {
        let Some(small) = small() else { return };
        let claims = Claims::below(small.0.path().join("claims"), ImageReader::InProcess);
        let at = |name: &str| small.0.path().join(name);
        let first = claims.promise(&at("one"), 40 * MIB, |before| {
            assert_eq!(full(claims.admit_disk(&at("two"), 30 * MIB)), (24, 40));
            Ok(claims.pool(small.0.path(), before).unwrap())
        });
        assert!(first.is_ok(), "{first:?}");
    }

    #[test]
    fn what_does_not_fit_takes_nothing_from_others() {
        let Some(small) = small() else { return };
        let claims = Claims::below(small.0.path().join("claims"), ImageReader::InProcess);
        let at = |name: &str| small.0.path().join(name);
        let large = claims.admit(&at("large"), 100 * MIB, |before| {
            drop(claims.admit_disk(&at("other"), 30 * MIB).expect("there is space"));
            Ok(claims.pool(small.0.path(), before).unwrap())
        });
        assert_eq!(full(large), (64, 0));
    }

    #[test]
    fn what_a_claim_is_about_to_get_is_promised() {
        let Some(small) = small() else { return };
        let claims = Claims::below(small.0.path().to_owned(), ImageReader::InProcess);
        let disk = small.0.path().join("disk.qcow2");
        claims.provide("a", "grows", 10 * MIB).unwrap();
        let reserved = claims.reserve(&claims.path("a", "grows"), 30 * MIB).unwrap();
        assert_eq!(full(claims.admit_disk(&disk, 30 * MIB)), (24, 40), "what it has and what it gets");
        drop(reserved);
        drop(claims.admit_disk(&disk, 30 * MIB).unwrap());
    }

    #[test]
    fn a_disk_of_a_guest_that_runs_is_promised_after_a_restart() {
        let Some(small) = small() else { return };
        let claims = Claims::below(small.0.path().to_owned(), ImageReader::InProcess);
        let at = small.0.path().join("scratch.qcow2");
        fs::write(&at, "header").unwrap();
        claims.provide("a", "before", 30 * MIB).unwrap();
        claims.promise_disk(&at, 60 * MIB);
        claims.promise_disk(&at, 60 * MIB);
        assert_eq!(
            full(claims.provide("a", "after", MIB)),
            (0, 90),
            "once, also where too much was promised"
        );
    }

    #[test]
    fn claims_share_their_file_system_without_silent_overcommit() {
        let Some(small) = small() else { return };
        let claims = Claims::below(small.0.path().to_owned(), ImageReader::InProcess);
        claims.provide("a", "one", 40 * MIB).unwrap();
        let full = claims.provide("b", "two", 40 * MIB).unwrap_err();
        assert!(
            full.to_string().contains(
                "needs 40 MiB, and 24 MiB are free of 64 MiB: 40 MiB are promised to claims and empty disks"
            ),
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
        drop(claimless.admit_disk(&disk, 48 * MIB).unwrap());
        assert!(claimless.admit_disk(&disk, 80 * MIB).is_err(), "8 of 64 MiB are written");
        drop(claimless.overcommit(200).admit_disk(&disk, 80 * MIB).unwrap());
        // An administrator may promise more.
        let generous = claims.clone().overcommit(200);
        generous.provide("c", "three", 60 * MIB).unwrap();
        assert!(generous.provide("c", "four", 8 * MIB).is_err());
        claims.remove("c", "three").unwrap();
        claims.remove("a", "one").unwrap();
        claims.provide("c", "three", 40 * MIB).unwrap();
    }
}
