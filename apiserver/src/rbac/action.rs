//! The action that a user requests.

/// An action that a user requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// To objects, or to a part of one.
    Object(Access),
    /// On a non-resource path.
    Path {
        /// `get`, or another method in small letters.
        verb: String,
        /// The path.
        path: String,
    },
}

/// An action on objects. Absent attributes are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// `get`, `list`, `create` and so on.
    pub verb: String,
    /// Empty for the core's.
    pub group: String,
    /// Its plural.
    pub resource: String,
    /// A part of it, as `status`.
    pub subresource: String,
    /// Empty for those of all namespaces, and for what has none.
    pub namespace: String,
    /// Empty for all of them, and for one that has no name yet.
    pub name: String,
}

impl Access {
    /// The resource with its part, as rules name it.
    pub fn whole(&self) -> String {
        match self.subresource.as_str() {
            "" => self.resource.clone(),
            part => format!("{}/{part}", self.resource),
        }
    }
}

impl Action {
    /// Where it is done; empty outside of namespaces.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Object(access) => &access.namespace,
            Self::Path { .. } => "",
        }
    }

    /// The message that a user may not do it, as Kubernetes words it.
    pub fn denied(&self, user: &str) -> String {
        match self {
            Self::Path { verb, path } => format!("User {user:?} cannot {verb} path {path:?}"),
            Self::Object(access) => {
                let scope = match access.namespace.as_str() {
                    "" => "at the cluster scope".to_owned(),
                    namespace => format!("in the namespace {namespace:?}"),
                };
                let (verb, group) = (&access.verb, &access.group);
                format!(
                    "User {user:?} cannot {verb} resource {:?} in API group {group:?} {scope}",
                    access.whole()
                )
            }
        }
    }
}
