//! What is done for a pool.

use std::convert::Infallible;
use std::sync::Arc;

use serde_json::{Value, json};
use vireo_api::v1::{POOL_KIND, VirtualMachine, VirtualMachinePool};
use vireo_apiserver::meta;
use vireo_apiserver::store::{Change, DiskError, Key, Object, Store, WriteError};
use vireo_operators::pool::{Made, Member, REVISION_LABEL, Revision, Step};

use crate::machines::told::{About, Event, write as tell};
use crate::place;

/// Does what was decided about one pool.
pub(super) struct Hands<'a> {
    pub(super) store: &'a Store,
    pub(super) pool: &'a VirtualMachinePool,
    pub(super) members: &'a [Member<'a>],
}

impl Hands<'_> {
    fn tell(&self, warning: bool, reason: &str, message: String) -> Result<(), DiskError> {
        let about = About {
            kind: POOL_KIND,
            metadata: &self.pool.metadata,
            component: "virtualmachinepool-controller",
            host: "",
        };
        tell(self.store, &about, &Event::new(warning, reason, message))
    }

    pub(super) fn tell_of_pause(&self, paused: Option<bool>) -> Result<(), DiskError> {
        match paused {
            None => Ok(()),
            Some(true) => self.tell(false, "SuccessfulPaused", "Pool is paused".to_owned()),
            Some(false) => self.tell(false, "SuccessfulResume", "Pool is unpaused".to_owned()),
        }
    }

    /// Does one thing; why not, if it is refused. What is gone already is done.
    pub(super) fn act(&self, step: Step) -> Result<Option<String>, DiskError> {
        match step {
            Step::Keep(revision) => return self.keep(&revision),
            Step::Create(machine) => return self.create(&machine),
            Step::Update(uid, made) => {
                if let Some(machine) = self.machine(&uid) {
                    return self.update(&machine, *made);
                }
            }
            Step::Delete(uid) => {
                if let Some(machine) = self.machine(&uid) {
                    self.delete(&machine)?;
                }
            }
            Step::Disown(uid) => {
                if let Some(machine) = self.machine(&uid) {
                    self.disown(&machine)?;
                }
            }
            Step::Restart(uid) => {
                if let Some(instance) = self.instance(&uid) {
                    place::remove(self.store, &instance)?;
                    let name = format!("{}/{}", instance.key.namespace, instance.key.name);
                    self.tell(false, "SuccessfulDelete", format!("Successfully updated resource {name}"))?;
                }
            }
            Step::Relabel(uid, revision) => {
                if let Some(instance) = self.instance(&uid) {
                    place::change(self.store, &instance, |value| {
                        let labels = meta::of(value).entry("labels").or_insert_with(|| json!({}));
                        labels[REVISION_LABEL] = json!(revision);
                        true
                    })?;
                }
            }
            Step::Prune(name) => {
                if let Some(revision) = self.store.get(&self.revision(&name)) {
                    place::remove(self.store, &revision)?;
                }
            }
        }
        Ok(None)
    }

    fn revision(&self, name: &str) -> Key {
        place::revisions().key(&self.pool.metadata.namespace, name)
    }

    fn machine(&self, uid: &str) -> Option<Arc<Object>> {
        let named = self.members.iter().find(|one| one.machine.metadata.uid == uid)?;
        let key = place::vms().key(&self.pool.metadata.namespace, &named.machine.metadata.name);
        self.store.get(&key).filter(|one| meta::text(&one.value, "uid") == uid)
    }

    fn instance(&self, uid: &str) -> Option<Arc<Object>> {
        let mut instances = self.members.iter().filter_map(|one| one.instance);
        let named = instances.find(|one| one.metadata.uid == uid)?;
        let key = place::vmis().key(&self.pool.metadata.namespace, &named.metadata.name);
        self.store.get(&key).filter(|one| meta::text(&one.value, "uid") == uid)
    }

    /// Keeps the pool as it is; one that another pool of this name left behind goes first.
    fn keep(&self, revision: &Revision) -> Result<Option<String>, DiskError> {
        let row = place::revisions();
        let owner = Revision::owner(self.pool);
        let mut refused = None;
        let written: Result<_, WriteError<Infallible>> =
            self.store.write(&self.revision(&revision.name), |before, _| {
                if let Some(before) = before {
                    let whose = before.value.pointer("/metadata/ownerReferences/0/uid");
                    if whose != owner.get("uid") {
                        refused = Some(format!(
                            "there is a ControllerRevision {:?} that is not the pool's",
                            revision.name
                        ));
                    }
                    return Ok(Change::Nothing);
                }
                let mut value = json!({
                    "apiVersion": row.api_version(), "kind": row.kind, "data": revision.data,
                    "metadata": {"ownerReferences": [owner]}, "revision": revision.generation,
                });
                meta::create(&mut value, &self.pool.metadata.namespace, &revision.name);
                Ok(Change::Put(value))
            });
        place::done(written)?;
        Ok(refused)
    }

    fn create(&self, machine: &VirtualMachine) -> Result<Option<String>, DiskError> {
        let key = place::vms().key(&self.pool.metadata.namespace, &machine.metadata.name);
        let value = serde_json::to_value(machine).unwrap_or_default();
        let refused = place::create(self.store, place::vms(), &key, value, |_| {})?;
        match &refused {
            None => {
                self.tell(false, "SuccessfulCreate", format!("Created VM {}/{}", key.namespace, key.name))?;
            }
            Some(why) => self.tell(true, "FailedCreate", format!("Error creating VM: {why}"))?,
        }
        Ok(refused)
    }

    fn update(&self, machine: &Object, made: Made) -> Result<Option<String>, DiskError> {
        let name = format!("{}/{}", machine.key.namespace, machine.key.name);
        let mut value = machine.value.clone();
        let metadata = meta::of(&mut value);
        metadata.insert("labels".to_owned(), json!(made.labels));
        metadata.insert("annotations".to_owned(), json!(made.annotations));
        value["spec"] = json!(made.spec);
        if let Some(why) = place::judge(self.store, place::vms(), &mut value, Some(&machine.value)) {
            self.tell(true, "FailedUpdate", format!("Error updating virtual machine {name}: {why}"))?;
            return Ok(Some(why));
        }
        meta::count_generation(&mut value, &machine.value);
        let mut same = false;
        let written: Result<_, WriteError<Infallible>> = self.store.write(&machine.key, |now, _| {
            same = now.is_some_and(|now| now.revision == machine.revision);
            Ok(if same { Change::Put(value) } else { Change::Nothing })
        });
        place::done(written)?;
        // If it changed meanwhile there is news, and it is looked at again.
        if same {
            self.tell(false, "SuccessfulUpdate", format!("Updated VM {name}"))?;
        }
        Ok(None)
    }

    fn delete(&self, machine: &Object) -> Result<(), DiskError> {
        place::remove(self.store, machine)?;
        let (uid, key) = (meta::text(&machine.value, "uid"), &machine.key);
        let text = format!("Deleted VM {}/{} with uid {uid} from pool", key.namespace, key.name);
        self.tell(false, "SuccessfulDelete", text)
    }

    fn disown(&self, machine: &Object) -> Result<(), DiskError> {
        place::change(self.store, machine, |value| {
            let references = meta::of(value).get_mut("ownerReferences").and_then(Value::as_array_mut);
            if let Some(references) = references {
                references.retain(|one| one.get("uid") != Some(&json!(self.pool.metadata.uid)));
            }
            true
        })
    }
}
