use vireo_api::v1::{VirtualMachine, VirtualMachineInstanceTemplateSpec};

use super::find::{Chosen, Lookup, find};
use super::{Choice, apply, missing, prefer};
use crate::Problem;

/// The template of a VM, in problems.
const TEMPLATE: &str = "spec.template";

/// A VM's template with its instance type and its preference; absent where the VM has neither.
pub type Expanded = Result<Option<VirtualMachineInstanceTemplateSpec>, Vec<Problem>>;

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
