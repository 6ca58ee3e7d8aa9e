//! The controller of VirtualMachines: carries out what [`vireo_operators::vm`] decides.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use serde_json::{Value, json};
use vireo_api::v1::{VirtualMachine, VirtualMachineInstance, VolumeRequest};
use vireo_apiserver::controller::{self, Controller, RETRY};
use vireo_apiserver::meta;
use vireo_apiserver::resource::Cause;
use vireo_apiserver::store::{Change, Changes, DiskError, Follower, Key, Object, Store, WriteError};
use vireo_operators::vm::{self, Revision, Seen, Start, Step};

use crate::machines::told::{About, Event, write as tell};
use crate::{instancetypes, place};

mod orphans;
pub mod volumes;

/// What is remembered from round to round.
#[derive(Debug, Default)]
struct Machines {
    follower: Follower,
    /// Machines whose instance could not be created, and when that was tried.
    failed: BTreeMap<Key, Instant>,
}

/// Controls until the store is gone.
pub async fn run(store: Arc<Store>) {
    controller::control(store, Machines::default).await;
}

impl Controller for Machines {
    const NAME: &'static str = "VirtualMachines";

    /// The VMs that a write concerns, and VMIs that may have no VM any more. A VM's instance has its name.
    fn changed(&mut self, store: &Store) -> BTreeSet<Key> {
        let (machines, instances) = (place::vms().name(), place::vmis().name());
        match self.follower.look(store) {
            Changes::Relist => {
                let all = [&machines, &instances].map(|resource| store.list(resource, None).objects);
                all.iter().flatten().map(|object| object.key.clone()).collect()
            }
            Changes::Delta(events) => events
                .iter()
                .filter(|event| [&machines, &instances].contains(&&event.key.resource))
                .flat_map(|event| {
                    [place::vms(), place::vmis()].map(|row| row.key(&event.key.namespace, &event.key.name))
                })
                .collect(),
        }
    }

    fn control(
        &mut self,
        store: &Store,
        object: &Arc<Object>,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, DiskError> {
        if object.key.resource == place::vmis().name() {
            return orphans::release(store, object).map(|()| None);
        }
        // What is stored was read when it was admitted; a later release may read it otherwise.
        let Ok(mut vm) = serde_json::from_value::<VirtualMachine>(object.value.clone()) else {
            return Ok(None);
        };
        if orphans::adopt(store, &vm)? {
            // That is news.
            return Ok(None);
        }
        let expanded = match meta::is_leaving(&object.value) {
            true => None,
            false => instancetypes::prepare(store, &mut vm)?.map_err(|causes| told(&causes)).transpose(),
        };
        let instance = instance_of(store, &vm);
        let revision = instance.as_ref().and_then(|(_, instance)| Revision::name_for(&vm, instance));
        let revision =
            revision.and_then(|name| store.get(&place::revisions().key(&vm.metadata.namespace, &name)));
        let chance = f64::from(uuid::Uuid::new_v4().as_bytes()[0]) / 255.0;
        let verdict = vm::decide(Seen {
            vm: &vm,
            instance: instance.as_ref().map(|(_, instance)| instance),
            made_from: revision.as_ref().and_then(|revision| revision.value.get("data")),
            expanded: expanded.as_ref().map(|expanded| expanded.as_ref().map_err(String::as_str)),
            now,
            chance,
        });
        let status = serde_json::to_value(&verdict.status).unwrap_or_default();
        if !write_status(store, object, status)? {
            // It changed meanwhile: there is news.
            return Ok(None);
        }
        let instance = instance.map(|(object, _)| object);
        match verdict.step {
            Step::Create(start) => {
                if self.failed.get(&object.key).is_none_or(|at| at.elapsed() >= RETRY) {
                    match create(store, &vm, *start)? {
                        true => self.failed.remove(&object.key),
                        false => self.failed.insert(object.key.clone(), Instant::now()),
                    };
                }
            }
            step => {
                self.failed.remove(&object.key);
                act(store, (object, &vm), instance.as_deref(), step)?;
            }
        }
        // What it chose may come to be without a word to the machine.
        let again = matches!(expanded, Some(Err(_))) || self.failed.contains_key(&object.key);
        let retry = again.then(|| controller::soon(now));
        Ok([verdict.again, retry].into_iter().flatten().min())
    }

    fn forget(&mut self, key: &Key) {
        self.failed.remove(key);
    }
}

/// The instance of a machine's name, if it is the machine's.
pub fn instance_of(store: &Store, vm: &VirtualMachine) -> Option<(Arc<Object>, VirtualMachineInstance)> {
    let object = store.get(&place::vmis().key(&vm.metadata.namespace, &vm.metadata.name))?;
    let instance: VirtualMachineInstance = serde_json::from_value(object.value.clone()).ok()?;
    vm::orphan::owns(&vm.metadata, &instance.metadata).then_some((object, instance))
}

fn told(causes: &[Cause]) -> String {
    causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect::<Vec<_>>().join("; ")
}

/// Writes the status of a machine that is still as it was; whether it is.
fn write_status(store: &Store, object: &Object, status: Value) -> Result<bool, DiskError> {
    let mut same = false;
    let written: Result<_, WriteError<Infallible>> = store.write(&object.key, |now, _| {
        let Some(now) = now.filter(|now| now.revision == object.revision) else { return Ok(Change::Nothing) };
        same = true;
        let mut value = now.value.clone();
        value["status"] = status;
        Ok(Change::Put(value))
    });
    place::done(written)?;
    Ok(same)
}

fn about(vm: &VirtualMachine) -> About<'_> {
    About {
        kind: vireo_api::v1::VM_KIND,
        metadata: &vm.metadata,
        component: "virtualmachine-controller",
        host: "",
    }
}

