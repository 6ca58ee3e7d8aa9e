//! Disks whose raw images grow while the VM runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::warn;
use vireo_vmconfig::DiskSource;

use crate::launch::Disk;

/// How often images are looked at.
const PERIOD: Duration = Duration::from_secs(5);
const SECTOR: u64 = 512;

/// Ticks when images are to be looked at.
pub(super) fn ticks() -> Interval {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Images that may grow, by names.
#[derive(Clone, Debug, Default)]
pub(super) struct GrowingImages(Arc<Mutex<BTreeMap<String, Image>>>);

#[derive(Debug)]
struct Image {
    file: Arc<File>,
    /// The largest size that was reported, in bytes.
    reported: u64,
    /// When it was looked at last.
    seen: u64,
}

impl GrowingImages {
    /// Adds the image of a disk, if that can grow. Its file stays open until [`Self::remove`].
    ///
    /// # Errors
    /// When the file cannot be duplicated, or has no size.
    pub(super) fn add(&self, name: String, disk: &Disk, image: &File) -> io::Result<()> {
        if disk.read_only || disk.is_cdrom() || !matches!(disk.source, DiskSource::Raw(_)) {
            return Ok(());
        }
        let file = image.try_clone()?;
        let bytes = size(&file)?;
        self.images().insert(name, Image { file: Arc::new(file), reported: bytes, seen: bytes });
        Ok(())
    }

    /// Closes the file of an image, if it is there.
    pub(super) fn remove(&self, name: &str) {
        self.images().remove(name);
    }

    /// Closes all.
    pub(super) fn clear(&self) {
        self.images().clear();
    }

    /// The images that have grown, and do not grow any more, with their sizes in whole sectors: a hypervisor that learns a
    /// size may cut off what comes after it. Each is reported once. Blocks.
    pub(super) fn grown(&self) -> Vec<(String, u64)> {
        let files: Vec<_> =
            self.images().iter().map(|(name, image)| (name.clone(), image.file.clone())).collect();
        let sizes = files.into_iter().filter_map(|(name, file)| match size(&file) {
            Ok(bytes) => Some((name, bytes)),
            Err(error) => {
                warn!(disk = name, %error, "the size of a disk image is unknown");
                None
            }
        });
        // The files are looked at without the lock.
        let sizes: Vec<_> = sizes.filter(|(_, bytes)| bytes % SECTOR == 0).collect();
        let mut images = self.images();
        let grown = sizes.into_iter().filter(|(name, bytes)| {
            let Some(image) = images.get_mut(name) else { return false };
            let has_grown = image.reported < *bytes && image.seen == *bytes;
            image.seen = *bytes;
            image.reported = if has_grown { *bytes } else { image.reported };
            has_grown
        });
        grown.collect()
    }

    fn images(&self) -> MutexGuard<'_, BTreeMap<String, Image>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size(mut file: &File) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::sample;

    fn disk() -> Disk {
        let launch = sample::kernel_boot();
        let disk = launch.disks.first().expect("a disk").clone();
        Disk { read_only: false, source: DiskSource::Raw("/disk.img".into()), ..disk }
    }

    #[test]
    fn growth_is_seen_once_and_shrinking_never() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let images = GrowingImages::default();
        images.add("a".into(), &disk(), &file).unwrap();
        assert_eq!(images.grown(), []);
        file.set_len(8192 + 100).unwrap();
        assert_eq!((images.grown(), images.grown()), (vec![], vec![]), "no whole sectors");
        file.set_len(8192).unwrap();
        assert_eq!(images.grown(), [], "it may grow on");
        assert_eq!(images.grown(), [("a".to_owned(), 8192)]);
        assert_eq!(images.grown(), []);
        for smaller in [512, 8192] {
            file.set_len(smaller).unwrap();
            assert_eq!((images.grown(), images.grown()), (vec![], vec![]), "{smaller}");
        }
        file.set_len(12288).unwrap();
        images.remove("a");
        assert_eq!((images.grown(), images.grown()), (vec![], vec![]));
    }

    #[test]
    fn read_only_images_and_those_with_a_format_do_not_grow() {
        let file = tempfile::tempfile().unwrap();
        let images = GrowingImages::default();
        images.add("a".into(), &Disk { read_only: true, ..disk() }, &file).unwrap();
        let source = DiskSource::Qcow2 { path: "/disk.qcow2".into(), backing: None };
        images.add("b".into(), &Disk { source, ..disk() }, &file).unwrap();
        images.add("c".into(), &disk(), &file).unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(images.grown(), []);
        assert_eq!(images.grown(), [("c".to_owned(), 4096)]);
        images.clear();
        file.set_len(8192).unwrap();
        assert_eq!((images.grown(), images.grown()), (vec![], vec![]));
    }
}
