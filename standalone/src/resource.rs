//! What is always served: one table, a row for each resource. A new resource is a new row, and its fields in
//! [`crate::schema`]. What else there is, CustomResourceDefinitions say: [`crate::catalog`].

mod admit;
mod claim;
mod definition;
mod duration;
mod instancetype;
mod machine;
pub mod path;
mod pool;
mod replicaset;
pub mod reserved;
mod role;
mod secret;
mod table;
mod volume;
mod workload;

use std::borrow::Cow;
use std::sync::OnceLock;

use serde_json::Value;

use crate::schema::rules::{self, Rules};

pub use admit::{Cause, VMI_FINALIZER};
pub use claim::{CLASS, PROTECTION, requested};
pub use definition::{CLEANUP, served};
pub use duration::human;
pub(crate) use machine::of_machine;
pub use table::ALL;
pub use volume::{PROVISIONER, VOLUME_PROTECTION, describe_class};
pub(crate) use workload::is_workload;

/// A kind of object.
#[derive(Debug)]
pub struct Resource {
    /// API group; empty for the core's.
    pub group: Text,
    /// The one version that is served and stored.
    pub version: Text,
    /// As in paths.
    pub plural: Text,
    /// For people.
    pub singular: Text,
    /// As in manifests.
    pub kind: Text,
    /// For hasty people.
    pub short_names: Vec<Text>,
    /// Words for several kinds at once, as `all`.
    pub categories: Vec<Text>,
    /// Whether it lives in namespaces.
    pub namespaced: bool,
    /// Whether its status is written apart.
    pub status: bool,
    /// What a table shows beside the name.
    pub columns: Vec<Column>,
    /// Fields that select, beside name and namespace.
    pub fields: Vec<Text>,
    /// Lists that a strategic merge patch merges, with their keys; absent where there is no such patch.
    pub merge: Option<&'static [(&'static str, &'static str)]>,
    /// Completes and judges what is to be stored.
    pub admit: fn(&mut Value, Option<&Value>) -> Vec<Cause>,
    /// Whether a name may be used.
    pub name_fits: fn(&str) -> bool,
    /// Where its number of replicas is, if `kubectl scale` can change that.
    pub scale: Option<Scale>,
    /// What its fields are, where a CustomResourceDefinition says so; else [`crate::schema`] knows.
    pub custom: Option<Custom>,
}

/// What a CustomResourceDefinition says of its objects.
#[derive(Debug)]
pub struct Custom {
    /// Their fields.
    pub schema: Value,
    /// What must hold for them, read when it is first asked for.
    rules: OnceLock<Rules>,
}

impl Custom {
    fn of(schema: Value) -> Self {
        Self { schema, rules: OnceLock::new() }
    }

    /// What the rules have against an object that was another before.
    pub fn judge(&self, new: &Value, old: Option<&Value>) -> Vec<Cause> {
        // What makes no sense was refused when the definition came.
        let rules = self.rules.get_or_init(|| Rules::read(&self.schema, "").0);
        rules::judge(rules, &self.schema, new, old)
    }
}

/// A text that is in the program or in an object.
pub type Text = Cow<'static, str>;

/// Where a number of replicas is, as JSON pointers.
#[derive(Debug, Clone)]
pub struct Scale {
    /// How many there are to be.
    pub wanted: Text,
    /// How many there are.
    pub there: Text,
    /// Which ones, as a label selector's text.
    pub selector: Option<Text>,
}

/// A column of a table.
#[derive(Debug, Clone)]
pub struct Column {
    /// Its head.
    pub name: Text,
    /// `string`, `integer` or `date`.
    pub kind: Text,
    /// Zero is always shown, one only when wide.
    pub priority: u8,
    /// What it is, for people.
    pub description: Text,
    /// Where it comes from.
    pub source: Source,
}

/// Where a cell comes from.
#[derive(Debug, Clone)]
pub enum Source {
    /// A [path].
    Path(Text),
    /// How long ago the time at a path is.
    Since(Text),
    /// Whatever else.
    Made(fn(&Value) -> Value),
}

impl Column {
    /// The cell for an object.
    pub fn cell(&self, object: &Value) -> Value {
        match &self.source {
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
    /// Whether it is one of Kubernetes' own kinds, and of no CustomResourceDefinition here or in KubeVirt.
    pub fn is_kubernetes(&self) -> bool {
        self.merge.is_some()
    }

    /// `plural.group`: its name in keys and messages.
    pub fn name(&self) -> String {
        match &*self.group {
            "" => self.plural.clone().into_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// `group/version`, or the version alone in the core group.
    pub fn api_version(&self) -> String {
        match &*self.group {
            "" => self.version.clone().into_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Whether field selectors may name this field.
    pub fn selects_by(&self, field: &str) -> bool {
        field == "metadata.name"
            || (self.namespaced && field == "metadata.namespace")
            || self.fields.iter().any(|known| known == field)
    }

    /// Key of an object of it.
    pub fn key(&self, namespace: &str, name: &str) -> crate::store::Key {
        crate::store::Key::new(&self.name(), namespace, name)
    }
}

/// The resource of a [name](Resource::name), among those that are always there.
pub fn named(name: &str) -> Option<&'static Resource> {
    ALL.iter().find(|resource| resource.name() == name).map(|row| &**row)
}
