//! Creates the default roles and bindings, adds what they lack, and aggregates ClusterRoles.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::defaults::{AUTO_UPDATE, Default, Policy};
use super::escalate::lacking;
use super::is_ours;
use super::roles::rules_in;
use super::rule::Rule;
use crate::resource::CLUSTER_ROLES;
use crate::selector::Selector;
use crate::store::{Change, Changes, DiskError, Object, Store, WatchCursor};
use crate::{controller, meta, objects};

/// Writes what is missing. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn prepare(store: &Store, policy: &Policy) -> Result<(), DiskError> {
    for default in policy.iter() {
        reconcile_default(store, default)?;
    }
    aggregate(store)
}

/// Reconciles them until the store is gone.
pub async fn run(store: Arc<Store>, policy: Policy) {
    let begin = || State { policy: policy.clone(), cursor: WatchCursor::default() };
    controller::run_with(store, "roles", begin, reconcile).await;
}

#[derive(Debug, std::default::Default)]
struct State {
    policy: Policy,
    cursor: WatchCursor,
}

fn reconcile(store: &Store, State { policy, cursor }: &mut State) -> Option<Duration> {
    let changed = match cursor.look(store) {
        Changes::Relist => true,
        Changes::Delta(events) => events.iter().any(|event| is_ours(&event.key.resource)),
    };
    if changed && let Err(error) = prepare(store, policy) {
        tracing::warn!(%error, "a role cannot be written; it is tried again");
        *cursor = WatchCursor::default();
        return Some(controller::RETRY);
    }
    None
}

/// Creates a default, or adds what it lacks.
fn reconcile_default(store: &Store, default: &Default) -> Result<(), DiskError> {
    let key = default.resource.key("", default.name);
    if store.get(&key).is_some_and(|there| reconciled(&there.value(), &default.value).is_none()) {
        return Ok(());
    }
    let written = store.write(&key, |before, _| {
        Ok(match before {
            Some(before) => reconciled(&before.value(), &default.value).map_or(Change::Nothing, Change::Put),
            None => {
                let mut fresh = default.value.clone();
                meta::create(&mut fresh, "", default.name);
                Change::Put(fresh)
            }
        })
    });
    objects::done(written)
}

/// What becomes of an object to which something was missing.
fn reconciled(there: &Value, wanted: &Value) -> Option<Value> {
    let update = there.pointer("/metadata/annotations").and_then(|all| all.get(AUTO_UPDATE));
    if update.is_some_and(|update| update == "false") || meta::is_being_deleted(there) {
        return None;
    }
    let mut value = there.clone();
    for field in ["labels", "annotations"] {
        let lacks = |(name, text): &(&String, &Value)| there["metadata"][field].get(name) != Some(text);
        for (name, text) in wanted["metadata"][field].as_object().into_iter().flatten().filter(lacks) {
            value["metadata"][field][name] = text.clone();
        }
    }
    if wanted.get("aggregationRule").is_some() {
        let at = &["aggregationRule", "clusterRoleSelectors"];
        let missing = missing(there, wanted, at);
        add(&mut value, at, missing);
    } else {
        let held = rules_in(there);
        let held: Vec<&Rule> = held.iter().collect();
        let missing = rules_in(wanted).into_iter().filter(|rule| !lacking(&held, rule).is_empty());
        add(&mut value, &["rules"], missing.map(|rule| json!(rule)).collect());
    }
    let missing = missing(there, wanted, &["subjects"]);
    add(&mut value, &["subjects"], missing);
    (value != *there).then_some(value)
}

fn list<'v>(value: &'v Value, at: &[&str]) -> &'v [Value] {
    let found = at.iter().try_fold(value, |value, field| value.get(field));
    found.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The elements of a wanted list that are not there.
fn missing(there: &Value, wanted: &Value, at: &[&str]) -> Vec<Value> {
    let has = list(there, at);
    list(wanted, at).iter().filter(|one| !has.contains(one)).cloned().collect()
}

/// Adds elements to the end of a list.
fn add(value: &mut Value, at: &[&str], more: Vec<Value>) {
    if more.is_empty() {
        return;
    }
    let mut all = list(value, at).to_vec();
    all.extend(more);
    let mut field_value = value;
    for field in at {
        if !field_value.is_object() {
            *field_value = json!({});
        }
        field_value = &mut field_value[*field];
    }
    *field_value = Value::Array(all);
}

/// Gives roles that are made of others the rules of these.
fn aggregate(store: &Store) -> Result<(), DiskError> {
    let roles = store.list(&CLUSTER_ROLES.name(), None).objects;
    for role in roles.iter().filter(|role| is_made(role)) {
        let rules = made_of(role, &roles);
        if rules != rules_in(&role.value()) {
            objects::change(store, role, |value| {
                value["rules"] = json!(rules);
                !meta::is_being_deleted(value) || objects::is_held(value)
            })?;
        }
    }
    Ok(())
}

/// Whether a role is made of others.
fn is_made(role: &Object) -> bool {
    role.value().get("aggregationRule").is_some_and(|rule| !rule.is_null())
}

/// The rules of all roles that a role is made of, each once, in the order of their names. Where such a role is itself made
/// of others, it is these that count: so circles have no end that depends on where one begins.
fn made_of(role: &Object, roles: &[Arc<Object>]) -> Vec<Rule> {
    let mut open = vec![role];
    let mut parts: BTreeMap<&str, &Object> = BTreeMap::from([(role.key.name.as_str(), role)]);
    while let Some(role) = open.pop() {
        let role = role.value();
        let selectors = list(&role, &["aggregationRule", "clusterRoleSelectors"]);
        let selectors: Vec<Selector> =
            selectors.iter().filter_map(|selector| Selector::of_labels(selector).ok()).collect();
        let mut found: Vec<&Object> = Vec::new();
        for other in roles.iter().filter(|other| !parts.contains_key(other.key.name.as_str())) {
            if selectors.iter().any(|selector| selector.selects(&other.value())) {
                found.push(&**other);
            }
        }
        for other in found {
            parts.insert(&other.key.name, other);
            if is_made(other) {
                open.push(other);
            }
        }
    }
    let mut seen = BTreeSet::new();
    let plain = parts.into_values().filter(|part| !is_made(part));
    plain.flat_map(|part| rules_in(&part.value())).filter(|rule| seen.insert(rule.clone())).collect()
}

#[cfg(test)]
mod tests;
