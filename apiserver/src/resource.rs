//! What is always served: a typed static for each resource, gathered in a [`Registry`]. What else there is,
//! CustomResourceDefinitions say: [`crate::served_resources`].

mod admit;
mod check;
mod column;
mod definition;
mod duration;
mod kinds;
mod pod;
mod registry;
mod role;
mod secret;
mod table;
mod workload;

use std::borrow::Cow;
use std::sync::{Arc, LazyLock, OnceLock};

use serde_json::Value;

use crate::meta::is_dns_name;
use crate::schema::Definitions;
use crate::schema::rules::{self, Rules};

pub use crate::cause::Cause;
pub use column::{Column, Source};
pub use definition::{served, taken};
pub use duration::human;
pub use kinds::KUBERNETES;
pub use pod::{PODS, bind, mark_disrupted};
pub use registry::Registry;
pub use role::{CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, RBAC_GROUP, ROLE_BINDINGS, ROLES};
pub use secret::{ACCOUNT_NAME, ACCOUNT_TOKEN};
pub use table::{
    CONFIG_MAPS, CONTROLLER_REVISIONS, CUSTOM_RESOURCE_DEFINITIONS, EVENTS, LEASES, NAMESPACES, NODES,
    SECRETS, SERVICE_ACCOUNTS, kubernetes,
};
pub use workload::is_workload;

/// A resource that is always served; made when it is first used.
pub type Row = LazyLock<Arc<Resource>>;

/// Completes and validates what is to be stored, and was something else before; see [`Resource::admit`].
pub type Admit = fn(&mut Value, Option<&Value>) -> Vec<Cause>;

/// Seconds that an object has to terminate gracefully when its deletion is requested with these `gracePeriodSeconds`.
pub type Grace = fn(&Value, Option<i64>) -> i64;

/// Lists of every object's metadata that a strategic merge patch merges, with their keys.
pub const METADATA_LISTS: [(&str, &str); 2] =
    [("metadata.finalizers", ""), ("metadata.ownerReferences", "uid")];

/// A kind of object.
#[derive(Debug)]
pub struct Resource {
    /// API group; empty for the core's.
    pub group: Text,
    /// The one version that is served and stored.
    pub version: Text,
    /// As in paths.
    pub plural: Text,
    /// Names for `kubectl`.
    pub singular: Text,
    /// As in manifests.
    pub kind: Text,
    /// Short names for `kubectl`.
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
    /// Lists that a strategic merge patch merges, with their keys; absent where this patch is not supported.
    pub merge: Option<&'static [(&'static str, &'static str)]>,
    /// The OpenAPI definitions among which its kind has one, by its name.
    pub definitions: &'static Definitions,
    /// Completes and validates what is to be stored.
    pub admit: Admit,
    /// How long its objects have to terminate when they are deleted; absent where they are removed at once.
    pub grace: Option<Grace>,
    /// Whether a name may be used.
    pub name_fits: fn(&str) -> bool,
    /// Where its number of replicas is, if `kubectl scale` can change that.
    pub scale: Option<Scale>,
    /// The schema of a CustomResourceDefinition.
    pub custom: Option<Custom>,
}

/// The parts of a CustomResourceDefinition that concern its objects.
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
    pub fn validate_rules(&self, new: &Value, old: Option<&Value>) -> Vec<Cause> {
        // What makes no sense was refused when the definition came.
        let rules = self.rules.get_or_init(|| Rules::read(&self.schema, "").0);
        rules::validate(rules, &self.schema, new, old)
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

/// Short names and categories of a resource.
pub fn texts(words: &[&'static str]) -> Vec<Text> {
    words.iter().map(|word| Text::from(*word)).collect()
}

impl Resource {
    /// A kind in namespaces. Its other names follow from the kind's.
    pub fn new(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        definitions: &'static Definitions,
    ) -> Self {
        let singular = kind.to_lowercase();
        Self {
            group: group.into(),
            version: version.into(),
            plural: format!("{singular}s").into(),
            singular: singular.into(),
            kind: kind.into(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
            status: false,
            columns: vec![Column::age()],
            fields: Vec::new(),
            merge: None,
            definitions,
            admit: admit::nothing,
            grace: None,
            name_fits: is_dns_name,
            scale: None,
            custom: None,
        }
    }

    /// One of Kubernetes' own kinds, in version v1.
    pub fn kubernetes(group: &'static str, kind: &'static str) -> Self {
        Self { merge: Some(&METADATA_LISTS), ..Self::new(group, "v1", kind, &KUBERNETES) }
    }

    /// Whether it is one of Kubernetes' own kinds, and of no CustomResourceDefinition or composing program.
    pub fn is_kubernetes(&self) -> bool {
        self.merge.is_some()
    }

    /// Whether it is this one of those that are always served.
    pub fn is(&self, row: &Row) -> bool {
        std::ptr::eq(self, Arc::as_ptr(row))
    }

    /// Names of the columns that have no description.
    pub fn undescribed_columns(&self) -> Vec<&str> {
        let lacks = self.columns.iter().filter(|column| column.description.is_empty());
        lacks.map(|column| &*column.name).collect()
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
