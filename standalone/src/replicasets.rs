//! The controller of VirtualMachineInstanceReplicaSets: carries out what [`vireo_operators::replicaset`] decides.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use vireo_api::v1::{REPLICA_SET_KIND, VirtualMachineInstance, VirtualMachineInstanceReplicaSet};
use vireo_apiserver::controller::{self, Controller, Failures};
use vireo_apiserver::meta;
use vireo_apiserver::store::{Changes, DiskError, Follower, Key, Object, Store};
use vireo_operators::replicaset::{self, Seen, Step};

use crate::machines::told::{About, Event, write as tell};
use crate::owner_index::{Children, Whose, without_spec};
use crate::place;

/// What is remembered from round to round.
#[derive(Debug)]
struct ReplicaSets {
    follower: Follower,
    instances: Children<VirtualMachineInstance>,
    /// Why the last instance of a set could not be created.
    failures: Failures,
}

impl Default for ReplicaSets {
    fn default() -> Self {
        let instances = Children::of(place::vmis(), without_spec);
        Self { follower: Follower::default(), instances, failures: Failures::default() }
    }
}

/// Controls until the store is gone.
pub async fn run(store: Arc<Store>) {
    controller::control(store, ReplicaSets::default).await;
}

impl Controller for ReplicaSets {
    const NAME: &'static str = "replica sets";

    /// An instance that nobody controls may concern every set of its namespace.
    fn changed(&mut self, store: &Store) -> BTreeSet<Key> {
        let sets = place::replica_sets();
        let all = |namespace: Option<&str>| {
            let objects = store.list(&sets.name(), namespace).objects;
            objects.into_iter().map(|object| object.key.clone()).collect::<Vec<_>>()
        };
        let mut keys = BTreeSet::new();
        match self.follower.look(store) {
            Changes::Relist => {
                self.instances.fill(store);
                keys.extend(all(None));
            }
            Changes::Delta(events) => {
                let mut rooms = BTreeSet::new();
                for event in events {
                    if event.key.resource == sets.name() {
                        keys.insert(event.key.clone());
                    }
                    for whose in self.instances.heed(&event) {
                        match whose {
                            Whose::Owner(owner) if owner.kind == REPLICA_SET_KIND => {
                                keys.insert(sets.key(&owner.namespace, &owner.name));
                            }
                            Whose::Owner(_) => {}
                            Whose::Nobody(namespace) => {
                                rooms.insert(namespace);
                            }
                        }
                    }
                }
                keys.extend(rooms.iter().flat_map(|namespace| all(Some(namespace))));
            }
        }
        keys
    }

    fn control(
        &mut self,
        store: &Store,
        object: &Arc<Object>,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, DiskError> {
        // What is stored was read when it was admitted; a later release may read it otherwise.
        let Ok(set) = serde_json::from_value::<VirtualMachineInstanceReplicaSet>(object.value.clone()) else {
            return Ok(None);
        };
        let theirs = self.instances.owned_by(&set.metadata.uid);
        let there: Vec<(&Key, &VirtualMachineInstance)> =
            theirs.chain(self.instances.orphans(&object.key.namespace)).collect();
        let instances: Vec<&VirtualMachineInstance> = there.iter().map(|(_, instance)| *instance).collect();
        let failure = self.failures.of(&object.key);
        let verdict = replicaset::decide(Seen { set: &set, instances: &instances, failure, now });
        let status = serde_json::to_value(&verdict.status).unwrap_or_default();
        place::change(store, object, |value| {
            value["status"] = status;
            !meta::is_leaving(value) || place::is_held(value)
        })?;
        let hands = Hands { store, set: &set };
        if let Some(paused) = verdict.paused {
            let (reason, what) =
                if paused { ("SuccessfulPaused", "Paused") } else { ("SuccessfulResumed", "Resumed") };
            hands.tell(false, reason, what.to_owned())?;
        }
        let mut failure = None;
        for step in verdict.steps {
            match &step {
                // What one is refused for, all are.
                Step::Create(instance) if failure.is_none() => failure = hands.create(instance)?,
                Step::Create(_) => {}
                Step::Delete(uid) | Step::Adopt(uid, _) | Step::Disown(uid) => {
                    let key = there.iter().find(|(_, one)| one.metadata.uid == *uid).map(|(key, _)| *key);
                    let instance = key.and_then(|key| store.get(key));
                    if let Some(instance) = instance.filter(|one| meta::text(&one.value, "uid") == uid) {
                        hands.change(&instance, step)?;
                    }
                }
            }
        }
        let retry = self.failures.note(&object.key, failure, now);
        Ok([verdict.again, retry].into_iter().flatten().min())
    }

    fn forget(&mut self, key: &Key) {
        self.failures.forget(key);
    }
}

/// Does what was decided about one set.
struct Hands<'a> {
    store: &'a Store,
    set: &'a VirtualMachineInstanceReplicaSet,
}

impl Hands<'_> {
    fn tell(&self, warning: bool, reason: &str, message: String) -> Result<(), DiskError> {
        let about = About {
            kind: REPLICA_SET_KIND,
            metadata: &self.set.metadata,
            component: "virtualmachinereplicaset-controller",
            host: "",
        };
        tell(self.store, &about, &Event::new(warning, reason, message))
    }

    /// Creates an instance; why not, if it is refused.
    fn create(&self, instance: &VirtualMachineInstance) -> Result<Option<String>, DiskError> {
        let name = meta::made_up(&instance.metadata.generate_name);
        let value = serde_json::to_value(instance).unwrap_or_default();
        let key = place::vmis().key(&self.set.metadata.namespace, &name);
        let refused = place::create(self.store, place::vmis(), &key, value, |_| {})?;
        match &refused {
            None => {
                let text = format!(
                    "Started the virtual machine by creating the new virtual machine instance {name}"
                );
                self.tell(false, "SuccessfulCreate", text)?;
            }
            Some(why) => {
                self.tell(true, "FailedCreate", format!("Error creating virtual machine instance: {why}"))?;
            }
        }
        Ok(refused)
    }

    /// Deletes an instance, or changes whose it is.
    fn change(&self, instance: &Object, step: Step) -> Result<(), DiskError> {
        let own = |change: &dyn Fn(&mut Vec<Value>)| {
            place::change(self.store, instance, |value| {
                let references = meta::of(value).entry("ownerReferences").or_insert_with(|| json!([]));
                if let Some(references) = references.as_array_mut() {
                    change(references);
                }
                true
            })
        };
        match step {
            Step::Create(_) => Ok(()),
            Step::Delete(uid) => {
                place::remove(self.store, instance)?;
                let text = format!(
                    "Stopped the virtual machine by deleting the virtual machine instance with uid {uid}"
                );
                self.tell(false, "SuccessfulDelete", text)
            }
            Step::Adopt(_, owner) => own(&|references| {
                if references.iter().all(|one| one.get("controller") != Some(&json!(true))) {
                    references.push(json!(owner));
                }
            }),
            Step::Disown(_) => own(&|references| {
                references.retain(|one| one.get("uid") != Some(&json!(self.set.metadata.uid)));
            }),
        }
    }
}

#[cfg(test)]
mod tests;
