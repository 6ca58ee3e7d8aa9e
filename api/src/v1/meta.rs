use std::collections::BTreeMap;

use super::shape::shapes;

shapes! {
    /// The part of `metav1.ObjectMeta` that is looked at; the rest is in `extra`.
    pub struct ObjectMeta {
        /// Unique in its namespace.
        pub name: String,
        /// Prefix of a name the server makes up.
        pub generate_name: String,
        /// Where it lives.
        pub namespace: String,
        /// Unique in time and space; set by the server.
        pub uid: String,
        /// Changes with every write.
        pub resource_version: String,
        /// Changes with every write of the spec.
        pub generation: Option<i64>,
        /// RFC 3339.
        pub creation_timestamp: Option<String>,
        /// RFC 3339; present once deletion was asked for.
        pub deletion_timestamp: Option<String>,
        /// Seconds from request to deletion.
        pub deletion_grace_period_seconds: Option<i64>,
        /// For selection.
        pub labels: BTreeMap<String, String>,
        /// For everything else.
        pub annotations: BTreeMap<String, String>,
        /// Who must let go before the object is removed.
        pub finalizers: Vec<String>,
        /// What this belongs to.
        pub owner_references: Vec<OwnerReference>,
        /// Which field managers set which fields.
        pub managed_fields: Vec<serde_json::Value>,
        /// Deprecated: not set any more.
        pub self_link: String,
    }

    /// What an object belongs to.
    pub struct OwnerReference {
        /// Group and version of the owner.
        pub api_version: String,
        /// Kind of the owner.
        pub kind: String,
        /// Name of the owner.
        pub name: String,
        /// Uid of the owner.
        pub uid: String,
        /// Whether it manages this object.
        pub controller: Option<bool>,
        /// Whether its deletion waits for this object's.
        pub block_owner_deletion: Option<bool>,
    }

    /// `metav1.ListMeta`.
    pub struct ListMeta {
        /// The state of the store the list was read from.
        pub resource_version: String,
        /// Where to read on; empty at the end.
        pub r#continue: String = "continue",
        /// How many are left.
        pub remaining_item_count: Option<i64>,
    }

    /// A reference to something by name in the same namespace.
    pub struct LocalObjectReference {
        /// Its name.
        pub name: String,
    }
}
