use vireo_api::v1::{VirtualMachine, VirtualMachineInstanceTemplateSpec};

use super::find::{Chosen, Lookup, find};
use super::{Choice, apply, missing, prefer};
use crate::Problem;
use crate::config::ReferencePolicy;

/// The template of a VM, in problems.
const TEMPLATE: &str = "spec.template";

/// A VM's template with its instance type and its preference; absent where the VM has neither.
pub type Expanded = Result<Option<VirtualMachineInstanceTemplateSpec>, Vec<Problem>>;

/// Whether the references of a VM without a VMI are replaced in its template by what they add. With
/// [`ReferencePolicy::Expand`], they stay where the status or a `revisionName` names a ControllerRevision of one: the status
/// does once both are found and the VM was reconciled without that: under another policy, while it had a VMI, or where the API
/// server refused it.
pub fn is_replaced(vm: &VirtualMachine, policy: ReferencePolicy) -> bool {
    let chosen = Choice::ALL.into_iter().filter_map(|choice| choice.matcher(&vm.spec));
    let is_recorded = vm.status.instancetype_ref.is_some()
        || vm.status.preference_ref.is_some()
        || chosen.clone().any(|matcher| !matcher.revision_name.is_empty());
    let is_due = match policy {
        ReferencePolicy::Reference => false,
        ReferencePolicy::Expand => !is_recorded,
        ReferencePolicy::ExpandAll => true,
    };
    is_due && chosen.count() > 0 && vm.metadata.deletion_timestamp.is_none()
}

/// Expands a VM's template.
///
/// # Errors
/// Why it cannot be expanded.
pub fn expand(lookup: &impl Lookup, vm: &VirtualMachine) -> Expanded {
    let find = |choice| find(lookup, vm, choice).map_err(|problem| vec![problem]);
    let (instancetype, preference) = (find(Choice::Instancetype)?, find(Choice::Preference)?);
    expand_with(vm, instancetype.as_ref(), preference.as_ref())
}

/// Expands a VM's template with what was found for it.
///
/// # Errors
/// Why it cannot be expanded.
pub fn expand_with(
    vm: &VirtualMachine,
    instancetype: Option<&Chosen>,
    preference: Option<&Chosen>,
) -> Expanded {
    let Some(template) = vm.spec.template.as_ref().filter(|_| instancetype.is_some() || preference.is_some())
    else {
        return Ok(None);
    };
    // From the typed template: every field has its type.
    let mut template = serde_json::to_value(template).unwrap_or_default();
    if let Some(chosen) = instancetype {
        let wrong = |message| vec![Problem::invalid("spec.instancetype", message)];
        let preferred = preference.map(|chosen| &chosen.spec);
        let conflicts = apply(&mut template, &chosen.spec, preferred).map_err(wrong)?;
        if !conflicts.is_empty() {
            let problem = |below: String| {
                let field = format!("{TEMPLATE}.{below}");
                let message = format!("VM field(s) {field} conflicts with selected instance type");
                Problem::invalid(field, message)
            };
            return Err(conflicts.into_iter().map(problem).collect());
        }
    }
    if let Some(chosen) = preference {
        prefer(&mut template, &chosen.spec);
        let missing = missing(&template, &chosen.spec);
        if !missing.is_empty() {
            let field = |below: &str| match instancetype {
                Some(_) => "spec.instancetype".to_owned(),
                None => format!("{TEMPLATE}.{below}"),
            };
            return Err(missing.iter().map(|(below, why)| Problem::invalid(field(below), why)).collect());
        }
    }
    match serde_json::from_value(template) {
        Ok(template) => Ok(Some(template)),
        Err(error) => Err(vec![Problem::invalid(TEMPLATE, format!("cannot be expanded: {error}"))]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn policies_say_whose_references_are_replaced() {
        use ReferencePolicy::{Expand, ExpandAll, Reference};
        let replaced = |spec: serde_json::Value, status: serde_json::Value| {
            let vm = serde_json::from_value(json!({"spec": spec, "status": status})).unwrap();
            [Reference, Expand, ExpandAll].map(|policy| is_replaced(&vm, policy))
        };
        let chosen = || json!({"instancetype": {"name": "small"}});
        assert_eq!(replaced(json!({}), json!({})), [false; 3]);
        assert_eq!(replaced(chosen(), json!({})), [false, true, true]);
        let recorded = json!({"instancetypeRef": {"controllerRevisionRef": {"name": "a"}}});
        assert_eq!(replaced(chosen(), recorded), [false, false, true]);
        let named = json!({"preference": {"name": "linux", "revisionName": "a"}});
        assert_eq!(replaced(named, json!({})), [false, false, true]);
    }
}
