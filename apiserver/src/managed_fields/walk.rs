//! Telling objects apart and putting them together, field by field.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::set::{Set, Step};
use super::shape::{Elements, Shape, Type};

/// What is different between two objects.
#[derive(Debug, Default)]
pub struct Difference {
    /// Only in the second.
    pub added: Set,
    /// In both, and not the same.
    pub modified: Set,
    /// Only in the first.
    pub removed: Set,
}

impl Difference {
    /// What the second object sets.
    pub fn changed(&self) -> Set {
        self.added.union(&self.modified)
    }

    fn put(&mut self, step: &Step, below: Self) {
        self.added.put(step.clone(), below.added);
        self.modified.put(step.clone(), below.modified);
        self.removed.put(step.clone(), below.removed);
    }
}

/// The fields that a manifest names.
///
/// # Errors
/// The path of a list with elements of the same key, and why.
pub(super) fn named(value: &Value, of: Type<'_>) -> Result<Set, String> {
    let mut set = Set::default();
    match of.shape(value).map_err(|why| format!(": {why}"))? {
        Shape::Leaf => set.member = true,
        Shape::Fields(fields) => {
            for (name, value) in fields {
                let (of, known) = of.field(name);
                let mut below = named(value, of).map_err(|why| format!(".{name}{why}"))?;
                below.member |= !known || value.is_null() || value.as_object().is_some_and(Map::is_empty);
                set.put(Step::Field(name.clone()), below);
            }
        }
        Shape::Elements(elements) => {
            for (step, value) in elements.list {
                let mut below = named(value, elements.of).map_err(|why| format!("{step}{why}"))?;
                below.member = true;
                set.put(step, below);
            }
        }
    }
    Ok(set)
}

/// What changed from one state to another; either may be absent.
pub(super) fn compare(old: Option<&Value>, new: Option<&Value>, of: Type<'_>) -> Difference {
    let mut difference = Difference::default();
    let parts = match (parts(old, of), parts(new, of)) {
        (Some(Shape::Fields(old)), Some(Shape::Fields(new))) => {
            fields(Some(old), Some(new), of, &mut difference)
        }
        (Some(Shape::Fields(old)), None) => fields(Some(old), None, of, &mut difference),
        (None, Some(Shape::Fields(new))) => fields(None, Some(new), of, &mut difference),
        (Some(Shape::Elements(old)), Some(Shape::Elements(new))) => {
            elements(Some(old), Some(new), &mut difference)
        }
        (Some(Shape::Elements(old)), None) => elements(Some(old), None, &mut difference),
        (None, Some(Shape::Elements(new))) => elements(None, Some(new), &mut difference),
        _ => false,
    };
    match (old, new) {
        (None, Some(_)) => difference.added.member = true,
        (Some(_), None) => difference.removed.member = true,
        (Some(old), Some(new)) => difference.modified.member = !parts && old != new,
        (None, None) => {}
    }
    difference
}

/// A list that cannot be taken apart is one value.
fn parts<'s, 'v>(value: Option<&'v Value>, of: Type<'s>) -> Option<Shape<'s, 'v>> {
    value.map(|value| of.shape(value).unwrap_or(Shape::Leaf))
}

/// Whether there were any fields to compare.
fn fields(
    old: Option<&Map<String, Value>>,
    new: Option<&Map<String, Value>>,
    of: Type<'_>,
    difference: &mut Difference,
) -> bool {
    let names: BTreeSet<&String> = [old, new].into_iter().flatten().flat_map(Map::keys).collect();
    for name in &names {
        let old = old.and_then(|fields| fields.get(*name));
        let new = new.and_then(|fields| fields.get(*name));
        let below = compare(old, new, of.field(name).0);
        difference.put(&Step::Field((*name).clone()), below);
    }
    !names.is_empty()
}

