//! What is wanted of a node's VMIs, and one place where that is written: a directory of manifests, as a kubelet's
//! static pods. [`Source`] is what every such place gives; the Kubernetes API is another.

pub mod catalog;
pub mod directory;
pub mod document;
pub mod watch;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use vireo_client::ObjectKey as Key;

use catalog::Update;

/// Where VMIs come from.
pub trait Source: Send {
    /// Returns when it is known what is wanted. `adopted` are the VMIs, with their UIDs, that are on this node from before
    /// and are objects of an API.
    fn ready(&mut self, adopted: Vec<(Key, Uuid)>) -> impl Future<Output = ()> + Send;

    /// What is wanted now, everything or what changed since the last call. `owners` says which file each existing VMI came
    /// from.
    fn update(&mut self, owners: &BTreeMap<Key, String>) -> Update;

    /// Returns when what is wanted may have changed.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;

    /// Called after every update. Nothing is left on this node of a VMI for whose name and UID `busy` is false.
    fn settle(&mut self, busy: &(dyn Fn(&Key, &str) -> bool + Send + Sync));
}

/// What made a VMI wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A manifest in this file. The VMI gets its UID here.
    File(String),
    /// An object of the API, which has a UID already, and which never changes what it wants.
    Object(Uuid),
}

/// One thing that is wrong with a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The path of the field, `spec.domain.devices.disks[0].bootOrder`; empty when it is about the whole.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
    /// What is wrong and what to do.
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

/// A manifest that was refused, with everything that is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
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
    /// All of them at once.
    pub problems: Vec<Problem>,
}