/// Creates an instance; whether it came to be.
fn create(store: &Store, vm: &VirtualMachine, start: Start) -> Result<bool, DiskError> {
    let Start { revision, instance } = start;
    let (namespace, name) = (&vm.metadata.namespace, &vm.metadata.name);
    keep(store, vm, &revision)?;
    let value = serde_json::to_value(&instance).unwrap_or_default();
    let key = place::vmis().key(namespace, name);
    let refused = place::create(store, place::vmis(), &key, value, |value| {
        value["status"]["virtualMachineRevisionName"] = json!(revision.name);
    })?;
    let event = match &refused {
        None => {
            let text =
                format!("Started the virtual machine by creating the new virtual machine instance {name}");
            Event::new(false, "SuccessfulCreate", text)
        }
        Some(why) => {
            Event::new(true, "FailedCreate", format!("Error creating virtual machine instance: {why}"))
        }
    };
    tell(store, &about(vm), &event)?;
    Ok(refused.is_none())
}

/// Keeps what an instance is made from.
fn keep(store: &Store, vm: &VirtualMachine, revision: &Revision) -> Result<(), DiskError> {
    let row = place::revisions();
    let written: Result<_, WriteError<Infallible>> =
        store.write(&row.key(&vm.metadata.namespace, &revision.name), |before, _| {
            if before.is_some() {
                return Ok(Change::Nothing);
            }
            let owner = json!({
                "apiVersion": vireo_api::v1::API_VERSION, "kind": vireo_api::v1::VM_KIND,
                "name": vm.metadata.name, "uid": vm.metadata.uid, "controller": true, "blockOwnerDeletion": true,
            });
            let mut value = json!({
                "apiVersion": row.api_version(), "kind": row.kind, "metadata": {"ownerReferences": [owner]},
                "data": revision.data, "revision": revision.generation,
            });
            meta::create(&mut value, &vm.metadata.namespace, &revision.name);
            Ok(Change::Put(value))
        });
    place::done(written)
}

fn act(
    store: &Store,
    (object, vm): (&Object, &VirtualMachine),
    instance: Option<&Object>,
    step: Step,
) -> Result<(), DiskError> {
    let keep = |value: &Value| !meta::is_leaving(value) || place::is_held(value);
    match (step, instance) {
        (Step::Claim, _) => place::change(store, object, |value| {
            let mut finalizers = meta::finalizers(value);
            if !meta::is_leaving(value) && !finalizers.iter().any(|one| one == vm::FINALIZER) {
                finalizers.push(vm::FINALIZER.to_owned());
                meta::of(value).insert("finalizers".to_owned(), json!(finalizers));
            }
            keep(value)
        }),
        (Step::Finalize, _) => place::change(store, object, |value| {
            meta::remove_finalizer(value, vm::FINALIZER);
            keep(value)
        }),
        (Step::Choose(strategy), _) => place::change(store, object, |value| {
            let before = value.clone();
            choose(value, strategy.as_str());
            meta::count_generation(value, &before);
            keep(value)
        }),
        (Step::Plug(request), instance) => plug(store, object, instance, &request),
        (Step::Delete, Some(instance)) => {
            place::remove(store, instance)?;
            let uid = meta::text(&instance.value, "uid");
            let text = format!(
                "Stopped the virtual machine by deleting the virtual machine instance with uid {uid}"
            );
            tell(store, &about(vm), &Event::new(false, "SuccessfulDelete", text))
        }
        (Step::Release, Some(instance)) => place::change(store, instance, |value| {
            meta::remove_finalizer(value, vm::FINALIZER);
            keep(value)
        }),
        (Step::Wait | Step::Create(_) | Step::Delete | Step::Release, _) => Ok(()),
    }
}

/// First the instance, so that what is written down is not forgotten before it is done.
fn plug(
    store: &Store,
    machine: &Object,
    instance: Option<&Object>,
    request: &VolumeRequest,
) -> Result<(), DiskError> {
    if let Some(instance) = instance {
        volumes::write(store, instance, "/spec", request)?;
    }
    volumes::write(store, machine, "/spec/template/spec", request)
}

/// Writes a run strategy in the form that the spec has it in.
pub fn choose(value: &mut Value, strategy: &str) {
    let running = value.pointer("/spec/running").is_some_and(Value::is_boolean);
    match (running, strategy) {
        (true, "Always") => value["spec"]["running"] = json!(true),
        (true, "Halted") => value["spec"]["running"] = json!(false),
        _ => value["spec"]["runStrategy"] = json!(strategy),
    }
}

#[cfg(test)]
mod tests;