fn elements(
    old: Option<Elements<'_, '_>>,
    new: Option<Elements<'_, '_>>,
    difference: &mut Difference,
) -> bool {
    let Some(of) = old.as_ref().or(new.as_ref()).map(|elements| elements.of) else { return false };
    let all = [&old, &new].into_iter().flatten().flat_map(|elements| &elements.list);
    let steps: BTreeSet<&Step> = all.map(|(step, _)| step).collect();
    for step in &steps {
        let old = old.as_ref().and_then(|elements| elements.find(step));
        let new = new.as_ref().and_then(|elements| elements.find(step));
        difference.put(step, compare(old, new, of));
    }
    !steps.is_empty()
}

/// Puts a manifest on top of an object.
pub(super) fn merge(live: &Value, manifest: &Value, of: Type<'_>) -> Value {
    let shapes = (of.shape(live), of.shape(manifest));
    match shapes {
        (Ok(Shape::Fields(has)), Ok(Shape::Fields(given))) => {
            let mut merged = has.clone();
            for (name, value) in given {
                let value = match has.get(name) {
                    Some(has) => merge(has, value, of.field(name).0),
                    None => value.clone(),
                };
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (Ok(Shape::Elements(has)), Ok(Shape::Elements(given))) => Value::Array(merge_elements(&has, &given)),
        _ => manifest.clone(),
    }
}

/// Elements in the manifest's order; those of the object alone stay before the one that followed them.
fn merge_elements(has: &Elements<'_, '_>, given: &Elements<'_, '_>) -> Vec<Value> {
    let mut merged = Vec::new();
    let mut waiting = has.list.iter().peekable();
    let is_given = |step: &Step| given.find(step).is_some();
    let mut done: BTreeSet<&Step> = BTreeSet::new();
    for (step, value) in &given.list {
        while let Some((other, own)) = waiting.next_if(|(other, _)| done.contains(other) || !is_given(other))
        {
            if !done.contains(other) {
                merged.push((*own).clone());
            }
        }
        done.insert(step);
        let before = has.find(step);
        merged.push(before.map_or_else(|| (*value).clone(), |before| merge(before, value, given.of)));
        waiting.next_if(|(other, _)| other == step);
    }
    merged.extend(waiting.filter(|(step, _)| !is_given(step)).map(|(_, own)| (*own).clone()));
    merged
}

/// Removes what a manager had set before and no manager sets any more.
pub(super) fn prune(value: &mut Value, before: &Set, owned: &Set, of: Type<'_>) {
    // A list is split before it is changed; an atomic value was decided by its owner.
    let doomed: Vec<(Step, bool)> = match of.shape(value) {
        Ok(Shape::Fields(fields)) => fields
            .keys()
            .map(|name| {
                let known = of.field(name).1;
                let step = Step::Field(name.clone());
                let holds = |set: &Set| set.below(&step).is_some_and(|below| below.member || known);
                let gone = holds(before) && !holds(owned);
                (step, gone)
            })
            .collect(),
        Ok(Shape::Elements(elements)) => elements
            .list
            .iter()
            .map(|(step, _)| {
                let holds = |set: &Set| set.below(step).is_some_and(|below| below.member);
                (step.clone(), holds(before) && !holds(owned))
            })
            .collect(),
        _ => return,
    };
    let nothing = Set::default();
    let below = |set: &Set, step: &Step| set.below(step).cloned();
    let descend = |value: &mut Value, step: &Step, of: Type<'_>| {
        if let Some(before) = below(before, step) {
            prune(value, &before, below(owned, step).as_ref().unwrap_or(&nothing), of);
        }
    };
    match value {
        Value::Object(fields) => {
            for (step, gone) in &doomed {
                let Step::Field(name) = step else { continue };
                if *gone {
                    fields.remove(name);
                } else if let Some(value) = fields.get_mut(name) {
                    descend(value, step, of.field(name).0);
                }
            }
        }
        Value::Array(values) => {
            let of = of.items();
            for (value, (step, gone)) in values.iter_mut().zip(&doomed) {
                if !gone {
                    descend(value, step, of);
                }
            }
            let mut fates = doomed.iter();
            values.retain(|_| fates.next().is_none_or(|(_, gone)| !gone));
        }
        _ => {}
    }
}
