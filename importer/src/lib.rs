//! Gets images from registries (OCI distribution specification 1.1) and reads images, in processes apart from the node agent.
//!
//! The node agent starts `virt-importer`, writes a [`Task`] to its standard input and reads one [`Answer`] a line from its
//! standard output. What a registry sends and what an image has is hostile: the process is a user without privileges, sees no
//! files of the node but what it needs, and has limits ([`sandbox`]). What it downloads is kept only with its digest. It leaves an OCI image layout, whose blobs it goes on
//! with after it was killed. What it reads and writes otherwise, it inherits open.

mod blobs;
mod convert;
mod failure;
mod format;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod layout;
mod names;
pub mod node_file;
mod oci;
mod protocol;
mod pull;
mod read;
mod registry;
pub mod sandbox;
mod sparse;
mod tar_headers;

pub use convert::{Running, convert, qemu_img, start_qemu_img};
pub use failure::{Failure, FailureKind};
pub use names::{ImageName, ImageSelector, NamedImage};
pub use oci_client::{ParseError, Reference};
pub use protocol::{
    Action, Answer, ConvertRequest, Credentials, Endpoint, Qcow2Image, ReadRequest, Request, Task, Work,
};
pub use pull::run;
pub use read::{Files, LayoutKind, ReadAction, WantedFile, read};
