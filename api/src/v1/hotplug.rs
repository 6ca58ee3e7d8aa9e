use super::shape::shapes;
use super::{ClaimVolumeSource, DataVolumeSource, Disk};

shapes! {
    /// What `addvolume` is asked with.
    pub struct AddVolumeOptions {
        /// The volume's name.
        pub name: String,
        /// The disk that shows it.
        pub disk: Option<Disk>,
        /// What it is filled from.
        pub volume_source: Option<HotplugVolumeSource>,
        /// `All`: only say whether it could be done.
        pub dry_run: Vec<String>,
    }

    /// What a volume that is plugged in is filled from: one of its sources.
    pub struct HotplugVolumeSource {
        /// A claim.
        pub persistent_volume_claim: Option<ClaimVolumeSource>,
        /// A claim that CDI fills.
        pub data_volume: Option<DataVolumeSource>,
    }

    /// What `removevolume` is asked with.
    pub struct RemoveVolumeOptions {
        /// The volume's name.
        pub name: String,
        /// `All`: only say whether it could be done.
        pub dry_run: Vec<String>,
    }
}
