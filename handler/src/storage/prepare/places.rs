//! The directories and stores that the disks of a VM come from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use vireo_api::spec::{Pull, PullPolicy};

use super::{StorageError, directory};
use crate::jobs::Jobs;
use crate::launcher::files::PodFiles;
use crate::launcher::pod::ImageVolume;
use crate::storage::allowed::AllowedPaths;
use crate::storage::claims::Claims;
use crate::storage::images::{ImageError, Images, Source};
use crate::storage::projected::ProjectedFiles;
use crate::storage::registry::PullSecret;

/// The directories and stores that disks come from.
#[derive(Debug, Clone)]
pub struct Places {
    /// The VM's own directory.
    pub vmi: PathBuf,
    /// The directory of the disks that end with it.
    pub disks: PathBuf,
    /// The directory of files that outlive the VMI.
    pub kept: PathBuf,
    /// The image store of the node.
    pub images: Images,
    /// The node's claims.
    pub claims: Claims,
    /// Which files of the node may be disks.
    pub allowed: AllowedPaths,
    /// The digests of the images that the kubelet has pulled for the launcher Pod, by their containers.
    pub pulled: BTreeMap<String, String>,
    /// The volumes with images that the kubelet has mounted in the launcher Pod, by their names.
    pub image_volumes: BTreeSet<String>,
    /// The paths of the disks of claims that the kubelet has mounted in the launcher Pod and in attachment Pods.
    pub mounted: BTreeSet<String>,
    /// The launcher Pod, where the kubelet mounts claims and images.
    pub(crate) pod: Option<PodFiles>,
    /// The files that Kubernetes projects from its objects.
    pub projected: ProjectedFiles,
    /// The credentials for images that this node pulls.
    pub pull_secrets: PullSecrets,
    /// The disks were made before: registries are not asked again for what the node has.
    pub is_prepared: bool,
}

impl Places {
    /// The directory of what a VM holds in the store of images, which is on the same file system.
    fn holds(&self) -> PathBuf {
        self.vmi.join("volumes")
    }

    /// What the overlay at a path holds.
    pub(super) fn held(&self, overlay: &Path) -> PathBuf {
        self.holds().join(overlay.file_name().unwrap_or_default()).with_extension("base")
    }

    /// Makes the VM's own directory of disks. That of a Pod is the kubelet's, which removes it with the Pod.
    pub(super) fn make_directory(&self) -> Result<(), StorageError> {
        directory(&self.holds())
    }

    /// The file of an image in the store of the node, by the container or the volume of the launcher Pod for the image.
    pub(super) async fn imported(
        &self,
        jobs: &Jobs,
        namespace: &str,
        source: Source,
        (name, pull): (&str, &Pull),
    ) -> Result<PathBuf, ImageError> {
        match self.image_volume(name) {
            Some(volume) => self.images.get_mounted(jobs, namespace, source, volume).await,
            None => self.images.get(jobs, namespace, self.of_image(source, name, pull)).await,
        }
    }

    /// The image that is a volume of this name in the launcher Pod.
    pub(super) fn image_volume(&self, name: &str) -> Option<ImageVolume> {
        let pod = self.pod.as_ref().filter(|_| self.image_volumes.contains(name))?;
        Some(ImageVolume { pid: pod.pid, name: name.to_owned() })
    }

    /// A file of an image, of which container of the launcher Pod.
    fn of_image(&self, source: Source, container: &str, pull: &Pull) -> Source {
        let policy = match self.is_prepared && pull.policy() == PullPolicy::Always {
            true => PullPolicy::IfNotPresent,
            false => pull.policy(),
        };
        source.pulled(self.pulled.get(container).cloned()).pull(policy, self.pull_secrets.of(pull))
    }
}

/// The credentials for images.
#[derive(Debug, Clone, Default)]
pub struct PullSecrets {
    /// Those that images name, by the names of their Secrets.
    pub named: BTreeMap<String, PullSecret>,
    /// Those of the ServiceAccount, for all images.
    pub of_account: Vec<PullSecret>,
}

impl PullSecrets {
    /// Those for an image.
    fn of(&self, pull: &Pull) -> Vec<PullSecret> {
        let named = pull.secret().and_then(|name| self.named.get(name));
        named.into_iter().chain(&self.of_account).cloned().collect()
    }
}
