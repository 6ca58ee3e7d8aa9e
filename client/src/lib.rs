//! What Vireo's controllers and node agent share as clients of a Kubernetes API.
//!
//! It is to them what client-go is to Kubernetes' controllers: [informers](informer::Informer), a
//! [work queue](queue::WorkQueue), an [event recorder](events::EventRecorder), and [writes](mod@write) that change only what
//! they mean to. Everything works on a `kube::Client`, whichever server is behind it.

pub mod controller;
pub mod events;
pub mod informer;
pub mod kind;
pub mod metrics;
pub mod program;
pub mod queue;
pub mod rate_limit;
pub mod tls;
pub mod write;

pub use kind::Kind;

/// Namespace and name of an object. The namespace of cluster-wide objects is empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// The key of this name in this namespace.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.namespace.as_str() {
            "" => form.write_str(&self.name),
            namespace => write!(form, "{namespace}/{}", self.name),
        }
    }
}
