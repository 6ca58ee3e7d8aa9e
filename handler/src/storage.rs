//! Where a VM's disks come from: images shared by the node, and volumes of its own.
//!
//! Everything here blocks and may take long (an image of gigabytes is unpacked): call it off the async threads.
//! Everything is idempotent: what exists is kept, so it is safe to run again after a restart or a failure.

mod blobs;
pub mod claims;
pub mod cloud_init;
mod format;
pub mod host_disks;
pub mod images;
mod oci;
pub mod prepare;
mod sparse;
pub mod volumes;

pub use blobs::BlobError;
pub use claims::{ClaimError, Claims, Filled, Upload, UploadError};
pub use format::FormatError;
pub use host_disks::{HostDisks, NotAllowed};
pub use oci::OciError;
pub use prepare::{
    Kernel, NO_CLAIM, NO_IMAGE, NOT_BOUND, Places, Prepared, StorageError, find_claims, prepare, prepare_disk,
};
