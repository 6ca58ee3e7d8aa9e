//! Why images cannot be imported.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use vireo_importer::{Failure, FailureKind};

use super::super::allowed::NotAllowed;
use super::super::node_file::OpenError;
use super::super::prepare::ERR_IMAGE_PULL;
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
    /// No layout or archive has an image of a local name.
    #[error(
        "no OCI layout or archive in {directories} (--images) has an image of this name{}: put one there, as `skopeo copy` and `podman save` write it, or correct the name",
        .unreadable.as_ref().map(|why| format!(" ({why})")).unwrap_or_default()
    )]
    NotNamed {
        /// Where it was looked for.
        directories: String,
        /// One that might have it, and why it cannot be read.
        unreadable: Option<String>,
    },
    /// Several have different ones.
    #[error(
        "{first} and {second} have different images of this name: remove one, or name the image by its digest, as localhost/name@sha256:..."
    )]
    AmbiguousName {
        /// A layout or an archive.
        first: PathBuf,
        /// Another one.
        second: PathBuf,
    },
    /// The image of a registry cannot be pulled, or an image cannot be read.
    #[error(transparent)]
    Import(#[from] Failure),
    /// It may not be.
    #[error("the image is not on the node, and imagePullPolicy is Never")]
    NeverPulled,
    /// The program that pulls and reads images does not run.
    #[error("virt-importer does not run")]
    NoImporter(#[source] io::Error),
    /// It ended early.
    #[error("virt-importer ended early ({0}): the image may be too large for it")]
    ImporterEnded(ExitStatus),
    /// Its filter ended it.
    #[error("virt-importer was ended: its seccomp filter does not allow system call {0}")]
    ImporterRejected(String),
    /// The launcher Pod has no container with the image.
    #[error("the launcher Pod has no container with the image: delete the Pod, and it gets one")]
    NoContainer,
    /// The kubelet has pulled the image, but the store does not have its file.
    #[error(
        "the image store of the node does not have {0}: delete the launcher Pod, and it is imported again"
    )]
    NotImported(String),
    /// The container of the image does not offer its files.
    #[error("cannot get the files of the image from its container")]
    Fetch(#[source] io::Error),
    /// The image is not mounted in the launcher Pod.
    #[error("cannot open the image where it is mounted in the launcher Pod")]
    Mounted(#[source] io::Error),
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
    /// Nothing at that path in the image.
    #[error("the image has no file {0}")]
    NoFile(String),
    /// A container disk must hold one disk.
    #[error(
        "the image must hold exactly one file below /disk, or containerDisk.path must name one; it holds {0}"
    )]
    NotOneDisk(usize),
    /// No space is left.
    #[error("no space is left on the node for the disk image")]
    Full,
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

impl ImageError {
    /// Whether it is about what an image has, and not about this node.
    pub(super) fn is_of_content(&self) -> bool {
        matches!(self, Self::Import(_) | Self::ImporterEnded(_) | Self::ImporterRejected(_))
    }

    /// KubeVirt's word for it, which the kubelet has for images of Pods.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NeverPulled => "ErrImageNeverPull",
            Self::Import(Failure { kind: FailureKind::Reference, .. }) => "InvalidImageName",
            _ => ERR_IMAGE_PULL,
        }
    }
}
