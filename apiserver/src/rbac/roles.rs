//! Who has which rules.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::action::Action;
use super::rule::Rule;
use super::{GROUP, is_ours};
use crate::auth::{ACCOUNT, User};
use crate::meta;
use crate::resource::{CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES, Resource};
use crate::store::{Cached, Object, Store};

/// The part of a role that is looked at.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Role {
    #[serde(deserialize_with = "given")]
    rules: Vec<Rule>,
}

/// The part of a binding that is looked at.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Binding {
    #[serde(deserialize_with = "given")]
    subjects: Vec<Subject>,
    role_ref: Reference,
}

/// Who is meant.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Subject {
    kind: String,
    name: String,
    namespace: String,
}

/// Which role is meant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Reference {
    /// `Role` or `ClusterRole`.
    pub kind: String,
    /// What it is called.
    pub name: String,
}

fn given<'d, D: Deserializer<'d>, T: Deserialize<'d>>(from: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

fn read<T: Default + for<'d> Deserialize<'d>>(object: &Value) -> T {
    // What was stored was checked; what is not readable allows nothing.
    T::deserialize(object).unwrap_or_default()
}

/// The rules of a role.
pub fn rules_in(role: &Value) -> Vec<Rule> {
    read::<Role>(role).rules
}

/// The role of a binding.
pub fn role_of(binding: &Value) -> Reference {
    read::<Binding>(binding).role_ref
}

impl Reference {
    /// The plural of its kind, and the namespace in which it is for a binding of this one.
    pub fn location<'n>(&self, namespace: &'n str) -> (&'static str, &'n str) {
        if self.kind == "Role" { ("roles", namespace) } else { ("clusterroles", "") }
    }

    /// The resource that the role is an object of.
    pub fn resource(&self) -> &'static Resource {
        if self.kind == "Role" { &ROLES } else { &CLUSTER_ROLES }
    }
}

/// The binding of a role to a subject.
#[derive(Debug)]
struct Grant {
    /// Where it counts; absent: everywhere.
    namespace: Option<String>,
    /// None if the role does not exist.
    rules: Option<Arc<[Rule]>>,
    /// The binding, the role and the subject.
    binding: String,
    role: Reference,
    subject: String,
}

/// The authorizer's answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It may be done, for this reason.
    Allowed(String),
    /// It is denied; the reason may be empty.
    Denied(String),
}

impl Decision {
    /// Whether it may be done.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }
}

/// All roles and bindings of one moment.
#[derive(Debug, Default)]
pub struct Roles {
    /// By namespace, which is empty for ClusterRoles, and name.
    rules: HashMap<(String, String), Arc<[Rule]>>,
    users: HashMap<String, Vec<Arc<Grant>>>,
    groups: HashMap<String, Vec<Arc<Grant>>>,
}

impl Roles {
    /// The roles and bindings of a store.
    pub fn of(store: &Store) -> Self {
        let mut roles = Self::default();
        for resource in [&CLUSTER_ROLES, &ROLES] {
            for object in store.list(&resource.name(), None).objects {
                let key = (object.key.namespace.clone(), object.key.name.clone());
                roles.rules.insert(key, rules_in(&object.value()).into());
            }
        }
        for resource in [&CLUSTER_ROLE_BINDINGS, &ROLE_BINDINGS] {
            for object in store.list(&resource.name(), None).objects {
                roles.bind(&object);
            }
        }
        roles
    }

    fn bind(&mut self, object: &Object) {
        let Binding { subjects, role_ref } = read(&object.value());
        let (kind, name) = (meta_kind(object), &object.key.name);
        let namespace = Some(object.key.namespace.clone()).filter(|namespace| !namespace.is_empty());
        let binding = match &namespace {
            Some(namespace) => format!("{kind} \"{name}/{namespace}\""),
            None => format!("{kind} {name:?}"),
        };
        for subject in subjects {
            // The namespace of an account defaults to that of the binding.
            let home = match subject.namespace.as_str() {
                "" if subject.kind == "ServiceAccount" => &object.key.namespace,
                home => home,
            };
            let described = match home {
                "" => format!("{} {:?}", subject.kind, subject.name),
                home => format!("{} \"{}/{home}\"", subject.kind, subject.name),
            };
            let grant = Grant {
                namespace: namespace.clone(),
                rules: self.role(&role_ref, &object.key.namespace).cloned(),
                binding: binding.clone(),
                role: Reference { kind: role_ref.kind.clone(), name: role_ref.name.clone() },
                subject: described,
            };
            let who = match subject.kind.as_str() {
                "ServiceAccount" => self.users.entry(format!("{ACCOUNT}{home}:{}", subject.name)),
                "Group" => self.groups.entry(subject.name),
                "User" => self.users.entry(subject.name),
                _ => continue,
            };
            who.or_default().push(Arc::new(grant));
        }
    }

    /// The rules of the role that a binding in a namespace refers to.
    pub fn role(&self, role: &Reference, namespace: &str) -> Option<&Arc<[Rule]>> {
        let (_, namespace) = role.location(namespace);
        self.rules.get(&(namespace.to_owned(), role.name.clone()))
    }

    /// The rules of a user in a namespace; cluster-wide when it is empty.
    fn grants<'a>(&'a self, user: &'a User, namespace: &'a str) -> impl Iterator<Item = &'a Grant> {
        let groups = user.groups.iter().filter_map(|group| self.groups.get(group));
        let all = self.users.get(&user.name).into_iter().chain(groups).flatten();
        let counts = move |grant: &&Grant| grant.namespace.as_deref().is_none_or(|home| home == namespace);
        all.map(|grant| &**grant).filter(counts)
    }

    /// All rules of a user in a namespace; cluster-wide when it is empty.
    pub fn rules_of<'a>(&'a self, user: &'a User, namespace: &'a str) -> impl Iterator<Item = &'a Rule> {
        self.grants(user, namespace).filter_map(|grant| grant.rules.as_deref()).flatten()
    }

    /// Whether a user may do something. Administrators may do everything, without any role.
    pub fn may(&self, user: &User, action: &Action) -> bool {
        let rules = self.rules_of(user, action.namespace());
        user.may_everything() || rules.into_iter().any(|rule| rule.allows(action))
    }

    /// The same with the reason.
    pub fn decide(&self, user: &User, action: &Action) -> Decision {
        if user.may_everything() {
            return Decision::Allowed(String::new());
        }
        let mut lacking = Vec::new();
        for grant in self.grants(user, action.namespace()) {
            let Grant { binding, role: Reference { kind, name }, subject, .. } = grant;
            match &grant.rules {
                None => lacking.push(format!("{}.{GROUP} {name:?} not found", kind.to_lowercase())),
                Some(rules) if rules.iter().any(|rule| rule.allows(action)) => {
                    let reason = format!("RBAC: allowed by {binding} of {kind} {name:?} to {subject}");
                    return Decision::Allowed(reason);
                }
                Some(_) => {}
            }
        }
        Decision::Denied(match lacking.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            several => format!("RBAC: [{}]", several.join(", ")),
        })
    }
}

fn meta_kind(binding: &Object) -> &'static str {
    if meta::text(&binding.value(), "namespace").is_empty() { "ClusterRoleBinding" } else { "RoleBinding" }
}

/// The roles of a store, brought up to date when they are asked for.
#[derive(Debug, Default)]
pub struct RolesNow(Cached<Roles>);

impl RolesNow {
    /// Who has which rules now: everything that was written before counts.
    pub fn now(&self, store: &Store) -> Arc<Roles> {
        self.0.now(store, |key| is_ours(&key.resource), Roles::of)
    }
}

#[cfg(test)]
mod tests;
