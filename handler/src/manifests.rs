//! Where VMIs come from: a directory of manifests, as a kubelet's static pods.

pub mod catalog;
pub mod document;
pub mod watch;

use serde::{Deserialize, Serialize};

/// What a VMI is called: the name under which manifests, records and users mean the same machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
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
