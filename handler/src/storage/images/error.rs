//! Why images cannot be imported.

use std::io;
use std::path::PathBuf;

use super::super::allowed::NotAllowed;
use super::super::blobs::BlobError;
use super::super::format::FormatError;
use super::super::node_file::OpenError;
use super::super::oci::OciError;
use crate::jobs::JobError;

/// Why an image cannot be imported. It does not quote the content of a file of the node.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Not one that manifests may name.
    #[error(transparent)]
    NotAllowed(#[from] NotAllowed),
    /// The layout directory or the archive.
    #[error("cannot open {path}")]
    Open {
        /// As the manifest names it.
        path: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// An image of a registry, where no kubelet pulls it.
    #[error("pulling from a registry is not available here: use oci: or oci-archive:")]
    Registry,
    /// The kubelet has pulled the image, but the store does not have its file.
    #[error(
        "the image store of the node does not have {0}: delete the launcher Pod, and it is imported again"
    )]
    NotImported(String),
    /// The container of the image does not offer its files.
    #[error("cannot get the files of the image from its container")]
    Fetch(#[source] io::Error),
    /// What offers files is not the container of the image, or they are not the image's.
    #[error("the files that are offered are not those of the image in its container")]
    Foreign,
    /// A file of the image.
    #[error("cannot open {file} in the image")]
    OpenFile {
        /// The path in the image.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// The OCI image.
    #[error(transparent)]
    Oci(#[from] OciError),
    /// Nothing at that path in the image.
    #[error("the image has no file {0}")]
    NoFile(String),
    /// A path that leads to something else.
    #[error("{file} in the image is {what}, not a regular file")]
    NotRegular {
        /// The path in the image.
        file: String,
        /// What is there.
        what: &'static str,
    },
    /// A container disk must hold one disk.
    #[error(
        "the image must hold exactly one file below /disk, or containerDisk.path must name one; it holds {0}"
    )]
    NotOneDisk(usize),
    /// The disk itself.
    #[error("{file} in the image cannot be used")]
    Format {
        /// The path in the image.
        file: String,
        /// Why.
        source: FormatError,
    },
    /// `qemu-img` could not convert it.
    #[error("qemu-img cannot convert the disk image: it is damaged")]
    Convert,
    /// No space is left.
    #[error("no space is left on the node for the disk image")]
    Full,
    /// `qemu-img` could not be started.
    #[error("cannot run qemu-img (Debian package qemu-utils)")]
    NoQemuImg(#[source] io::Error),
    /// The store.
    #[error("cannot write {path} in the image store")]
    Store {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It took too long, or too much hangs already.
    #[error(transparent)]
    Job(#[from] JobError),
}

impl From<BlobError> for ImageError {
    fn from(error: BlobError) -> Self {
        Self::Oci(error.into())
    }
}
