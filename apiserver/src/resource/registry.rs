//! The resources that one server always serves.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Resource, kubernetes};

/// Kubernetes' resources, and those that the composing program adds.
#[derive(Debug, Clone)]
pub struct Registry {
    rows: Vec<Arc<Resource>>,
    /// Where each is, by its name.
    by_name: HashMap<String, usize>,
}

impl Registry {
    /// Kubernetes' resources and more.
    pub fn new(more: impl IntoIterator<Item = Arc<Resource>>) -> Self {
        let rows: Vec<Arc<Resource>> = kubernetes().into_iter().chain(more).collect();
        let by_name = rows.iter().enumerate().map(|(index, row)| (row.name(), index)).collect();
        Self { rows, by_name }
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.rows.iter()
    }

    /// The resource of a [name](Resource::name).
    pub fn named(&self, name: &str) -> Option<&Arc<Resource>> {
        self.rows.get(*self.by_name.get(name)?)
    }
}

impl Default for Registry {
    /// Kubernetes' resources alone.
    fn default() -> Self {
        Self::new([])
    }
}
