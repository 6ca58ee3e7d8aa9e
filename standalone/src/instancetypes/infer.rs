//! Instance types and preferences that VMs infer from volumes.

use serde::Deserialize as _;
use serde_json::{Value, json};
use vireo_api::v1::{Matcher, ObjectMeta, VirtualMachineSpec};
use vireo_apiserver::meta;
use vireo_apiserver::resource::Cause;
use vireo_apiserver::store::Store;
use vireo_operators::instancetype::{self, Choice};

use crate::resource::kubevirt;

/// Names what a machine leaves to its volumes. A name that is there since the last time is found anew: who applies a
/// manifest a second time has not written it.
pub(super) fn infer(store: &Store, machine: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    let spec = |machine: &Value| VirtualMachineSpec::deserialize(machine.get("spec")?).ok();
    // What cannot be read is refused elsewhere.
    let Some(wanted) = spec(machine) else { return Vec::new() };
    let before = old.and_then(spec);
    let mut causes = Vec::new();
    for choice in Choice::ALL {
        let Some(mut asked) = choice.matcher(&wanted).cloned() else { continue };
        let named = before.as_ref().and_then(|before| choice.matcher(before));
        if !asked.infer_from_volume.is_empty()
            && named.is_some_and(|named| (&named.name, &named.kind) == (&asked.name, &asked.kind))
        {
            asked.name.clear();
            asked.kind.clear();
        }
        causes.extend(of_choice(store, machine, &wanted, (choice, &asked)));
    }
    causes
}

fn of_choice(
    store: &Store,
    machine: &mut Value,
    wanted: &VirtualMachineSpec,
    (choice, asked): (Choice, &Matcher),
) -> Vec<Cause> {
    let field = format!("spec.{}", choice.field());
    let flaws = instancetype::flaws(choice, asked);
    if !flaws.is_empty() {
        let at = |below: &str| if below.is_empty() { field.clone() } else { format!("{field}.{below}") };
        let cause =
            |(below, message)| Cause { reason: "FieldValueNotFound", ..Cause::invalid(at(below), message) };
        return flaws.into_iter().map(cause).collect();
    }
    if asked.infer_from_volume.is_empty() {
        return Vec::new();
    }
    let volumes = wanted.template.as_ref().map(|template| template.spec.volumes.as_slice());
    let namespace = meta::text(machine, "namespace").to_owned();
    let labels = |claim: &str| {
        let claim = store.get(&kubevirt::CLAIMS.key(&namespace, claim))?;
        Some(ObjectMeta::deserialize(claim.value.get("metadata")?).ok()?.labels)
    };
    let inferred = instancetype::infer(choice, &asked.infer_from_volume, volumes.unwrap_or_default(), labels);
    let Some(spec) = machine.get_mut("spec").and_then(Value::as_object_mut) else { return Vec::new() };
    match inferred {
        Ok((name, kind)) => {
            let chosen =
                if kind.is_empty() { json!({ "name": name }) } else { json!({"name": name, "kind": kind}) };
            spec.insert(choice.field().to_owned(), chosen);
            // Where inferring may fail, the memory is for that case.
            if choice == Choice::Instancetype
                && instancetype::ignores(asked)
                && let Some(Value::Object(domain)) =
                    spec.get_mut("template").and_then(|template| template.pointer_mut("/spec/domain"))
            {
                domain.remove("memory");
            }
            Vec::new()
        }
        Err(why) if why.is_ignored_by(asked) => {
            spec.remove(choice.field());
            Vec::new()
        }
        Err(why) => vec![Cause::invalid(format!("{field}.inferFromVolume"), why.to_string())],
    }
}
