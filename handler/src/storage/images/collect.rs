//! Removes images that no VMI uses, before they fill the node's disk.
//!
//! Each VMI whose disk is over an image has a hard link to it in its own directory, which goes with the VMI: an image with one
//! link is unused. So is a kernel, which launchers read once. The time of its last modification is that of its last use.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, flock, statvfs, utimensat,
};
use tokio::sync::Notify;
use tracing::{info, warn};

use super::pull::{PULLS, REFERENCES};

/// An image that was not used for this long is removed.
const LONGEST_UNUSED: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// An image that was used so recently may be linked by a VMI soon.
const JUST_USED: Duration = Duration::from_secs(10 * 60);
/// Unused images are removed when more than the first part, in percent, of the file system is taken, until it is the second.
/// As the kubelet does with container images.
const TAKEN: (u64, u64) = (85, 80);
/// How often this is looked at.
const INTERVAL: Duration = Duration::from_secs(5 * 60);

/// An image with one link.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Unused {
    path: PathBuf,
    /// Bytes on the disk.
    size: u64,
    since: SystemTime,
}

/// A file system, in bytes.
#[derive(Debug, Clone, Copy)]
struct Space {
    total: u64,
    available: u64,
}

/// Those to remove, the longest unused first.
fn superfluous(mut unused: Vec<Unused>, space: Space, now: SystemTime) -> Vec<Unused> {
    let age = |image: &Unused| now.duration_since(image.since).unwrap_or_default();
    let taken = space.total.saturating_sub(space.available);
    let [most, least] = [TAKEN.0, TAKEN.1].map(|percent| space.total / 100 * percent);
    let mut excess = if taken > most { taken - least } else { 0 };
    unused.retain(|image| age(image) >= JUST_USED);
    unused.sort_by_key(|image| image.since);
    unused.retain(|image| {
        let is_removed = excess > 0 || age(image) >= LONGEST_UNUSED;
        if is_removed {
            excess = excess.saturating_sub(image.size);
        }
        is_removed
    });
    unused
}

/// The image, if no VMI uses it and it is there.
fn unused(path: PathBuf) -> io::Result<Option<Unused>> {
    let metadata = match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        metadata => metadata?,
    };
    let is_unused = metadata.is_file() && metadata.nlink() == 1;
    Ok(is_unused.then_some(Unused { size: metadata.blocks() * 512, since: metadata.modified()?, path }))
}

fn is_image(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "raw" || extension == "bin")
}

/// Removes what is superfluous in a store. Blocks.
fn collect(directory: &Path, now: SystemTime) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        // There was no image yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let mut images = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if is_image(&path) {
            images.extend(unused(path)?);
        }
    }
    collect_pulls(&directory.join(PULLS), now)?;
    collect_references(&directory.join(REFERENCES), now)?;
    let file_system = statvfs(directory)?;
    let [total, available] = [file_system.f_blocks, file_system.f_bavail]
        .map(|blocks| blocks.saturating_mul(file_system.f_frsize));
    for image in superfluous(images, Space { total, available }, now) {
        if remove(&image)? {
            let path = image.path.display();
            info!(image = %path, bytes = image.size, "removed an image that no VMI uses");
        }
    }
    Ok(())
}

/// Removes the layouts of images that were pulled and not used since, whose files are in the store. Blocks.
fn collect_pulls(directory: &Path, now: SystemTime) -> io::Result<()> {
    for path in entries(directory)? {
        let lock_path = path.with_extension("lock");
        if path == lock_path || age(&lock_path, now).is_none_or(|age| age < JUST_USED) {
            continue;
        }
        let lock = fs::OpenOptions::new().write(true).open(&lock_path)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            fs::remove_dir_all(&path)?;
            fs::remove_file(&lock_path)?;
        }
    }
    Ok(())
}

/// Removes digests of references that were not asked for since.
fn collect_references(directory: &Path, now: SystemTime) -> io::Result<()> {
    for path in entries(directory)? {
        if age(&path, now).is_some_and(|age| age >= LONGEST_UNUSED) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// The entries of a directory, none where there is no directory.
fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.path())).collect(),
    }
}

/// How long a file was not modified.
fn age(path: &Path, now: SystemTime) -> Option<Duration> {
    now.duration_since(fs::metadata(path).ok()?.modified().ok()?).ok()
}

/// Removes an image, unless it was used or is imported meanwhile.
fn remove(image: &Unused) -> io::Result<bool> {
    let lock = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(image.path.with_extension("lock"))?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err()
        || unused(image.path.clone())?.as_ref() != Some(image)
    {
        return Ok(false);
    }
    fs::remove_file(&image.path)?;
    Ok(true)
}

