//! The node agent on this API: VMIs become machines, and what becomes of machines is written to VMIs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tracing::{error, warn};
use uuid::Uuid;
use vireo_api::v1::VirtualMachineInstance;
use vireo_apiserver::meta;
use vireo_apiserver::store::{Change, DiskError, Object, Store, WriteError};
use vireo_handler::manifests::catalog::{Catalog, Entry};
use vireo_handler::manifests::document::Accepted;
use vireo_handler::manifests::{Key, Origin, Source};
use vireo_handler::node::Node;
use vireo_handler::reconcile::status::Phase;
use vireo_operators::placement::controller::NODE_LABEL;

use crate::resource::VMI_FINALIZER;
use crate::{place, store_events};

/// Of a status: what the instance was made from.
const REVISION: &str = "virtualMachineRevisionName";
/// Of a spec: what `virtctl stop` may have shortened since it was accepted.
const GRACE: &str = "/spec/terminationGracePeriodSeconds";
/// How soon what could not be written is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// How often a spec was changed.
type Generation = Option<i64>;

/// The VMIs of the store as a source for the node agent.
#[derive(Debug)]
pub struct Vmis {
    store: Arc<Store>,
    node: String,
    news: tokio::sync::watch::Receiver<u64>,
    /// Judged once for each generation, of which there is another when a volume is plugged in or out.
    entries: BTreeMap<Uuid, (Generation, Entry)>,
    leaving: Vec<Arc<Object>>,
}

impl Vmis {
    /// The VMIs of a store, for a node.
    pub fn of(store: Arc<Store>, node: &str) -> Self {
        let news = store.subscribe();
        Self { store, node: node.to_owned(), news, entries: BTreeMap::new(), leaving: Vec::new() }
    }
}

fn entry(value: &Value, uid: Uuid) -> Entry {
    let phase = value.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
    // What has ended never starts again, also where this node remembers nothing of it.
    if Phase::parse(phase).is_final() {
        return Entry::Held;
    }
    let accepted = serde_json::from_value::<VirtualMachineInstance>(value.clone())
        .map_err(|error| error.to_string())
        .and_then(|vmi| Accepted::object(vmi).map_err(|report| report.to_string()));
    match accepted {
        Ok(accepted) => Entry::Present { manifest: Arc::new(accepted), origin: Origin::Object(uid) },
        Err(error) => {
            error!(%uid, error, "a stored VMI cannot be understood; it is left as it is");
            Entry::Held
        }
    }
}

impl Source for Vmis {
    fn catalog(&mut self, _: &BTreeMap<Key, String>) -> Catalog {
        self.news.borrow_and_update();
        let listing = self.store.list(&place::vmis().name(), None);
        let mut catalog = Catalog::default();
        let mut known = BTreeMap::new();
        self.leaving.clear();
        for object in listing.objects {
            if bound_to(&object.value) != Some(&self.node) {
                catalog.entries.insert(key(&object), Entry::Held);
                continue;
            }
            if meta::is_leaving(&object.value) {
                if let Some(seconds) = object.value.pointer(GRACE).and_then(Value::as_i64) {
                    catalog.graces.insert(key(&object), u64::try_from(seconds).unwrap_or(0));
                }
                self.leaving.push(object);
                continue;
            }
            let Ok(uid) = meta::text(&object.value, "uid").parse::<Uuid>() else { continue };
            let generation = object.value.pointer("/metadata/generation").and_then(Value::as_i64);
            let entry = match self.entries.remove(&uid) {
                Some((of, entry)) if of == generation => entry,
                Some(_) | None => entry(&object.value, uid),
            };
            known.insert(uid, (generation, entry.clone()));
            catalog.entries.insert(key(&object), entry);
        }
        self.entries = known;
        // Of these nobody knows whether they are to run. What runs goes on.
        let vmis = place::vmis().name();
        for lost in self.store.unreadable().filter(|lost| lost.resource == vmis) {
            let key = Key { namespace: lost.namespace.clone(), name: lost.name.clone() };
            catalog.entries.insert(key, Entry::Held);
        }
        catalog
    }

    async fn changed(&mut self) {
        let retry = async {
            match self.leaving.is_empty() {
                true => std::future::pending().await,
                false => tokio::time::sleep(RETRY).await,
            }
        };
        tokio::select! {
            changed = self.news.changed() => if changed.is_err() { std::future::pending().await },
            () = retry => {}
        }
    }

