use super::shape::shapes;
use super::{ClaimVolumeSource, DataVolumeSource, Disk, VolumeClaim};

shapes! {
    /// Options of the `addvolume` subresource, which hotplugs a volume and its disk.
    pub struct AddVolumeOptions {
        /// Name of the volume and the disk in the VMI spec.
        pub name: String,
        /// Disk that is hotplugged into the running VMI.
        pub disk: Option<Disk>,
        /// Source of the volume.
        pub volume_source: Option<HotplugVolumeSource>,
        /// When present, no modification is persisted. The only valid value is `All`: all dry run stages are processed.
        pub dry_run: Vec<String>,
    }

    /// Source of a volume that is hotplugged: one of its members must be set.
    pub struct HotplugVolumeSource {
        /// PersistentVolumeClaim in the same namespace that is attached to the VMI.
        pub persistent_volume_claim: Option<ClaimVolumeSource>,
        /// DataVolume whose PersistentVolumeClaim CDI creates and imports.
        pub data_volume: Option<DataVolumeSource>,
    }

    /// Options of the `removevolume` subresource, which unplugs a volume and its disk.
    pub struct RemoveVolumeOptions {
        /// Name of the volume and the disk in the VMI spec.
        pub name: String,
        /// When present, no modification is persisted. The only valid value is `All`: all dry run stages are processed.
        pub dry_run: Vec<String>,
    }
}

impl HotplugVolumeSource {
    /// The claim that it is.
    pub fn claim(&self) -> Option<VolumeClaim<'_>> {
        let claim = self.persistent_volume_claim.as_ref().map(VolumeClaim::from);
        claim.or_else(|| self.data_volume.as_ref().map(VolumeClaim::from))
    }
}
