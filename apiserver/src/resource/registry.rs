//! The resources that one server always serves.

use std::sync::Arc;

use super::{Resource, kubernetes};

/// Kubernetes' resources, and those that the composing program adds.
#[derive(Debug, Clone)]
pub struct Registry {
    rows: Vec<Arc<Resource>>,
}

impl Registry {
    /// Kubernetes' resources and more.
    pub fn new(more: impl IntoIterator<Item = Arc<Resource>>) -> Self {
        Self { rows: kubernetes().into_iter().chain(more).collect() }
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.rows.iter()
    }

    /// The resource of a [name](Resource::name).
    pub fn named(&self, name: &str) -> Option<&Arc<Resource>> {
        self.rows.iter().find(|row| row.name() == name)
    }
}

impl Default for Registry {
    /// Kubernetes' resources alone.
    fn default() -> Self {
        Self::new([])
    }
}