/// Notes that an image is used now. Whether it is in the store.
pub(super) fn mark_used(image: &Path) -> bool {
    let now = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
    };
    utimensat(CWD, image, &now, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// Links an image to `at` in the directory of a VMI, which keeps it from being removed. An older link stays.
pub(in crate::storage) fn hold(image: &Path, at: &Path) -> io::Result<()> {
    match fs::hard_link(image, at) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

/// Removes superfluous images in a store from time to time, and when an import has found it `full`, until it is dropped.
pub(super) async fn run(directory: PathBuf, full: &Notify) {
    loop {
        let store = directory.clone();
        let collected = tokio::task::spawn_blocking(move || collect(&store, SystemTime::now())).await;
        if let Ok(Err(error)) = collected {
            warn!(%error, store = %directory.display(), "cannot remove unused images; it is tried again");
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = full.notified() => info!(store = %directory.display(), "an import found no space"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn image(name: &str, now: SystemTime, age: Duration) -> Unused {
        Unused { path: name.into(), size: 2 * GIB, since: now - age }
    }

    fn removed(available: u64) -> Vec<String> {
        let now = SystemTime::now();
        let images = vec![
            image("recent", now, DAY),
            image("just-used", now, Duration::from_secs(60)),
            image("old", now, 8 * DAY),
            image("older", now, 2 * DAY),
        ];
        let space = Space { total: 100 * GIB, available };
        superfluous(images, space, now).into_iter().map(|one| one.path.display().to_string()).collect()
    }

    #[test]
    fn old_images_are_removed_and_others_where_space_is_short() {
        assert_eq!(removed(90 * GIB), ["old"]);
        assert_eq!(removed(15 * GIB), ["old"]);
        assert_eq!(removed(14 * GIB), ["old", "older", "recent"]);
        assert_eq!(removed(0), ["old", "older", "recent"], "what was just used is about to be linked");
    }

    #[test]
    fn an_image_stays_while_a_vmi_holds_it() {
        let (store, vmi) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (held, free) = (store.path().join("a.raw"), store.path().join("b.raw"));
        for path in [&held, &free] {
            fs::write(path, "disk").unwrap();
        }
        let link = vmi.path().join("root.base");
        for _ in 0..2 {
            hold(&held, &link).unwrap();
        }
        let later = SystemTime::now() + LONGEST_UNUSED + DAY;
        collect(store.path(), later).unwrap();
        assert_eq!((held.exists(), free.exists()), (true, false));
        assert!(mark_used(&held) && !mark_used(&free));
        fs::remove_file(link).unwrap();
        collect(store.path(), SystemTime::now()).unwrap();
        assert!(held.exists(), "it was used just now");
        collect(store.path(), later).unwrap();
        assert!(!held.exists());
        collect(&store.path().join("absent"), later).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_import_without_space_has_images_removed_at_once() {
        let store = tempfile::tempdir().unwrap();
        let (path, full) = (store.path().join("a.raw"), Notify::new());
        fs::write(&path, "disk").unwrap();
        let collecting = run(store.path().to_owned(), &full);
        tokio::pin!(collecting);
        let started = tokio::time::Instant::now();
        // The first round, in which it was used just now.
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut collecting).await.is_err());
        assert!(path.exists());
        let old = SystemTime::now() - LONGEST_UNUSED - DAY;
        fs::File::open(&path).unwrap().set_modified(old).unwrap();
        full.notify_one();
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut collecting).await.is_err());
        assert!(!path.exists() && started.elapsed() < INTERVAL);
    }

    #[test]
    fn what_was_pulled_goes_when_its_files_are_taken_out() {
        let store = tempfile::tempdir().unwrap();
        let (pulled, reference) = (store.path().join("pulls/0f"), store.path().join("references/0e"));
        for directory in [&pulled, &reference] {
            fs::create_dir_all(directory.parent().unwrap()).unwrap();
        }
        fs::create_dir(&pulled).unwrap();
        fs::write(pulled.join("index.json"), "").unwrap();
        let lock_path = pulled.with_extension("lock");
        let lock = fs::File::create(&lock_path).unwrap();
        fs::write(&reference, "sha256:0f").unwrap();
        let now = SystemTime::now();
        collect(store.path(), now).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        collect(store.path(), now + DAY).unwrap();
        assert!(pulled.exists() && reference.exists(), "it is being downloaded");
        drop(lock);
        collect(store.path(), now + DAY).unwrap();
        assert!(!pulled.exists() && !lock_path.exists() && reference.exists());
        collect(store.path(), now + 8 * DAY).unwrap();
        assert!(!reference.exists());
    }

    #[test]
    fn an_image_that_is_used_meanwhile_stays() {
        let store = tempfile::tempdir().unwrap();
        let path = store.path().join("a.raw");
        fs::write(&path, "disk").unwrap();
        let seen = unused(path.clone()).unwrap().unwrap();
        let other = Unused { since: seen.since - DAY, ..seen.clone() };
        assert!(!remove(&other).unwrap());
        let lock = fs::File::create(store.path().join("a.lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        assert!(!remove(&seen).unwrap(), "it is imported");
        drop(lock);
        assert!(remove(&seen).unwrap());
        assert!(!remove(&seen).unwrap(), "it is gone");
    }
}
