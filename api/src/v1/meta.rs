use std::collections::BTreeMap;

use super::shape::shapes;

shapes! {
    /// Metadata that every persisted resource has. Fields of `metav1.ObjectMeta` that are not listed are kept.
    pub struct ObjectMeta {
        /// Name of the object, unique in its namespace among the objects of its kind.
        pub name: String,
        /// Prefix from which the server generates a unique name when `name` is not set.
        pub generate_name: String,
        /// Namespace within which the name is unique.
        pub namespace: String,
        /// Identifier that is unique in time and space. Set by the server on creation; read-only.
        pub uid: String,
        /// Opaque version of the object, for optimistic concurrency. Set by the server on every write; read-only.
        pub resource_version: String,
        /// Sequence number of the desired state: it increases when the spec changes. Set by the server; read-only.
        pub generation: Option<i64>,
        /// Time at which the server created the object, in RFC 3339 form; read-only.
        pub creation_timestamp: Option<String>,
        /// Time after which the object is deleted, in RFC 3339 form; present once deletion is requested.
        pub deletion_timestamp: Option<String>,
        /// Seconds that the object has to terminate gracefully before it is removed.
        pub deletion_grace_period_seconds: Option<i64>,
        /// Keys and values that organize and categorize objects, and by which selectors select them.
        pub labels: BTreeMap<String, String>,
        /// Unstructured keys and values that tools store with the object.
        pub annotations: BTreeMap<String, String>,
        /// Identifiers of the components that must each remove their entry before a deleted object is removed.
        pub finalizers: Vec<String>,
        /// Objects that this object depends on. It is garbage collected when all of them have been deleted.
        pub owner_references: Vec<OwnerReference>,
        /// Which field manager set which fields, in which version. Maintained by the server.
        pub managed_fields: Vec<serde_json::Value>,
        /// Deprecated: no longer set by the server.
        pub self_link: String,
    }

    /// Identifies an owner of an object.
    pub struct OwnerReference {
        /// API version of the owner.
        pub api_version: String,
        /// Kind of the owner.
        pub kind: String,
        /// Name of the owner.
        pub name: String,
        /// UID of the owner.
        pub uid: String,
        /// Whether the owner is the managing controller.
        pub controller: Option<bool>,
        /// Whether, with foreground deletion, the owner is not removed until this reference is.
        pub block_owner_deletion: Option<bool>,
    }

    /// Metadata that every list has.
    pub struct ListMeta {
        /// Version of the store at which the list was read.
        pub resource_version: String,
        /// Token that retrieves the next chunk of a list that was limited; empty in the last chunk.
        pub r#continue: String = "continue",
        /// Number of subsequent items that are not in this chunk.
        pub remaining_item_count: Option<i64>,
    }

    /// Locates the referenced object in the same namespace.
    pub struct LocalObjectReference {
        /// Name of the referent.
        pub name: String,
    }
}
