use super::Field;

/// A field that is accepted and has no effect yet, because nothing a guest may rely on depends on it. To be shown
/// to its author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    field: Field,
    what: String,
}

impl Notice {
    pub(crate) fn new(field: Field, what: String) -> Self {
        Self { field, what }
    }

    /// The field.
    pub fn field(&self) -> &Field {
        &self.field
    }

    /// What it asks for and does not get.
    pub fn what(&self) -> &str {
        &self.what
    }
}
