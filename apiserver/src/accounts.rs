//! Every namespace has a ServiceAccount that is called `default`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::resource::{NAMESPACES, SERVICE_ACCOUNTS};
use crate::store::{Change, Changes, DiskError, Store, WatchCursor};
use crate::{controller, meta, objects};

const DEFAULT: &str = "default";
/// How soon what could not be written is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// Which namespaces to look at.
#[derive(Debug, Default)]
struct State {
    cursor: WatchCursor,
    open: BTreeSet<String>,
}

/// Makes accounts until the store is gone.
pub async fn run(store: Arc<Store>) {
    controller::run(store, "ServiceAccounts", reconcile).await;
}

fn reconcile(store: &Store, state: &mut State) -> Option<Duration> {
    let (namespaces, accounts) = (NAMESPACES.name(), SERVICE_ACCOUNTS.name());
    match state.cursor.look(store) {
        Changes::Relist => {
            state
                .open
                .extend(store.list(&namespaces, None).objects.iter().map(|object| object.key.name.clone()));
        }
        Changes::Delta(events) => {
            for key in events.iter().map(|event| &event.key) {
                if key.resource == namespaces {
                    state.open.insert(key.name.clone());
                } else if key.resource == accounts && key.name == DEFAULT {
                    state.open.insert(key.namespace.clone());
                }
            }
        }
    }
    while let Some(namespace) = state.open.first().cloned() {
        if let Err(error) = ensure(store, &namespace) {
            tracing::warn!(%error, namespace, "a ServiceAccount cannot be written; it is tried again");
            return Some(RETRY);
        }
        state.open.remove(&namespace);
    }
    None
}

fn ensure(store: &Store, namespace: &str) -> Result<(), DiskError> {
    let row = &SERVICE_ACCOUNTS;
    let written = store.write(&row.key(namespace, DEFAULT), |before, store| {
        let found = objects::namespace(store, namespace);
        let is_active = found.is_some_and(|found| !meta::is_being_deleted(&found.value()));
        if before.is_some() || !is_active {
            return Ok(Change::Nothing);
        }
        let mut value = json!({"apiVersion": row.api_version(), "kind": row.kind});
        meta::create(&mut value, namespace, DEFAULT);
        Ok(Change::Put(value))
    });
    objects::done(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_namespace_has_an_account_and_gets_another_when_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        objects::prepare(&store).unwrap();
        let mut state = State::default();
        let account = || store.get(&SERVICE_ACCOUNTS.key("default", DEFAULT));
        assert_eq!(reconcile(&store, &mut state), None);
        let first = account().unwrap();
        assert_eq!(store.list(&SERVICE_ACCOUNTS.name(), None).objects.len(), 2, "and one in kube-system");
        let revision = store.revision();
        reconcile(&store, &mut state);
        assert_eq!(store.revision(), revision, "there is nothing more to do");
        objects::remove(&store, &first).unwrap();
        reconcile(&store, &mut state);
        assert_ne!(meta::text(&account().unwrap().value(), "uid"), meta::text(&first.value(), "uid"));
        let namespace = objects::namespace(&store, "default").unwrap();
        objects::remove(&store, &namespace).unwrap();
        objects::remove(&store, &account().unwrap()).unwrap();
        reconcile(&store, &mut state);
        assert!(account().is_none(), "not in a namespace that goes");
    }
}
