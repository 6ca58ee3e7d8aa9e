//! The controller of VirtualMachineInstanceReplicaSets: carries out what [`decide`](super::decide) says.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::GroupVersionKind;
use kube::runtime::applier;
use kube::runtime::controller::{Action, Config};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use thiserror::Error;
use vireo_api::v1::{
    OwnerReference, REPLICA_SET_KIND, VMI_KIND, VirtualMachineInstance, VirtualMachineInstanceReplicaSet,
};

use super::{Seen, Step, decide};
use crate::events::{EventRecorder, Reason};
use crate::informer::{Change, Informer, revision};

const COMPONENT: &str = "virtualmachinereplicaset-controller";
/// How soon what failed is tried again, at first and at last.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

#[derive(Debug, Error)]
enum ReconcileError {
    #[error("the API server refuses the virtual machine instance: {0}")]
    Refused(String),
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("the cache is gone")]
    Stopped,
}

/// What is remembered of a set that cannot be reconciled.
#[derive(Debug, Clone, Default)]
struct Failure {
    attempts: u32,
    /// Why the last instance could not be created.
    refused: Option<String>,
}

struct Context {
    client: Client,
    vmis: Informer,
    recorder: EventRecorder,
    failures: Mutex<HashMap<String, Failure>>,
}

fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("kubevirt.io", "v1", kind))
}

/// Controls until it is dropped.
pub async fn run(client: Client) {
    let all = |kind: &str| Api::<DynamicObject>::all_with(client.clone(), &resource(kind));
    let (sets, set_changes) = Informer::new(all(REPLICA_SET_KIND), resource(REPLICA_SET_KIND), |_| {});
    let without_spec = |vmi: &mut DynamicObject| {
        vmi.managed_fields_mut().clear();
        if let Some(fields) = vmi.data.as_object_mut() {
            fields.remove("spec");
        }
    };
    let (vmis, vmi_changes) = Informer::new(all(VMI_KIND), resource(VMI_KIND), without_spec);
    let (of_sets, of_vmis, store) = (sets.store.clone(), sets.store.clone(), sets.store);
    let every = |store: &Store<DynamicObject>, namespace: Option<&str>| {
        let sets =
            store.state_filter(|set| namespace.is_none_or(|one| set.namespace().as_deref() == Some(one)));
        sets.iter().map(|set| ObjectRef::from_obj_with(&**set, resource(REPLICA_SET_KIND))).collect()
    };
    let set_keys = set_changes.map_ok(move |change| match change {
        Change::Relist => every(&of_sets, None),
        Change::Delta(set) => vec![ObjectRef::from_obj_with(&*set, resource(REPLICA_SET_KIND))],
    });
    // An instance that nobody controls may concern every set of its namespace.
    let vmi_keys = vmi_changes.map_ok(move |change| match change {
        Change::Relist => every(&of_vmis, None),
        Change::Delta(vmi) => {
            let namespace = vmi.namespace().unwrap_or_default();
            match vmi.owner_references().iter().find(|owner| owner.controller == Some(true)) {
                Some(owner) if owner.kind == REPLICA_SET_KIND => {
                    let set = ObjectRef::new_with(&owner.name, resource(REPLICA_SET_KIND));
                    vec![set.within(&namespace)]
                }
                Some(_) => Vec::new(),
                None => every(&of_vmis, Some(&namespace)),
            }
        }
    });
    let keys = stream::select(set_keys, vmi_keys);
    let keys = keys
        .map_ok(|keys: Vec<ObjectRef<DynamicObject>>| stream::iter(keys).map(Ok::<_, watcher::Error>))
        .try_flatten();
    let recorder = EventRecorder::new(client.clone(), COMPONENT);
    let context = Arc::new(Context { client, vmis, recorder, failures: Mutex::default() });
    let reconcile = |set, context: Arc<Context>| Box::pin(async move { context.reconcile(set).await });
    let retry = |set: Arc<DynamicObject>, error: &ReconcileError, context: Arc<Context>| {
        let delay = context.retry(&set.uid().unwrap_or_default(), error);
        tracing::debug!(%error, set = set.name_any(), ?delay, "a replica set is tried again");
        Action::requeue(delay)
    };
    applier(reconcile, retry, context, store, keys, Config::default()).for_each(|_| async {}).await;
}

