//! Instance types and preferences of machines: found, put into templates, and kept as they were when they were chosen.

mod infer;

use std::convert::Infallible;
use std::sync::Arc;

use serde_json::{Value, json};
use vireo_api::v1::{Matcher, VirtualMachine, VirtualMachineInstanceTemplateSpec, VirtualMachineSpec};
use vireo_apiserver::meta;
use vireo_apiserver::resource::{Cause, Resource};
use vireo_apiserver::store::{Change, DiskError, Object, Store, WriteError};
use vireo_operators::instancetype::{self, Choice, Scope};

use crate::place;
use crate::resource::{kubevirt, of_machine};

/// The template of a machine, in causes.
const TEMPLATE: &str = "spec.template";
const BOTH: [Choice; 2] = [Choice::Instancetype, Choice::Preference];

/// What a machine chose.
struct Chosen {
    choice: Choice,
    scope: Scope,
    name: String,
    spec: Value,
    /// Where it is as it was when it was chosen.
    revision: Option<String>,
    /// Where it is as it is now.
    object: Option<Arc<Object>>,
}

/// A machine's template with everything that it chose.
pub type Expanded = Result<Option<VirtualMachineInstanceTemplateSpec>, Vec<Cause>>;

fn matcher(spec: &VirtualMachineSpec, choice: Choice) -> Option<&Matcher> {
    match choice {
        Choice::Instancetype => spec.instancetype.as_ref(),
        Choice::Preference => spec.preference.as_ref(),
    }
}

fn reference(vm: &mut VirtualMachine, choice: Choice) -> &mut Option<Value> {
    match choice {
        Choice::Instancetype => &mut vm.status.instancetype_ref,
        Choice::Preference => &mut vm.status.preference_ref,
    }
}

fn find(store: &Store, vm: &VirtualMachine, choice: Choice) -> Result<Option<Chosen>, Cause> {
    let Some(matcher) = matcher(&vm.spec, choice) else { return Ok(None) };
    let field = format!("spec.{}", choice.field());
    let scope = choice.scope(&matcher.kind).ok_or_else(|| {
        let kinds = [Scope::Namespaced, Scope::Cluster].map(|scope| choice.kind(scope));
        Cause::invalid(format!("{field}.kind"), format!("{:?} is none of {}", matcher.kind, kinds.join(", ")))
    })?;
    let chosen = |spec, revision, object| {
        let name = matcher.name.clone();
        Ok(Some(Chosen { choice, scope, name, spec, revision, object }))
    };
    let kept = revision_of(vm, choice, scope);
    if let Some(name) =
        kept.as_deref().or(Some(matcher.revision_name.as_str()).filter(|name| !name.is_empty()))
    {
        let found = store.get(&place::revisions().key(&vm.metadata.namespace, name));
        match found.as_ref().and_then(|revision| revision.value.pointer("/data/spec")) {
            Some(spec) => return chosen(spec.clone(), Some(name.to_owned()), None),
            None if kept.is_none() => {
                let message = format!("there is no ControllerRevision {name:?} of one");
                return Err(Cause::invalid(format!("{field}.revisionName"), message));
            }
            // Somebody deleted what was kept: it is kept anew.
            None => {}
        }
    }
    let row = row(choice, scope);
    let namespace = if scope == Scope::Namespaced { vm.metadata.namespace.as_str() } else { "" };
    let Some(object) = store.get(&row.key(namespace, &matcher.name)) else {
        let message =
            format!("Failure to find {}: {} {:?} not found", choice.field(), row.name(), matcher.name);
        return Err(Cause { reason: "FieldValueNotFound", ..Cause::invalid(field, message) });
    };
    chosen(object.value.get("spec").cloned().unwrap_or_default(), None, Some(object))
}

