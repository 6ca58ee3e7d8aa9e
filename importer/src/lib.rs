//! Gets images from registries (OCI distribution specification 1.1), in a process of its own.
//!
//! The node agent starts `virt-importer`, writes a [`Request`] to its standard input and reads one [`Answer`] a line from its
//! standard output. What a registry sends is hostile: the process has limits of memory and of file sizes, and what it
//! downloads is kept only with its digest. It leaves an OCI image layout, whose blobs it goes on with after it was killed.

mod failure;
mod layout;
mod limits;
mod protocol;
mod pull;
mod registry;

pub use failure::{Failure, FailureKind};
pub use limits::confine;
pub use oci_client::{ParseError, Reference};
pub use protocol::{Action, Answer, Credentials, Endpoint, Request};
pub use pull::run;
