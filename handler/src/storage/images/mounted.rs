//! Images that the kubelet has mounted in a launcher Pod.
//!
//! What a Pod reports of such an image is not always its digest. A file of it has the SHA-256 of its content for a name, so
//! that it is imported once on the node, whichever image it comes from.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use sha2::{Digest as _, Sha256};
use vireo_importer::{ReadAction, WantedFile};
use vireo_proto::files::ImageFile;

use super::{ImageError, Images, Source, collect, hex_of};
use crate::jobs::{JobContext, Jobs};
use crate::launcher::pod::ImageVolume;

/// How much is read at a time.
const CHUNK: usize = 1 << 20;

impl Source {
    /// The file to open in the image.
    fn in_image(&self) -> ImageFile {
        match &self.file {
            WantedFile::Disk(path) => ImageFile::Disk(path.clone()),
            WantedFile::Boot(path) => ImageFile::File(path.clone()),
        }
    }

    /// The name in the store of a file with this content: a disk becomes a raw image, a kernel stays as it is.
    fn name_of_content(&self, digest: &str) -> String {
        let kind = match &self.file {
            WantedFile::Disk(_) => "disk",
            WantedFile::Boot(_) => "file",
        };
        hex_of(&Sha256::digest(format!("mounted {kind}\0{digest}")))
    }
}

impl Images {
    /// The file of an image that is mounted in a launcher Pod; imported if it is not in the store.
    ///
    /// # Errors
    /// When it is not there, cannot be imported, or takes too long.
    pub(crate) async fn get_mounted(
        &self,
        jobs: &Jobs,
        namespace: &str,
        source: Source,
        volume: ImageVolume,
    ) -> Result<PathBuf, ImageError> {
        let wanted = source.in_image();
        let file = jobs.quick.run(namespace, move |_| volume.file(&wanted)).await??;
        self.get_opened(jobs, namespace, source, file).await
    }

    /// The same of a file that is open.
    async fn get_opened(
        &self,
        jobs: &Jobs,
        namespace: &str,
        source: Source,
        file: File,
    ) -> Result<PathBuf, ImageError> {
        let asked = source.file.to_string();
        let hash = move |job: &JobContext| {
            let digest = digest(&file, job).map_err(|source| ImageError::OpenFile { file: asked, source })?;
            Ok::<_, ImageError>((digest, file))
        };
        let (digest, file) = jobs.imports.run(namespace, hash).await??;
        let key = source.name_of_content(&digest);
        let at = self.at(&key, &source);
        if collect::mark_used(&at) {
            return Ok(at);
        }
        let turn = self.turn(&key);
        let _turn = turn.lock().await;
        let images = self.clone();
        let import = move |job: &JobContext| {
            let action = ReadAction::Copy { file: source.file };
            images.once(&key, &at, (&action, file.into()), job)
        };
        self.noted(jobs.imports.run(namespace, import).await?)
    }
}

/// The SHA-256 of a file's content. Blocks.
fn digest(file: &File, job: &JobContext) -> std::io::Result<String> {
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    let (mut hash, mut chunk, mut offset) = (Sha256::new(), vec![0; CHUNK], 0);
    loop {
        job.checkpoint()?;
        let read = file.read_at(&mut chunk, offset)?;
        let Some(bytes) = chunk.get(..read).filter(|bytes| !bytes.is_empty()) else {
            return Ok(hex_of(&hash.finalize()));
        };
        hash.update(bytes);
        offset += u64::try_from(read).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests;
