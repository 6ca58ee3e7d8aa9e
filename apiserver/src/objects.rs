//! How stored objects change and go, and the namespaces that are always there.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::meta;
use crate::resource::{NAMESPACES, Resource};
use crate::store::{Change, DiskError, Object, Store, WriteError};

/// Namespaces that are made at the start and cannot be deleted.
const PERMANENT: [&str; 2] = ["default", "kube-system"];

/// Whether an object that was deleted is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// Somebody holds it by a finalizer.
    Held,
    /// It goes at once.
    Free,
}

/// One namespace.
pub fn namespace(store: &Store, name: &str) -> Option<Arc<Object>> {
    store.get(&NAMESPACES.key("", name))
}

/// Whether an object cannot be deleted.
pub fn is_permanent(resource: &Resource, name: &str) -> bool {
    resource.is(&NAMESPACES) && PERMANENT.contains(&name)
}

/// Whether somebody holds an object.
pub fn is_held(value: &Value) -> bool {
    let inner = value.get("kind").is_some_and(|kind| kind == "Namespace")
        && value.pointer("/spec/finalizers").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    inner || !meta::finalizers(value).is_empty()
}

/// Marks an object as leaving, if it is held.
pub fn mark_for_deletion(value: &mut Value) -> Leaving {
    if !is_held(value) {
        return Leaving::Free;
    }
    if !meta::is_leaving(value) {
        let metadata = meta::of(value);
        metadata.insert("deletionTimestamp".to_owned(), json!(meta::now()));
        metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(0));
        if value.get("kind").is_some_and(|kind| kind == "Namespace") {
            value["status"] = json!({"phase": "Terminating"});
        }
    }
    Leaving::Held
}

/// Deletes an object as a request without options would. What is gone already is no error. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn remove(store: &Store, object: &Object) -> Result<(), DiskError> {
    change(store, object, |value| mark_for_deletion(value) == Leaving::Held)
}

/// Changes an object that is still the same one; `stays` says whether it is kept. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn change(
    store: &Store,
    object: &Object,
    stays: impl FnOnce(&mut Value) -> bool,
) -> Result<(), DiskError> {
    let uid = meta::text(&object.value, "uid");
    let changed = store.write(&object.key, |now, _| {
        let Some(now) = now.filter(|now| meta::text(&now.value, "uid") == uid) else {
            return Ok(Change::Nothing);
        };
        let mut value = now.value.clone();
        Ok(if stays(&mut value) { Change::Put(value) } else { Change::Remove(value) })
    });
    done(changed)
}

/// For writers that refuse nothing.
///
/// # Errors
/// When the store cannot be written.
pub fn done<T>(result: Result<T, WriteError<std::convert::Infallible>>) -> Result<(), DiskError> {
    match result {
        Ok(_) => Ok(()),
        Err(WriteError::Refused(never)) => match never {},
        Err(WriteError::Disk(error)) => Err(error),
    }
}

/// Makes the namespaces that must be there. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn prepare(store: &Store) -> Result<(), DiskError> {
    for name in PERMANENT {
        make(store, &NAMESPACES, name, |value| {
            (NAMESPACES.admit)(value, None);
        })?;
    }
    Ok(())
}

/// Makes an object if it is not there, and brings it up to date. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn make(
    store: &Store,
    resource: &'static Resource,
    name: &str,
    complete: impl FnOnce(&mut Value),
) -> Result<(), DiskError> {
    let written = store.write(&resource.key("", name), |before, _| {
        let mut value = match before {
            Some(before) => before.value.clone(),
            None => {
                let mut fresh =
                    json!({"apiVersion": resource.api_version(), "kind": resource.kind, "metadata": {}});
                meta::create(&mut fresh, "", name);
                fresh
            }
        };
        complete(&mut value);
        Ok(Change::Put(value))
    });
    done(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_marked_once_and_what_is_not_goes() {
        let mut free = json!({"metadata": {"name": "x"}});
        assert_eq!(mark_for_deletion(&mut free), Leaving::Free);
        let mut held = json!({"metadata": {"name": "x", "finalizers": ["a"]}});
        assert_eq!(mark_for_deletion(&mut held), Leaving::Held);
        let marked = held.clone();
        assert!(meta::is_leaving(&marked));
        assert_eq!(mark_for_deletion(&mut held), Leaving::Held);
        assert_eq!(held, marked);
        let mut namespace =
            json!({"kind": "Namespace", "metadata": {}, "spec": {"finalizers": ["kubernetes"]}});
        assert_eq!(mark_for_deletion(&mut namespace), Leaving::Held);
        assert_eq!(namespace["status"]["phase"], "Terminating");
    }
}