impl Context {
    fn retry(&self, uid: &str, error: &ReconcileError) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = failures.entry(uid.to_owned()).or_default();
        if let ReconcileError::Refused(why) = error {
            failure.refused = Some(why.clone());
        }
        let delay = RETRY.0.saturating_mul(1 << failure.attempts.min(16));
        failure.attempts += 1;
        delay.min(RETRY.1)
    }

    /// The instances that a set controls, and those of its namespace that nobody does.
    fn instances(&self, set: &VirtualMachineInstanceReplicaSet) -> Vec<VirtualMachineInstance> {
        let concerns = |vmi: &DynamicObject| {
            let owner = vmi.owner_references().iter().find(|owner| owner.controller == Some(true));
            vmi.namespace().as_deref() == Some(&set.metadata.namespace)
                && owner.is_none_or(|owner| owner.uid == set.metadata.uid)
        };
        let vmis = self.vmis.store.state_filter(concerns);
        // An instance of which a later release cannot read the status is none that this one may count.
        vmis.iter()
            .filter_map(|vmi| serde_json::from_value(serde_json::to_value(&**vmi).ok()?).ok())
            .collect()
    }

    async fn reconcile(&self, object: Arc<DynamicObject>) -> Result<Action, ReconcileError> {
        self.vmis.store.wait_until_ready().await.map_err(|_| ReconcileError::Stopped)?;
        let set: VirtualMachineInstanceReplicaSet = serde_json::from_value(serde_json::to_value(&*object)?)?;
        let uid = &set.metadata.uid;
        let failure = self.failures.lock().unwrap_or_else(PoisonError::into_inner).get(uid).cloned();
        let failure = failure.unwrap_or_default().refused;
        let instances = self.instances(&set);
        let instances: Vec<&VirtualMachineInstance> = instances.iter().collect();
        let now = Timestamp::now();
        let decision = decide(Seen { set: &set, instances: &instances, failure: failure.as_deref(), now });
        if decision.status != set.status {
            let sets = self.api(REPLICA_SET_KIND, &set);
            let mut new = DynamicObject::clone(&object);
            new.data["status"] = serde_json::to_value(&decision.status)?;
            sets.replace_status(&set.metadata.name, &PostParams::default(), &new).await?;
        }
        let actuator = Actuator { context: self, set: &set, vmis: self.api(VMI_KIND, &set) };
        if let Some(paused) = decision.paused {
            let (reason, what) = match paused {
                true => (Reason::SuccessfulPaused, "Paused"),
                false => (Reason::SuccessfulResumed, "Resumed"),
            };
            actuator.publish(reason, what.to_owned()).await;
        }
        let mut done = Done::default();
        let carried_out = actuator.carry_out(decision.steps, &instances, &mut done).await;
        // Else the next decision would not know of the writes of this one.
        self.vmis.shows(done.revision, &done.gone).await;
        carried_out?;
        if let Some(why) = done.refused {
            return Err(ReconcileError::Refused(why));
        }
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        let wait = decision.again.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
        Ok(wait.map_or_else(Action::await_change, Action::requeue))
    }

    fn api(&self, kind: &str, set: &VirtualMachineInstanceReplicaSet) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &set.metadata.namespace, &resource(kind))
    }
}

/// What was done about a set.
#[derive(Debug, Default)]
struct Done {
    /// The last write.
    revision: u64,
    /// UIDs of instances that are gone at once.
    gone: Vec<String>,
    /// Why an instance could not be created.
    refused: Option<String>,
}

impl Done {
    fn wrote(&mut self, object: &DynamicObject) {
        self.revision = revision(object).max(self.revision);
    }
}