/// The revision that the status names, if it is of what the spec names now.
fn revision_of(vm: &VirtualMachine, choice: Choice, scope: Scope) -> Option<String> {
    let matcher = matcher(&vm.spec, choice)?;
    let known = match choice {
        Choice::Instancetype => vm.status.instancetype_ref.as_ref(),
        Choice::Preference => vm.status.preference_ref.as_ref(),
    }?;
    let text = |at: &str| known.pointer(at).and_then(Value::as_str).unwrap_or_default();
    let revision = text("/controllerRevisionRef/name");
    let same = text("/name") == matcher.name
        && text("/kind") == choice.kind(scope)
        && (matcher.revision_name.is_empty() || matcher.revision_name == revision);
    (same && !revision.is_empty()).then(|| revision.to_owned())
}

fn row(choice: Choice, scope: Scope) -> &'static Resource {
    match (choice, scope) {
        (Choice::Instancetype, Scope::Namespaced) => &kubevirt::INSTANCETYPES,
        (Choice::Instancetype, Scope::Cluster) => &kubevirt::CLUSTER_INSTANCETYPES,
        (Choice::Preference, Scope::Namespaced) => &kubevirt::PREFERENCES,
        (Choice::Preference, Scope::Cluster) => &kubevirt::CLUSTER_PREFERENCES,
    }
}

/// A machine's template with what it chose; nothing where it chose nothing.
pub fn expand(store: &Store, vm: &VirtualMachine) -> Expanded {
    let find = |choice| find(store, vm, choice).map_err(|cause| vec![cause]);
    let (instancetype, preference) = (find(Choice::Instancetype)?, find(Choice::Preference)?);
    put_together(vm, instancetype.as_ref(), preference.as_ref())
}

fn put_together(vm: &VirtualMachine, instancetype: Option<&Chosen>, preference: Option<&Chosen>) -> Expanded {
    let Some(template) = vm.spec.template.as_ref().filter(|_| instancetype.is_some() || preference.is_some())
    else {
        return Ok(None);
    };
    // From what was understood: every field has the type that it should have.
    let mut template = serde_json::to_value(template).unwrap_or_default();
    if let Some(chosen) = instancetype {
        let wrong = |message| vec![Cause::invalid("spec.instancetype", message)];
        let preferred = preference.map(|chosen| &chosen.spec);
        let conflicts = instancetype::apply(&mut template, &chosen.spec, preferred).map_err(wrong)?;
        if !conflicts.is_empty() {
            let cause = |below: String| {
                let field = format!("{TEMPLATE}.{below}");
                let message = format!("VM field(s) {field} conflicts with selected instance type");
                Cause::invalid(field, message)
            };
            return Err(conflicts.into_iter().map(cause).collect());
        }
    }
    if let Some(chosen) = preference {
        instancetype::prefer(&mut template, &chosen.spec);
        let lacks = instancetype::missing(&template, &chosen.spec);
        if !lacks.is_empty() {
            let field = |below: &str| match instancetype {
                Some(_) => "spec.instancetype".to_owned(),
                None => format!("{TEMPLATE}.{below}"),
            };
            return Err(lacks.iter().map(|(below, why)| Cause::invalid(field(below), why)).collect());
        }
    }
    match serde_json::from_value(template) {
        Ok(template) => Ok(Some(template)),
        Err(error) => Err(vec![Cause::invalid(TEMPLATE, format!("cannot be expanded: {error}"))]),
    }
}

/// Completes and judges an object of any kind that is to be stored, and was `old` before: a machine with what it chose.
pub fn admit(store: &Store, resource: &Resource, value: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = find_names(store, resource, value, old);
    if causes.is_empty() {
        causes = (resource.admit)(value, old);
    }
    if causes.is_empty() {
        causes = judge(store, resource, value);
    }
    causes
}

/// Names what a machine leaves to its volumes to say; what it would be refused for.
pub fn find_names(store: &Store, resource: &Resource, value: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    match chooses(resource, value) {
        true => infer::infer(store, value, old),
        false => Vec::new(),
    }
}

