//! Prevention of privilege escalation: users grant only what they have, unless they may `escalate` or `bind`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::GROUP;
use super::action::{Access, Action};
use super::roles::{Reference, Roles, role_of, rules_in};
use super::rule::{Part, Rule};
use crate::auth::User;
use crate::resource::Resource;

/// Single permissions that are looked at in one request.
const MOST_PARTS: usize = 1 << 16;
/// Rules that a message lists.
const LISTED: usize = 20;

/// Why a user may not write a role or a binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Escalation {
    /// They lack these rules themselves; a text.
    NotHeld(String),
    /// The rules are unknown: the role does not exist.
    NoRole(Reference),
}

/// Who writes what.
#[derive(Debug, Clone, Copy)]
pub struct Writing<'a> {
    /// The roles there are.
    pub roles: &'a Roles,
    /// Who writes.
    pub user: &'a User,
    /// What is written.
    pub resource: &'a Resource,
}

impl Writing<'_> {
    /// Checks a role or a binding; other resources grant nothing.
    ///
    /// # Errors
    /// What the user would give away without having it.
    pub fn check(&self, new: &Value, old: Option<&Value>) -> Result<(), Escalation> {
        if self.resource.group != GROUP || self.user.may_everything() {
            return Ok(());
        }
        match &*self.resource.plural {
            "roles" | "clusterroles" => self.role(new, old),
            _ => self.binding(new, old),
        }
    }

    fn role(&self, new: &Value, old: Option<&Value>) -> Result<(), Escalation> {
        let rules = rules_in(new);
        let aggregates = |role: &Value| role.get("aggregationRule").filter(|rule| !rule.is_null()).cloned();
        let same = |old: &Value| rules_in(old) == rules && aggregates(old) == aggregates(new);
        let namespace = crate::meta::text(new, "namespace");
        let (plural, name) = (&self.resource.plural, crate::meta::text(new, "name"));
        if old.is_some_and(same) || self.may("escalate", plural, (namespace, name)) {
            return Ok(());
        }
        if aggregates(new).or_else(|| old.and_then(aggregates)).is_some() {
            let why = "must have cluster-admin privileges to use an aggregationRule: ";
            self.holds(&Rule::everything(), namespace, why)?;
        }
        self.holds(&rules, namespace, "")
    }

    fn binding(&self, new: &Value, old: Option<&Value>) -> Result<(), Escalation> {
        let role: Reference = role_of(new);
        let same = |old: &Value| role_of(old) == role && old.get("subjects") == new.get("subjects");
        let namespace = crate::meta::text(new, "namespace");
        let (plural, _) = role.location(namespace);
        if old.is_some_and(same) || self.may("bind", plural, (namespace, &role.name)) {
            return Ok(());
        }
        match self.roles.role(&role, namespace) {
            Some(rules) => self.holds(rules, namespace, ""),
            None => Err(Escalation::NoRole(role)),
        }
    }

    fn may(&self, verb: &str, resource: &str, (namespace, name): (&str, &str)) -> bool {
        let access = Access {
            verb: verb.to_owned(),
            group: GROUP.to_owned(),
            resource: resource.to_owned(),
            subresource: String::new(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        self.roles.may(self.user, &Action::Object(access))
    }

    fn holds(&self, wanted: &[Rule], namespace: &str, why: &str) -> Result<(), Escalation> {
        let size = wanted.iter().map(Rule::size).fold(0, usize::saturating_add);
        let held: Vec<&Rule> = self.roles.rules_of(self.user, namespace).collect();
        let User { name, groups, .. } = self.user;
        let groups: Vec<String> = groups.iter().map(|group| format!("{group:?}")).collect();
        let who = format!("{why}user {name:?} (groups=[{}])", groups.join(" "));
        if size > MOST_PARTS {
            let message = format!(
                "{who} cannot grant {size} single permissions at once: at most {MOST_PARTS} are looked at"
            );
            return Err(Escalation::NotHeld(message));
        }
        let missing: BTreeSet<Part> = wanted.iter().flat_map(|rule| lacking(&held, rule)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let message = format!(
            "{who} is attempting to grant RBAC permissions not currently held:\n{}",
            describe(missing)
        );
        Err(Escalation::NotHeld(message))
    }
}

/// What of a rule others do not allow.
pub(super) fn lacking(held: &[&Rule], wanted: &Rule) -> Vec<Part> {
    wanted.parts().filter(|part| !held.iter().any(|rule| rule.covers(part))).collect()
}

/// In Kubernetes' form: a line for each thing, with its verbs.
fn describe(missing: BTreeSet<Part>) -> String {
    let mut things: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for part in missing {
        let (thing, verb) = match part {
            Part::Path(path, verb) => (format!("{{NonResourceURLs:[{path:?}]"), verb),
            Part::Object([group, resource, name], verb) => {
                let names = if name.is_empty() { name } else { format!(", ResourceNames:[{name:?}]") };
                (format!("{{APIGroups:[{group:?}], Resources:[{resource:?}]{names}"), verb)
            }
        };
        things.entry(thing).or_default().push(format!("{verb:?}"));
    }
    let more = things.len().saturating_sub(LISTED);
    let mut lines: Vec<String> = things
        .into_iter()
        .take(LISTED)
        .map(|(thing, verbs)| format!("{thing}, Verbs:[{}]}}", verbs.join(" ")))
        .collect();
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests;
