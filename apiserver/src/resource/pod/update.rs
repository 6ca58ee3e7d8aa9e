//! What an update of a pod may change.

use serde_json::{Value, json};

use super::validate::{in_range, integer};
use super::{list, text};
use crate::resource::Cause;

const IMMUTABLE: &str = "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
const DEADLINE: &str = "spec.activeDeadlineSeconds";

/// Why a pod cannot become another.
pub(super) fn validate(new: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut rest = new.get("spec").cloned().unwrap_or_default();
    for field in ["containers", "initContainers"] {
        if !images(field, (new, old), &mut rest, &mut causes) {
            return causes;
        }
    }
    deadline(new, old, &mut causes);
    tolerations(new, old, &mut causes);
    gates(new, old, &mut causes);
    let grace = |pod| integer(pod, "/spec/terminationGracePeriodSeconds");
    let relaxed = (grace(new) == Some(1) && grace(old).is_some_and(|seconds| seconds < 0))
        .then_some("terminationGracePeriodSeconds");
    for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"].into_iter().chain(relaxed) {
        restore(&mut rest, field, old);
    }
    if causes.is_empty() && old.get("spec") != Some(&rest) {
        causes.push(Cause::forbidden("spec", IMMUTABLE));
    }
    causes
}

/// Images of containers may change. Whether the containers are the same ones.
fn images(field: &str, (new, old): (&Value, &Value), rest: &mut Value, causes: &mut Vec<Cause>) -> bool {
    let pointer = format!("/spec/{field}");
    let (has, had) = (list(new, &pointer), list(old, &pointer));
    if has.len() != had.len() {
        let why = "Forbidden: pod updates may not add or remove containers";
        causes.push(Cause::forbidden(format!("spec.{field}"), why));
        return false;
    }
    for (index, (has, had)) in has.iter().zip(had).enumerate() {
        if text(has, "/image").is_empty() {
            causes.push(Cause::required(format!("spec.{field}[{index}].image"), "Required value"));
        }
        rest[field][index]["image"] = had["image"].clone();
    }
    true
}

/// A deadline may be set, and become earlier.
fn deadline(new: &Value, old: &Value, causes: &mut Vec<Cause>) {
    const AT: &str = "/spec/activeDeadlineSeconds";
    match (integer(new, AT), integer(old, AT)) {
        (None, None) => {}
        (None, Some(_)) => {
            let why = "Invalid value: null: must not update from a positive integer to nil value";
            causes.push(Cause::invalid(DEADLINE, why));
        }
        (Some(seconds), Some(before)) if seconds > before => {
            let why = format!("Invalid value: {seconds}: must be less than or equal to previous value");
            causes.push(Cause::invalid(DEADLINE, why));
        }
        (Some(seconds), _) => in_range(DEADLINE, seconds, 0..=i32::MAX.into(), causes),
    }
}

/// Tolerations may be added, and their seconds change.
fn tolerations(new: &Value, old: &Value, causes: &mut Vec<Cause>) {
    const AT: &str = "/spec/tolerations";
    let untimed = |toleration: &Value| {
        let mut toleration = toleration.clone();
        toleration.as_object_mut().into_iter().for_each(|fields| drop(fields.remove("tolerationSeconds")));
        toleration
    };
    let has: Vec<Value> = list(new, AT).iter().map(untimed).collect();
    if list(old, AT).iter().any(|toleration| !has.contains(&untimed(toleration))) {
        let why = "Forbidden: existing toleration can not be modified except its tolerationSeconds";
        causes.push(Cause::forbidden("spec.tolerations", why));
    }
}

/// Scheduling gates may be removed.
fn gates(new: &Value, old: &Value, causes: &mut Vec<Cause>) {
    const AT: &str = "/spec/schedulingGates";
    for (index, gate) in list(new, AT).iter().enumerate().filter(|(_, gate)| !list(old, AT).contains(gate)) {
        let name = text(gate, "/name");
        let why = format!("Forbidden: only deletion is allowed, but found new scheduling gate '{name}'");
        causes.push(Cause::forbidden(format!("spec.schedulingGates[{index}].name"), why));
    }
}

/// Gives a field of a spec the value that it had.
fn restore(spec: &mut Value, field: &str, old: &Value) {
    let Some(fields) = spec.as_object_mut() else { return };
    match old.pointer(&format!("/spec/{field}")) {
        Some(value) => fields.insert(field.to_owned(), json!(value)),
        None => fields.remove(field),
    };
}
