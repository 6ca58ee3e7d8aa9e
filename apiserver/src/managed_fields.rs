//! Which manager owns which field: server-side apply, and `metadata.managedFields` for every write.
//!
//! The rules are those of Kubernetes. An update takes over what it changes; who applies a manifest owns what it names,
//! gives up what it no longer names, and may not change what others own unless forced.

mod managers;
mod set;
mod shape;
mod walk;

use std::collections::BTreeSet;

use serde_json::{Value, json};

pub use managers::{Author, Managers};
pub use set::Set;

use crate::meta;
use crate::resource::Registry;
use crate::store::{Key, Recorder};
use managers::Entry;
pub use shape::Type;
use walk::{Difference, compare, merge, named, prune};

/// What the server changes by itself.
const SERVER: &str = "vireo";
/// The manager of fields that were set before managers were recorded.
const BEFORE: &str = "before-first-apply";
/// Who applies in the client, and writes down what.
const KUBECTL: &str = "kubectl";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Stripped fields: those that identify an object, and those that only the server sets.
const STRIPPED: [&[&str]; 12] = [
    &["apiVersion"],
    &["kind"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "uid"],
    &["metadata", "creationTimestamp"],
    &["metadata", "deletionTimestamp"],
    &["metadata", "deletionGracePeriodSeconds"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
    &["metadata", "selfLink"],
];

/// A manifest that a manager applies.
#[derive(Debug)]
pub struct Application<'a> {
    /// Type of the object.
    pub of: Type<'a>,
    /// Who.
    pub author: &'a Author,
    /// What, without the parts that are written elsewhere.
    pub manifest: &'a Value,
    /// Whether they may take what others own.
    pub force: bool,
}

/// One field that another manager owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Who, as in messages.
    pub owner: String,
    /// The path.
    pub field: String,
}

/// Why a manifest cannot be applied.
#[derive(Debug, PartialEq, Eq)]
pub enum Unapplied {
    /// Path and reason.
    Malformed(String),
    /// Others own what it changes.
    Conflicts(Vec<Conflict>),
}

/// What comes of applying.
#[derive(Debug)]
pub struct Applied {
    /// The object.
    pub object: Value,
    /// With the new account.
    pub managers: Managers,
}

fn without_stripped(set: Set) -> Set {
    let mut set = STRIPPED.iter().fold(set, |set, path| set.without(path));
    set.member = false;
    // Every object has one.
    set.unmember("metadata");
    set
}

fn difference(of: Type<'_>, before: Option<&Value>, after: &Value) -> Difference {
    let nothing = json!({});
    let Difference { added, modified, removed } = compare(Some(before.unwrap_or(&nothing)), Some(after), of);
    Difference {
        added: without_stripped(added),
        modified: without_stripped(modified),
        removed: without_stripped(removed),
    }
}

/// Records an update. `managers` is what the writer sent of them.
pub fn update(
    of: Type<'_>,
    before: Option<&Value>,
    after: &mut Value,
    mut managers: Managers,
    author: &Author,
) {
    managers.update(&difference(of, before, after), author, &meta::now());
    managers.write(after);
}

/// Keeps account of what the server itself writes to the resources that are always there.
impl Recorder for Registry {
    fn record(&self, key: &Key, before: Option<&Value>, after: &mut Value) {
        let Some(row) = self.named(&key.resource) else { return };
        let author =
            Author { manager: SERVER.to_owned(), api_version: row.api_version(), subresource: String::new() };
        update(Type::of_resource(row), before, after, Managers::requested(after, before), &author);
    }
}

/// Applies a manifest to an object, or makes one of it.
///
/// # Errors
/// When the manifest has lists with elements of the same key, or changes fields of other managers.
pub fn apply(live: Option<&Value>, application: &Application<'_>) -> Result<Applied, Unapplied> {
    let first = try_to_apply(live, application, application.force);
    let (Err(Unapplied::Conflicts(conflicts)), Some(live)) = (&first, live) else { return first };
    if application.author.manager != KUBECTL {
        return first;
    }
    // kubectl may change what it applied client-side before and no other manager changed since.
    let own: BTreeSet<String> = applied_in_the_client(application.of, live).paths().into_iter().collect();
    let others: Vec<Conflict> = conflicts.iter().filter(|one| !own.contains(&one.field)).cloned().collect();
    if others.is_empty() {
        try_to_apply(Some(live), application, true)
    } else {
        Err(Unapplied::Conflicts(others))
    }
}

