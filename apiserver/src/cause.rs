//! Causes of a rejection, `details.causes` of a `metav1.Status`.

/// One reason why an object is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// As `metav1.CauseType`.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// The path of the field.
    pub field: String,
}

impl Cause {
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason: "FieldValueInvalid", message: message.into(), field: field.into() }
    }

    pub fn unsupported(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason: "FieldValueNotSupported", ..Self::invalid(field, message) }
    }

    pub fn forbidden(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason: "FieldValueForbidden", ..Self::invalid(field, message) }
    }

    pub fn duplicate(field: impl Into<String>, value: &str) -> Self {
        Self { reason: "FieldValueDuplicate", ..Self::invalid(field, format!("Duplicate value: {value:?}")) }
    }

    pub fn not_found(field: impl Into<String>, value: &str) -> Self {
        Self { reason: "FieldValueNotFound", ..Self::invalid(field, format!("Not found: {value:?}")) }
    }

    pub fn required(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason: "FieldValueRequired", ..Self::invalid(field, message) }
    }
}