struct Actuator<'a> {
    context: &'a Context,
    set: &'a VirtualMachineInstanceReplicaSet,
    vmis: Api<DynamicObject>,
}

impl Actuator<'_> {
    async fn publish(&self, reason: Reason, message: String) {
        let metadata = &self.set.metadata;
        let about = ObjectReference {
            api_version: Some(vireo_api::v1::API_VERSION.to_owned()),
            kind: Some(REPLICA_SET_KIND.to_owned()),
            name: Some(metadata.name.clone()),
            namespace: Some(metadata.namespace.clone()),
            uid: Some(metadata.uid.clone()),
            ..ObjectReference::default()
        };
        self.context.recorder.publish(&about, reason, message).await;
    }

    async fn carry_out(
        &self,
        steps: Vec<Step>,
        instances: &[&VirtualMachineInstance],
        done: &mut Done,
    ) -> Result<(), ReconcileError> {
        let of = |uid: &str| instances.iter().copied().find(|one| one.metadata.uid == uid);
        for step in steps {
            match step {
                // What one is refused for, all are.
                Step::Create(_) if done.refused.is_some() => {}
                Step::Create(vmi) => self.create(&vmi, done).await?,
                Step::Delete(uid) => {
                    if let Some(vmi) = of(&uid) {
                        self.delete(vmi, done).await?;
                    }
                }
                Step::Adopt(uid, owner) => {
                    if let Some(vmi) = of(&uid) {
                        let owners = vmi.metadata.owner_references.iter().cloned().chain([owner]).collect();
                        self.set_owners(vmi, owners, done).await?;
                    }
                }
                Step::Disown(uid) => {
                    if let Some(vmi) = of(&uid) {
                        let others = vmi.metadata.owner_references.iter();
                        let others = others.filter(|one| one.uid != self.set.metadata.uid).cloned().collect();
                        self.set_owners(vmi, others, done).await?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn create(&self, vmi: &VirtualMachineInstance, done: &mut Done) -> Result<(), ReconcileError> {
        let object: DynamicObject = serde_json::from_value(serde_json::to_value(vmi)?)?;
        match self.vmis.create(&PostParams::default(), &object).await {
            Ok(made) => {
                done.wrote(&made);
                let name = made.name_any();
                let text = format!(
                    "Started the virtual machine by creating the new virtual machine instance {name}"
                );
                self.publish(Reason::SuccessfulCreate, text).await;
                Ok(())
            }
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => {
                let text = format!("Error creating virtual machine instance: {}", status.message);
                self.publish(Reason::FailedCreate, text).await;
                done.refused = Some(status.message.clone());
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn delete(&self, vmi: &VirtualMachineInstance, done: &mut Done) -> Result<(), ReconcileError> {
        let uid = vmi.metadata.uid.clone();
        let same = Preconditions { uid: Some(uid.clone()), resource_version: None };
        match self.vmis.delete(&vmi.metadata.name, &DeleteParams::default().preconditions(same)).await {
            Ok(deleted) => match deleted.left() {
                Some(leaving) => done.wrote(&leaving),
                None => done.gone.push(uid.clone()),
            },
            Err(kube::Error::Api(status)) if status.code == 404 => {
                done.gone.push(uid);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        let text =
            format!("Stopped the virtual machine by deleting the virtual machine instance with uid {uid}");
        self.publish(Reason::SuccessfulDelete, text).await;
        Ok(())
    }

    /// Changes whose an instance is, unless somebody changed it meanwhile.
    async fn set_owners(
        &self,
        vmi: &VirtualMachineInstance,
        owners: Vec<OwnerReference>,
        done: &mut Done,
    ) -> Result<(), ReconcileError> {
        let metadata: Value = json!({"ownerReferences": owners, "resourceVersion": vmi.metadata.resource_version,
            "uid": vmi.metadata.uid});
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        done.wrote(&self.vmis.patch(&vmi.metadata.name, &PatchParams::default(), &patch).await?);
        Ok(())
    }
}
