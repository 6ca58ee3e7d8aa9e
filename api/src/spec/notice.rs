use std::fmt;

use super::Field;

/// A field that is accepted and has no effect yet, because nothing a guest may rely on depends on it. To be shown
/// to its author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    field: Field,
    why: String,
}

impl Notice {
    pub(crate) fn new(field: Field, why: String) -> Self {
        Self { field, why }
    }

    /// The field.
    pub fn field(&self) -> &Field {
        &self.field
    }

    /// Why it has no effect.
    pub fn why(&self) -> &str {
        &self.why
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: has no effect: {}", self.field, self.why)
    }
}
