//! Volumes of Pods, and where containers have them.

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Volume, VolumeMount};

/// A directory that is empty when its Pod starts.
pub(crate) fn empty_dir(name: &str) -> Volume {
    Volume { name: name.to_owned(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() }
}

/// A volume in a container.
pub(crate) fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}