    fn settle(&mut self, busy: &(dyn Fn(&Key) -> bool + Send + Sync)) {
        for object in &self.leaving {
            let held = meta::finalizers(&object.value).iter().any(|one| one == VMI_FINALIZER);
            // Who else holds it waits for its end, also where somebody took our finalizer away.
            if (!held && is_final(&object.value)) || busy(&key(object)) {
                continue;
            }
            let (store, object) = (Arc::clone(&self.store), Arc::clone(object));
            // What fails here is seen again: the object stays until it is let go of.
            tokio::task::spawn_blocking(move || {
                let released = place::change(&store, &object, |value| {
                    meta::remove_finalizer(value, VMI_FINALIZER);
                    end(value);
                    place::is_held(value)
                });
                if let Err(error) = released {
                    Node::complain(
                        "a VMI whose machine is gone cannot be removed; it is tried again",
                        &error,
                    );
                }
            });
        }
    }
}

/// What is let go of has ended, also where its machine was gone before anybody wrote how, or never was.
fn end(value: &mut Value) {
    if !is_final(value) {
        let phase = value.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
        let last = if phase == Phase::Running.as_str() { Phase::Succeeded } else { Phase::Failed };
        value["status"]["phase"] = json!(last.as_str());
    }
}

fn is_final(value: &Value) -> bool {
    let phase = value.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
    Phase::parse(phase).is_final()
}

/// The node to which placement bound an instance.
fn bound_to(value: &Value) -> Option<&str> {
    value.get("metadata")?.get("labels")?.get(NODE_LABEL)?.as_str()
}

fn key(object: &Object) -> Key {
    Key { namespace: object.key.namespace.clone(), name: object.key.name.clone() }
}

/// Writes what the node says of its machines into the store, with events of what a user would want to know. Ends
/// never.
pub async fn publish(store: Arc<Store>, node: Arc<Node>) {
    let mut news = node.news();
    let mut told: BTreeMap<Key, Arc<VirtualMachineInstance>> = BTreeMap::new();
    loop {
        news.borrow_and_update();
        let mut failed = false;
        let vmis = node.vmis();
        let is_shown = |key: &Key| {
            vmis.iter().any(|vmi| vmi.metadata.name == key.name && vmi.metadata.namespace == key.namespace)
        };
        told.retain(|key, _| is_shown(key));
        for vmi in vmis {
            let key = Key { namespace: vmi.metadata.namespace.clone(), name: vmi.metadata.name.clone() };
            let before = told.get(&key).cloned();
            if before.as_ref().is_some_and(|before| Arc::ptr_eq(before, &vmi)) {
                continue;
            }
            let (store, now) = (Arc::clone(&store), Arc::clone(&vmi));
            let written = tokio::task::spawn_blocking(move || write(&store, before.as_deref(), &now)).await;
            match written {
                Ok(Ok(())) => drop(told.insert(key, vmi)),
                Ok(Err(error)) => {
                    failed = true;
                    Node::complain("a VMI's status cannot be written to the API; it is tried again", &error);
                }
                Err(error) => {
                    failed = true;
                    warn!(%error, "writing a VMI's status broke off; it is tried again");
                }
            }
        }
        let retry = async {
            match failed {
                true => tokio::time::sleep(RETRY).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = news.changed() => if changed.is_err() { return },
            () = retry => {}
        }
    }
}

/// Writes one VMI's status, then the events. Blocks.
fn write(
    store: &Store,
    before: Option<&VirtualMachineInstance>,
    now: &VirtualMachineInstance,
) -> Result<(), DiskError> {
    let status = serde_json::to_value(&now.status).unwrap_or_default();
    let key = place::vmis().key(&now.metadata.namespace, &now.metadata.name);
    let mut events = Vec::new();
    let written: Result<_, WriteError<std::convert::Infallible>> = store.write(&key, |object, _| {
        let Some(object) = object.filter(|object| meta::text(&object.value, "uid") == now.metadata.uid)
        else {
            return Ok(Change::Nothing);
        };
        let was = object.value.get("status").cloned().unwrap_or_default();
        events = store_events::events(&was, before, now);
        let mut value = object.value.clone();
        value["status"].clone_from(&status);
        // The one thing in it that the node does not know.
        if let Some(revision) = was.get(REVISION) {
            value["status"][REVISION].clone_from(revision);
        }
        Ok(Change::Put(value))
    });
    match written {
        Ok(_) => {}
        Err(WriteError::Refused(never)) => match never {},
        Err(WriteError::Disk(error)) => return Err(error),
    }
    let (kind, host) = (vireo_api::v1::VMI_KIND, now.status.node_name.as_str());
    let about = store_events::About { kind, metadata: &now.metadata, component: "virt-handler", host };
    for event in events {
        store_events::write(store, &about, &event)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
