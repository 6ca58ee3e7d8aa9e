//! Fields of objects in JSON.

use serde_json::{Map, Value};

/// An object's fields.
pub(super) type Fields = Map<String, Value>;

/// Whether a value is as if it were absent.
fn is_unset(value: Option<&Value>) -> bool {
    value.is_none_or(|value| value.is_null() || value == "")
}

/// The value of a field, by its dotted path, if it is set.
pub(super) fn get<'a>(fields: &'a Fields, path: &str) -> Option<&'a Value> {
    let (name, below) = path.split_once('.').map_or((path, None), |(name, below)| (name, Some(below)));
    let value = fields.get(name).filter(|value| !is_unset(Some(value)))?;
    match below {
        Some(below) => get(value.as_object()?, below),
        None => Some(value),
    }
}

/// Sets a field that is not set.
pub(super) fn fill(fields: &mut Fields, name: &str, default: impl Into<Value>) {
    if is_unset(fields.get(name)) {
        fields.insert(name.to_owned(), default.into());
    }
}

/// The fields of an object, if it is set.
pub(super) fn existing<'a>(fields: &'a mut Fields, name: &str) -> Option<&'a mut Fields> {
    fields.get_mut(name)?.as_object_mut()
}

/// The fields of an object, which is made if it is not set.
pub(super) fn object<'a>(fields: &'a mut Fields, name: &str) -> Option<&'a mut Fields> {
    fill(fields, name, Fields::new());
    existing(fields, name)
}

/// The objects of a list.
pub(super) fn items<'a>(fields: &'a mut Fields, name: &str) -> impl Iterator<Item = &'a mut Fields> {
    let list = fields.get_mut(name).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_object_mut)
}

/// The names of the objects of a list.
pub(super) fn names(fields: &Fields, path: &str) -> Vec<String> {
    let list = get(fields, path).and_then(Value::as_array);
    let names = list.into_iter().flatten().filter_map(|one| one.get("name")?.as_str());
    names.map(str::to_owned).collect()
}