fn chooses(resource: &Resource, value: &Value) -> bool {
    std::ptr::eq(resource, place::vms()) && !meta::is_leaving(value)
}

/// What a machine that is to be stored would be refused for, because of what it chose.
pub fn judge(store: &Store, resource: &Resource, value: &Value) -> Vec<Cause> {
    if !chooses(resource, value) {
        return Vec::new();
    }
    let Ok(vm) = serde_json::from_value::<VirtualMachine>(value.clone()) else { return Vec::new() };
    match expand(store, &vm) {
        Ok(Some(template)) => of_machine(&vm.metadata, &template),
        Ok(None) => Vec::new(),
        Err(causes) => causes,
    }
}

/// The same for a machine that is to be started; what it chose is kept first, and its status says where. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn prepare(store: &Store, vm: &mut VirtualMachine) -> Result<Expanded, DiskError> {
    let mut found = Vec::new();
    for choice in BOTH {
        match find(store, vm, choice) {
            Ok(Some(chosen)) => {
                *reference(vm, choice) = Some(keep(store, vm, &chosen)?);
                found.push(chosen);
            }
            Ok(None) => *reference(vm, choice) = None,
            Err(cause) => return Ok(Err(vec![cause])),
        }
    }
    let of = |choice| found.iter().find(|chosen| chosen.choice == choice);
    Ok(put_together(vm, of(Choice::Instancetype), of(Choice::Preference)))
}

/// Keeps what was chosen as it is now, if it is not kept yet; what the status says of it.
fn keep(store: &Store, vm: &VirtualMachine, chosen: &Chosen) -> Result<Value, DiskError> {
    let kind = chosen.choice.kind(chosen.scope);
    let revision = match (&chosen.revision, &chosen.object) {
        (Some(revision), _) => revision.clone(),
        (None, Some(object)) => write_revision(store, vm, (object, kind))?,
        (None, None) => String::new(),
    };
    Ok(json!({"name": chosen.name, "kind": kind, "controllerRevisionRef": {"name": revision}}))
}

fn write_revision(
    store: &Store,
    vm: &VirtualMachine,
    (object, kind): (&Object, &str),
) -> Result<String, DiskError> {
    let row = place::revisions();
    let metadata = object.value.get("metadata").cloned().unwrap_or_default();
    let (uid, its_name) = (meta::text(&object.value, "uid"), object.key.name.as_str());
    let generation = metadata.get("generation").and_then(Value::as_i64).unwrap_or_default();
    let name = format!("{}-{its_name}-{uid}-{generation}", vm.metadata.name);
    let labels = json!({
        "instancetype.kubevirt.io/object-name": its_name, "instancetype.kubevirt.io/object-kind": kind,
        "instancetype.kubevirt.io/object-uid": uid, "instancetype.kubevirt.io/object-version": "v1beta1",
        "instancetype.kubevirt.io/object-generation": generation.to_string(),
    });
    let owner = json!({
        "apiVersion": vireo_api::v1::API_VERSION, "kind": vireo_api::v1::VM_KIND, "name": vm.metadata.name,
        "uid": vm.metadata.uid, "controller": true, "blockOwnerDeletion": true,
    });
    let data = json!({
        "apiVersion": vireo_api::v1::INSTANCETYPE_VERSION, "kind": kind, "metadata": metadata,
        "spec": object.value.get("spec"),
    });
    let written: Result<_, WriteError<Infallible>> =
        store.write(&row.key(&vm.metadata.namespace, &name), |before, _| {
            if before.is_some() {
                return Ok(Change::Nothing);
            }
            let mut value = json!({
                "apiVersion": row.api_version(), "kind": row.kind, "data": data, "revision": 0,
                "metadata": {"labels": labels, "ownerReferences": [owner]},
            });
            meta::create(&mut value, &vm.metadata.namespace, &name);
            Ok(Change::Put(value))
        });
    place::done(written)?;
    Ok(name)
}

#[cfg(test)]
mod tests;
