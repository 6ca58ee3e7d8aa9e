//! JSON Patch (RFC 6902), with the limits of a Kubernetes API server and a bound on the work that one patch makes.

use json_patch::jsonptr::Pointer;
use json_patch::{PatchErrorKind, PatchOperation};
use serde_json::Value;

use super::PatchError;
use crate::store::{Excess, Limits};

/// Most operations; as a Kubernetes API server's.
const MOST_OPERATIONS: usize = 10_000;
/// Bytes that all copies of a patch may have together; as a Kubernetes API server's.
const MOST_COPIED: usize = 3 << 20;
/// Bytes that moves may go through, and elements that insertions and removals may shift.
const MOST_WORK: usize = 64 << 20;

/// Reads the operations of a patch.
pub(super) fn read(patch: Value) -> Result<Vec<PatchOperation>, PatchError> {
    if let Some(count) = patch.as_array().map(Vec::len).filter(|count| *count > MOST_OPERATIONS) {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MOST_OPERATIONS}, got {count}"
        )));
    }
    serde_json::from_value(patch).map_err(|error| PatchError::Malformed(error.to_string()))
}

/// Applies operations, one after the other. After an error the object is of no use.
pub(super) fn apply(object: &mut Value, operations: &[PatchOperation]) -> Result<(), PatchError> {
    let mut budget = Budget::default();
    for (index, operation) in operations.iter().enumerate() {
        budget.check(object, operation).map_err(|error| match error {
            PatchError::Unfit(why) => {
                PatchError::Unfit(format!("operation {index} at '{}': {why}", operation.path()))
            }
            other => other,
        })?;
        operate(object, operation).map_err(|why| {
            PatchError::Unfit(format!("operation {index} at '{}': {why}", operation.path()))
        })?;
    }
    Ok(())
}

/// One operation. API servers let a test for null hold where there is nothing, by which controllers see that they may
/// add a list.
fn operate(object: &mut Value, operation: &PatchOperation) -> Result<(), PatchErrorKind> {
    if let PatchOperation::Test(test) = operation
        && test.value.is_null()
        && object.pointer(test.path.as_str()).is_none()
    {
        return Ok(());
    }
    json_patch::patch(object, std::slice::from_ref(operation)).map_err(|error| error.kind)
}

/// What the operations of a patch have used up so far.
#[derive(Debug, Default)]
struct Budget {
    copied: usize,
    work: usize,
}

impl Budget {
    /// Checks and counts what an operation is about to do. What does not fit the object is left to the operation.
    fn check(&mut self, object: &Value, operation: &PatchOperation) -> Result<(), PatchError> {
        let at = operation.path();
        match operation {
            PatchOperation::Add(add) => {
                self.shift(object, at)?;
                check_depth(&add.value, at)?;
            }
            PatchOperation::Replace(replace) => {
                check_depth(&replace.value, at)?;
            }
            PatchOperation::Remove(_) => self.shift(object, at)?,
            PatchOperation::Copy(copy) => {
                self.shift(object, at)?;
                if let Some(value) = object.pointer(copy.from.as_str()) {
                    self.copy(check_depth(value, at)?)?;
                }
            }
            PatchOperation::Move(from) => {
                self.shift(object, &from.from)?;
                self.shift(object, at)?;
                if let Some(value) = object.pointer(from.from.as_str()) {
                    self.work(check_depth(value, at)?)?;
                }
            }
            PatchOperation::Test(_) => {}
        }
        Ok(())
    }

    fn copy(&mut self, bytes: usize) -> Result<(), PatchError> {
        self.copied += bytes;
        if self.copied > MOST_COPIED {
            return Err(PatchError::TooLarge(format!(
                "Unable to complete the copy, the accumulated size increase of copy is {}, exceeding the limit {MOST_COPIED}",
                self.copied
            )));
        }
        Ok(())
    }

    /// An element that comes into a list or leaves it moves those behind it.
    fn shift(&mut self, object: &Value, at: &Pointer) -> Result<(), PatchError> {
        let parent = at.parent().and_then(|parent| object.pointer(parent.as_str()));
        self.work(parent.and_then(Value::as_array).map_or(0, Vec::len))
    }

    fn work(&mut self, amount: usize) -> Result<(), PatchError> {
        self.work += amount;
        if self.work > MOST_WORK {
            let why = "the operations of the patch move too much of the object; send it in parts";
            return Err(PatchError::TooLarge(why.to_owned()));
        }
        Ok(())
    }
}

/// The size of a value that is nested no deeper than an object may be at its path.
fn check_depth(value: &Value, at: &Pointer) -> Result<usize, PatchError> {
    let limits = Limits { bytes: usize::MAX, depth: Limits::REQUEST.depth.saturating_sub(at.count()) };
    limits.check(value).map_err(|excess| match excess {
        Excess::Depth { .. } => PatchError::Unfit(format!(
            "objects and arrays may be nested at most {} levels deep",
            Limits::REQUEST.depth
        )),
        size @ Excess::Size { .. } => PatchError::TooLarge(size.to_string()),
    })
}