fn try_to_apply(
    live: Option<&Value>,
    application: &Application<'_>,
    force: bool,
) -> Result<Applied, Unapplied> {
    let Application { of, author, manifest, .. } = application;
    let of = *of;
    let set = without_stripped(named(manifest, of).map_err(Unapplied::Malformed)?);
    let mut managers = live.map(|live| before_first(of, live)).unwrap_or_default();
    let is_ours = |entry: &Entry| entry.is_of(author, true);
    let former = managers.entries.iter().find(|entry| is_ours(entry)).cloned();
    managers.entries.retain(|entry| !is_ours(entry));
    managers.entries.push(Entry {
        author: (*author).clone(),
        applies: true,
        time: meta::now(),
        set: set.clone(),
    });

    let mut object = live.map_or_else(|| (*manifest).clone(), |live| merge(live, manifest, of));
    if let Some(former) = &former {
        prune(&mut object, &former.set, &managers.all(), of);
    }
    let difference = difference(of, live, &object);
    if !force {
        let conflicts = conflicts(&managers, &difference, is_ours);
        if !conflicts.is_empty() {
            return Err(Unapplied::Conflicts(conflicts));
        }
    }
    managers.give_up(&difference, is_ours);
    // Who applies the same again leaves no trace.
    let same = difference.changed().is_empty() && difference.removed.is_empty();
    if let Some(former) = former.filter(|former| same && former.set == set) {
        let ours = managers.entries.iter_mut().filter(|entry| is_ours(entry));
        ours.for_each(|entry| *entry = former.clone());
    }
    if let Some(live) = live.filter(|_| same) {
        object.clone_from(live);
    }
    Ok(Applied { object, managers })
}

fn before_first(of: Type<'_>, live: &Value) -> Managers {
    let managers = Managers::read(live).unwrap_or_default();
    if !managers.entries.is_empty() {
        return managers;
    }
    let text = |field: &str| live.get(field).and_then(Value::as_str).unwrap_or_default();
    // What cannot be taken apart is owned as a whole.
    let all = compare(Some(&json!({})), Some(live), of).added;
    let author = Author {
        manager: BEFORE.to_owned(),
        api_version: text("apiVersion").to_owned(),
        subresource: String::new(),
    };
    Managers {
        entries: vec![Entry { author, applies: false, time: meta::now(), set: without_stripped(all) }],
    }
}

fn conflicts(
    managers: &Managers,
    difference: &Difference,
    is_ours: impl Fn(&Entry) -> bool,
) -> Vec<Conflict> {
    let changed = difference.changed();
    let others = managers.entries.iter().filter(|entry| !is_ours(entry));
    others
        .flat_map(|entry| {
            let fields = entry.set.intersection(&changed).paths();
            fields.into_iter().map(|field| Conflict { owner: entry.describe(), field })
        })
        .collect()
}

/// What `kubectl apply` has written down, as far as it is still so.
fn applied_in_the_client(of: Type<'_>, live: &Value) -> Set {
    let text = live.pointer("/metadata/annotations").and_then(|annotations| annotations.get(LAST_APPLIED));
    let manifest: Option<Value> =
        text.and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok());
    let Some(manifest) = manifest else { return Set::default() };
    let set = named(&manifest, of).unwrap_or_default();
    let since = compare(Some(&manifest), Some(live), of);
    set.difference(&since.modified).difference(&since.removed)
}

/// Brings what `kubectl apply` wrote down up to date, so that it may be used again without `--server-side`.
pub fn note_for_the_client(object: &mut Value, application: &Application<'_>) {
    if application.author.manager != KUBECTL {
        return;
    }
    let note =
        object.pointer_mut("/metadata/annotations").and_then(|annotations| annotations.get_mut(LAST_APPLIED));
    if let Some(note) = note {
        let mut text = application.manifest.to_string();
        text.push('\n');
        *note = json!(text);
    }
}

#[cfg(test)]
mod tests;
