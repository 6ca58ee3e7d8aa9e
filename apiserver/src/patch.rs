//! Changing an object by a patch.
//!
//! What a patch makes of an object is bounded before it is made: a small JSON Patch could else multiply the object by
//! copies of itself, or nest it deeper than any stack.

mod json;
mod strategic;

use json_patch::PatchOperation;
use serde_json::Value;
use thiserror::Error;

/// How a patch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// RFC 6902.
    Json,
    /// RFC 7396.
    Merge,
    /// Kubernetes' own: lists of objects are merged by a key.
    Strategic,
}

/// A patch.
#[derive(Debug, Clone, PartialEq)]
pub enum Patch {
    /// RFC 6902.
    Json(Vec<PatchOperation>),
    /// RFC 7396: an object.
    Merge(Value),
    /// Kubernetes' own: an object.
    Strategic(Value),
}

/// Why a patch does not apply.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PatchError {
    /// It is not a patch.
    #[error("{0}")]
    Malformed(String),
    /// It does not fit the object.
    #[error("{0}")]
    Unfit(String),
    /// It has more operations, or does more, than is allowed.
    #[error("{0}")]
    TooLarge(String),
}

impl Patch {
    /// Reads a patch.
    ///
    /// # Errors
    /// When it is none, or too large.
    pub fn read(kind: Kind, patch: Value) -> Result<Self, PatchError> {
        let malformed = |what: &str| Err(PatchError::Malformed(what.to_owned()));
        match kind {
            Kind::Json => json::read(patch).map(Self::Json),
            Kind::Merge if !patch.is_object() => malformed("a merge patch is an object"),
            Kind::Merge => Ok(Self::Merge(patch)),
            Kind::Strategic if !patch.is_object() => malformed("a strategic merge patch is an object"),
            Kind::Strategic => Ok(Self::Strategic(patch)),
        }
    }

    /// Applies it. `keys` names, by dotted path, the lists that a strategic patch merges, and by which field; an empty
    /// field is for lists of words.
    ///
    /// # Errors
    /// When it does not fit the object.
    pub fn apply(&self, object: &Value, keys: &[(&str, &str)]) -> Result<Value, PatchError> {
        let mut patched = object.clone();
        match self {
            Self::Json(operations) => json::apply(&mut patched, operations)?,
            Self::Merge(patch) => json_patch::merge(&mut patched, patch),
            Self::Strategic(patch) => strategic::apply(&mut patched, patch, "", keys)?,
        }
        Ok(patched)
    }
}

#[cfg(test)]
mod tests;
