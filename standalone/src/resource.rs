//! What is served: one table, a row for each resource. A new resource is a new row, and its fields in [`crate::schema`].

mod admit;
mod claim;
mod duration;
mod instancetype;
mod machine;
pub mod path;
mod pool;
mod replicaset;
mod table;

use serde_json::Value;

pub use admit::{Cause, VMI_FINALIZER};
pub use claim::{CLASS, PROTECTION, requested};
pub use duration::human;
pub(crate) use machine::of_template;
pub use table::ALL;

/// A kind of object.
#[derive(Debug)]
pub struct Resource {
    /// API group; empty for the core's.
    pub group: &'static str,
    /// The one version that is served and stored.
    pub version: &'static str,
    /// As in paths.
    pub plural: &'static str,
    /// For people.
    pub singular: &'static str,
    /// As in manifests.
    pub kind: &'static str,
    /// For hasty people.
    pub short_names: &'static [&'static str],
    /// Words for several kinds at once, as `all`.
    pub categories: &'static [&'static str],
    /// Whether it lives in namespaces.
    pub namespaced: bool,
    /// Whether its status is written apart.
    pub status: bool,
    /// What a table shows beside the name.
    pub columns: &'static [Column],
    /// Fields that select, beside name and namespace.
    pub fields: &'static [&'static str],
    /// Lists that a strategic merge patch merges, with their keys; absent where there is no such patch.
    pub merge: Option<&'static [(&'static str, &'static str)]>,
    /// Completes and judges what is to be stored.
    pub admit: fn(&mut Value, Option<&Value>) -> Vec<Cause>,
    /// Whether a name may be used.
    pub name_fits: fn(&str) -> bool,
}

/// A column of a table.
#[derive(Debug)]
pub struct Column {
    /// Its head.
    pub name: &'static str,
    /// `string`, `integer` or `date`.
    pub kind: &'static str,
    /// Zero is always shown, one only when wide.
    pub priority: u8,
    /// What it is, for people.
    pub description: &'static str,
    /// Where it comes from.
    pub source: Source,
}

/// Where a cell comes from.
#[derive(Debug, Clone, Copy)]
pub enum Source {
    /// A [path].
    Path(&'static str),
    /// How long ago the time at a path is.
    Since(&'static str),
    /// Whatever else.
    Made(fn(&Value) -> Value),
}

impl Column {
    /// The cell for an object.
    pub fn cell(&self, object: &Value) -> Value {
        match self.source {
            Source::Path(at) => path::find(object, at).cloned().unwrap_or(Value::Null),
            Source::Since(at) => match path::find(object, at).and_then(Value::as_str) {
                Some(time) => Value::String(duration::since(time)),
                None => Value::Null,
            },
            Source::Made(make) => make(object),
        }
    }
}

impl Resource {
    /// `plural.group`: its name in keys and messages.
    pub fn name(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// `group/version`, or the version alone in the core group.
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Whether field selectors may name this field.
    pub fn selects_by(&self, field: &str) -> bool {
        field == "metadata.name"
            || (self.namespaced && field == "metadata.namespace")
            || self.fields.contains(&field)
    }

    /// Whether it has a number of replicas that `kubectl scale` changes.
    pub fn scales(&self) -> bool {
        [vireo_api::v1::REPLICA_SET_KIND, vireo_api::v1::POOL_KIND].contains(&self.kind)
    }

    /// Key of an object of it.
    pub fn key(&self, namespace: &str, name: &str) -> crate::store::Key {
        crate::store::Key::new(&self.name(), namespace, name)
    }
}

/// The resource of a [name](Resource::name).
pub fn named(name: &str) -> Option<&'static Resource> {
    ALL.iter().find(|resource| resource.name() == name)
}

/// The resource of a group, version and plural.
pub fn at(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    ALL.iter().find(|row| row.group == group && row.version == version && row.plural == plural)
}

/// The resource of an `apiVersion` and a `kind`.
pub fn of_kind(api_version: &str, kind: &str) -> Option<&'static Resource> {
    ALL.iter().find(|row| row.kind == kind && row.api_version() == api_version)
}
