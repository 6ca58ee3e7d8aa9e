//! Images of registries that this node pulls itself.
//!
//! A file in `references` has the digest that an image had when it was last asked for, for each namespace: users of one do not
//! get by `IfNotPresent` what others have pulled with credentials. A layout in `pulls` has the manifest and the layers of an
//! image, also when its download was interrupted; it is removed some time after its files were taken out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

use sha2::{Digest as _, Sha256};
use tracing::info;
use vireo_api::spec::{ImageRef, PullPolicy};
use vireo_importer::{Failure, FailureKind, ImageSelector, LayoutKind, Reference};

use super::super::importer::{RegistryImage, directory, free_space, publish_foreign_tree};
use super::super::registry::RegistrySettings;
use super::{ImageError, Images, Opened, Pull, Source, collect, hex_of, lock, store};
use crate::jobs::{JobContext, Jobs};

/// Layouts of images that are or were downloaded.
pub(super) const PULLS: &str = "pulls";
/// The digests that references had.
pub(super) const REFERENCES: &str = "references";
/// The steps in which progress is logged, in percent.
const LOGGED_STEP: u64 = 25;

impl Images {
    /// The file of an image of a registry.
    pub(super) async fn pull(
        &self,
        jobs: &Jobs,
        namespace: &str,
        source: Source,
        settings: &RegistrySettings,
    ) -> Result<PathBuf, ImageError> {
        let ImageRef::Registry(image) = &source.image else { return Err(ImageError::NoContainer) };
        let reference = parse(image)?;
        let record = self.record(namespace, &reference);
        let (images, wanted, path) = (self.clone(), source.clone(), record.clone());
        let look = move |_: &JobContext| {
            let digest = fs::read_to_string(path).ok()?;
            let at = images.at(&wanted.name(&digest), &wanted);
            collect::mark_used(&at).then_some(at)
        };
        match (source.policy, jobs.quick.run(namespace, look).await?) {
            (PullPolicy::IfNotPresent | PullPolicy::Never, Some(at)) => return Ok(at),
            (PullPolicy::Never, None) => return Err(ImageError::NeverPulled),
            (PullPolicy::IfNotPresent, None) | (PullPolicy::Always, _) => {}
        }
        let endpoints = settings.registries.endpoints(&reference, &source.secrets);
        let importer = RegistryImage { importer: settings.importer.clone(), image: image.clone(), endpoints };
        let (images, wanted, asks) = (self.clone(), source.clone(), importer.clone());
        let resolve = move |job: &JobContext| {
            let digest = asks.resolve(job)?;
            note(&record, &digest)?;
            let name = wanted.name(&digest);
            let at = images.at(&name, &wanted);
            Ok::<_, ImageError>((digest, name, collect::mark_used(&at).then_some(at)))
        };
        let (digest, name, found) = jobs.quick.run(namespace, resolve).await??;
        if let Some(at) = found {
            return Ok(at);
        }
        let turn = self.turn(&name);
        let _turn = turn.lock().await;
        let images = self.clone();
        let import = move |job: &JobContext| {
            let image = images.download(&importer, &digest, job)?;
            images.import_from(image, digest, &source, job)
        };
        self.noted(jobs.imports.run(namespace, import).await?)
    }

    /// Where the digest is that a reference had.
    fn record(&self, namespace: &str, reference: &Reference) -> PathBuf {
        let key = format!("{namespace}\0{}", reference.whole());
        self.0.directory.join(REFERENCES).join(hex_of(&Sha256::digest(key)))
    }

    /// Downloads an image, unless its layout is there. Blocks.
    fn download(
        &self,
        importer: &RegistryImage,
        digest: &str,
        job: &JobContext,
    ) -> Result<Opened, ImageError> {
        let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
        let layout = self.0.directory.join(PULLS).join(hex);
        fs::create_dir_all(&layout).map_err(store(&layout))?;
        let lock_path = layout.with_extension("lock");
        let _lock = lock(&lock_path, job)?;
        collect::mark_used(&lock_path);
        if !layout.join("index.json").exists() {
            let started = Instant::now();
            info!(image = importer.image, digest, "pulling an image");
            let listed = Listed::new(self, digest, &importer.image);
            let mut logged = 0;
            let mut progress = |done: u64, total: u64| {
                // The job is not stuck while bytes arrive; it is checked for cancellation elsewhere.
                let _ = job.checkpoint();
                listed.note(done, total);
                let percent = done.saturating_mul(100).checked_div(total).unwrap_or(100);
                if percent >= logged + LOGGED_STEP {
                    logged = percent;
                    info!(image = importer.image, done, total, "pulling an image");
                }
            };
            let most = free_space(&layout)?;
            let bytes = importer.pull((digest, &layout, most), job, &mut progress)?;
            let seconds = started.elapsed().as_secs_f64();
            info!(image = importer.image, digest, bytes, seconds, "pulled an image");
        }
        publish_foreign_tree(&layout).map_err(store(&layout))?;
        let (source, layout) = (directory(&layout)?, LayoutKind::Directory);
        Ok(Opened { source, layout, image: ImageSelector::Only })
    }
}

/// A download that is listed until it is dropped, by its digest, of which there is one download at a time.
struct Listed<'a> {
    images: &'a Images,
    digest: &'a str,
}

impl<'a> Listed<'a> {
    fn new(images: &'a Images, digest: &'a str, image: &str) -> Self {
        let listed = Self { images, digest };
        listed.pulls().insert(digest.to_owned(), Pull { image: image.to_owned(), done: 0, total: 0 });
        listed
    }

    fn note(&self, done: u64, total: u64) {
        if let Some(pull) = self.pulls().get_mut(self.digest) {
            (pull.done, pull.total) = (done, total);
        }
    }

    fn pulls(&self) -> MutexGuard<'a, BTreeMap<String, Pull>> {
        self.images.0.pulls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.pulls().remove(self.digest);
    }
}

/// What a registry is asked for.
pub(super) fn parse(image: &str) -> Result<Reference, Failure> {
    image.parse().map_err(|error: vireo_importer::ParseError| Failure {
        kind: FailureKind::Reference,
        message: format!("it is not a reference to an image: {error}"),
    })
}

/// Notes the digest that a reference has now.
fn note(record: &Path, digest: &str) -> Result<(), ImageError> {
    let write = || {
        fs::create_dir_all(record.parent().unwrap_or(Path::new("/")))?;
        // Whole or not at all: a reader takes it for a digest.
        let partial = tempfile::NamedTempFile::new_in(record.parent().unwrap_or(Path::new("/")))?;
        fs::write(partial.path(), digest)?;
        partial.persist(record).map(drop).map_err(|error| error.error)
    };
    write().map_err(store(record))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::images::tests::Built;

    #[test]
    fn a_tag_that_moves_during_a_download_is_listed_twice() {
        let built = Built::new();
        let images = built.images();
        let done = |images: &Images| {
            let mut done: Vec<_> =
                images.pulls().iter().map(|pull| (pull.image.clone(), pull.done)).collect();
            done.sort();
            done
        };
        let image = |done| ("registry/image:1".to_owned(), done);
        let first = Listed::new(&images, "sha256:b", "registry/image:1");
        let second = Listed::new(&images, "sha256:a", "registry/image:1");
        first.note(5, 10);
        second.note(7, 10);
        assert_eq!(done(&images), [image(5), image(7)]);
        drop(second);
        assert_eq!(done(&images), [image(5)]);
        drop(first);
        assert!(done(&images).is_empty());
    }
}
