//! The desired state of a node's VMIs. [`Source`] is the interface of its sources: a directory of manifests, like a
//! kubelet's static pods, and the Kubernetes API.

pub mod desired;
pub mod directory;
pub mod document;
pub mod watch;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use vireo_client::ObjectKey as Key;

use desired::Update;

/// A source of VMIs.
pub trait Source: Send {
    /// Returns when the desired state is known. `adopted` are the VMIs, with their UIDs, that were on this node before
    /// the restart and are objects of an API.
    fn ready(&mut self, adopted: Vec<(Key, Uuid)>) -> impl Future<Output = ()> + Send;

    /// The desired state, complete or as changes since the last call. `owners` has the file that each existing VMI came
    /// from.
    fn update(&mut self, owners: &BTreeMap<Key, String>) -> Update;

    /// Returns when the desired state may have changed.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;

    /// Called after every update. `busy` is false for the name and UID of a VMI of which nothing is left on this node.
    fn settle(&mut self, busy: &(dyn Fn(&Key, &str) -> bool + Send + Sync));
}

/// The origin of a VMI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A manifest in this file. The VMI gets its UID here.
    File(String),
    /// An object of the API, which has a UID already.
    Object(Uuid),
}

/// One thing that is wrong with a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The path of the field, `spec.domain.devices.disks[0].bootOrder`; empty when it is about the whole.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
    /// What is wrong and what is accepted.
    pub message: String,
}

impl Problem {
    /// A problem of the whole document or file.
    pub fn whole(message: impl Into<String>) -> Self {
        Self { field: String::new(), message: message.into() }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&self.message),
            field => write!(f, "{field}: {}", self.message),
        }
    }
}

/// A manifest that was rejected, with all its problems.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    /// The file's name in the manifests directory.
    pub file: String,
    /// Which document of the file, from 1; absent when it is about the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<usize>,
    /// `metadata.namespace`, where it could be read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// `metadata.name`, where it could be read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// All its problems.
    pub problems: Vec<Problem>,
}
