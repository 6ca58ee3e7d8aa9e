//! The disks of a VM: images shared by the node, and volumes of its own.
//!
//! Everything here blocks and may take long (an image of gigabytes is unpacked), except what is `async`: that has its
//! work done by [`Jobs`](crate::jobs::Jobs), which limit how long it takes and can be abandoned.
//! Everything is idempotent: what exists is kept, so it is safe to run again after a restart or a failure.

mod allowed;
pub mod claims;
pub mod cloud_init;
pub(crate) mod filesystems;
mod host_disks;
pub mod images;
mod importer;
pub mod iso;
pub mod prepare;
pub mod projected;
mod registry;
pub mod volumes;

pub use allowed::{AllowedDirectories, AllowedPaths, NotAllowed};
pub use claims::{ClaimError, Claims, Filled, Upload, UploadError};
pub(crate) use claims::{DumpDirectory, fits_dump};
pub(crate) use host_disks::HostDisks;
pub use images::{ImageError, Images, Pull};
pub use importer::{ImageReader, ImporterSettings};
pub use prepare::{
    ERR_IMAGE_PULL, FAILED_MOUNT, Kernel, NO_CLAIM, NO_IMAGE, NOT_BOUND, Places, Prepared, PullSecrets,
    StorageError, find_claims, prepare, prepare_disk, promise_disks,
};
pub(crate) use prepare::{metrics_disk, metrics_port};
pub use registry::{CredentialsError, PullSecret, Registries, RegistriesError, RegistrySettings};
use vireo_importer::node_file;
pub use vireo_importer::node_file::OpenError;
