//! Admission of writes by the composing program, after the validation of the resource itself.

use std::fmt;

use serde_json::Value;

use crate::auth::User;
use crate::error::ApiError;
use crate::resource::{Cause, Resource};

/// What is done to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// It is new.
    Create,
    /// It is there already.
    Update,
    /// It is to go.
    Delete,
}

/// A write that is to be admitted.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    /// What is done.
    pub operation: Operation,
    /// To an object of which resource.
    pub resource: &'a Resource,
    /// The object as it is stored; absent where it is new.
    pub old: Option<&'a Value>,
    /// Who does it.
    pub user: &'a User,
}

/// Why a write is not admitted.
#[derive(Debug, Clone)]
pub enum Rejection {
    /// The object is not valid.
    Invalid(Vec<Cause>),
    /// Any other reason.
    Error(ApiError),
}

impl From<Vec<Cause>> for Rejection {
    fn from(causes: Vec<Cause>) -> Self {
        Self::Invalid(causes)
    }
}

impl From<ApiError> for Rejection {
    fn from(error: ApiError) -> Self {
        Self::Error(error)
    }
}

/// Warnings for the client, or why the write is refused.
pub type AdmissionResult = Result<Vec<String>, Rejection>;

/// Admits writes of clients. The defaults admit every write. Its functions may block.
pub trait Admission: fmt::Debug + Send + Sync {
    /// Validates what only components of the system may write in `metadata` and labels.
    fn validate_metadata(&self, attributes: &Attributes<'_>, new: &Value) -> Vec<Cause> {
        let _ = (attributes, new);
        Vec::new()
    }

    /// Whether the writes of a user may take the space that is reserved for a full disk, as those of the server itself.
    fn may_use_reserve(&self, user: &User) -> bool {
        let _ = user;
        false
    }

    /// Changes an object before its resource completes and validates it.
    fn mutate(&self, attributes: &Attributes<'_>, new: &mut Value) -> AdmissionResult {
        let _ = (attributes, new);
        Ok(Vec::new())
    }

    /// Validates an object that is otherwise valid.
    fn validate(&self, attributes: &Attributes<'_>, new: &Value) -> AdmissionResult {
        let _ = (attributes, new);
        Ok(Vec::new())
    }

    /// Decides on a deletion, and may change the object, which stays if it has finalizers. `grace_period` is the
    /// `gracePeriodSeconds` that was asked for.
    ///
    /// # Errors
    /// Why it may not be deleted.
    fn delete(
        &self,
        attributes: &Attributes<'_>,
        new: &mut Value,
        grace_period: Option<i64>,
    ) -> Result<(), ApiError> {
        let _ = (attributes, new, grace_period);
        Ok(())
    }

    /// Decides on the eviction of a pod, which is deleted afterwards. With `dry_run` nothing may be written.
    ///
    /// # Errors
    /// Why it may not be evicted now.
    fn evict(&self, attributes: &Attributes<'_>, dry_run: bool) -> Result<(), ApiError> {
        let _ = (attributes, dry_run);
        Ok(())
    }
}

/// Admits everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct AdmitAll;

impl Admission for AdmitAll {}
