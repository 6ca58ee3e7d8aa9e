use std::collections::BTreeMap;

use serde::Deserialize as _;
use serde_json::{Value, json};
use vireo_api::v1::{Matcher, VirtualMachineSpec};

use super::{Choice, flaws, ignores, infer};
use crate::Problem;

/// Sets the instance type and the preference that a VM infers from its volumes. `labels` are those of the claim of a
/// namespace and a name. A name that the VM had before is inferred again: who applies a manifest a second time has not
/// written it.
pub fn infer_names(
    vm: &mut Value,
    old: Option<&Value>,
    labels: impl Fn(&str, &str) -> Option<BTreeMap<String, String>>,
) -> Vec<Problem> {
    let spec = |vm: &Value| VirtualMachineSpec::deserialize(vm.get("spec")?).ok();
    // What cannot be read is refused elsewhere.
    let Some(requested) = spec(vm) else { return Vec::new() };
    let before = old.and_then(spec);
    let namespace = vm.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut problems = Vec::new();
    for choice in Choice::ALL {
        let Some(mut matcher) = choice.matcher(&requested).cloned() else { continue };
        let named = before.as_ref().and_then(|before| choice.matcher(before));
        if !matcher.infer_from_volume.is_empty()
            && named.is_some_and(|named| (&named.name, &named.kind) == (&matcher.name, &matcher.kind))
        {
            matcher.name.clear();
            matcher.kind.clear();
        }
        let labels = |claim: &str| labels(&namespace, claim);
        problems.extend(of_choice(vm, &requested, (choice, &matcher), labels));
    }
    problems
}

fn of_choice(
    vm: &mut Value,
    requested: &VirtualMachineSpec,
    (choice, matcher): (Choice, &Matcher),
    labels: impl FnOnce(&str) -> Option<BTreeMap<String, String>>,
) -> Vec<Problem> {
    let field = format!("spec.{}", choice.field());
    let flaws = flaws(choice, matcher);
    if !flaws.is_empty() {
        let at = |below: &str| if below.is_empty() { field.clone() } else { format!("{field}.{below}") };
        return flaws.into_iter().map(|(below, message)| Problem::not_found(at(below), message)).collect();
    }
    if matcher.infer_from_volume.is_empty() {
        return Vec::new();
    }
    let volumes = requested.template.as_ref().map(|template| template.spec.volumes.as_slice());
    let inferred = infer(choice, &matcher.infer_from_volume, volumes.unwrap_or_default(), labels);
    let Some(spec) = vm.get_mut("spec").and_then(Value::as_object_mut) else { return Vec::new() };
    match inferred {
        Ok((name, kind)) => {
            let chosen =
                if kind.is_empty() { json!({ "name": name }) } else { json!({"name": name, "kind": kind}) };
            spec.insert(choice.field().to_owned(), chosen);
            // Where inferring may fail, the memory is for that case.
            if choice == Choice::Instancetype
                && ignores(matcher)
                && let Some(Value::Object(domain)) =
                    spec.get_mut("template").and_then(|template| template.pointer_mut("/spec/domain"))
            {
                domain.remove("memory");
            }
            Vec::new()
        }
        Err(why) if why.is_ignored_by(matcher) => {
            spec.remove(choice.field());
            Vec::new()
        }
        Err(why) => vec![Problem::invalid(format!("{field}.inferFromVolume"), why.to_string())],
    }
}
