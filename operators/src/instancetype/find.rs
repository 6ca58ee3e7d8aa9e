use serde_json::Value;
use vireo_api::v1::VirtualMachine;

use super::{Choice, Scope};
use crate::Problem;

/// Where the objects are that a VM refers to.
pub trait Lookup {
    /// The `data` of a ControllerRevision.
    fn revision(&self, namespace: &str, name: &str) -> Option<Value>;

    /// An instance type or a preference. The namespace of cluster-wide objects is empty.
    fn object(&self, choice: Choice, scope: Scope, namespace: &str, name: &str) -> Option<Value>;
}

/// Where the spec of an instance type or a preference comes from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    /// The ControllerRevision of this name.
    Revision(String),
    /// The object itself.
    Object(Value),
}

/// The instance type or the preference of a VM.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    pub(super) choice: Choice,
    pub(super) scope: Scope,
    pub(super) name: String,
    pub(super) spec: Value,
    pub(super) source: Source,
}

impl Chosen {
    /// The spec of the instance type or the preference.
    pub fn spec(&self) -> &Value {
        &self.spec
    }
}

/// Finds the instance type or the preference of a VM: the revision that its status or its matcher names, else the object
/// as it is now.
///
/// # Errors
/// When there is none.
pub fn find(lookup: &impl Lookup, vm: &VirtualMachine, choice: Choice) -> Result<Option<Chosen>, Problem> {
    let Some(matcher) = choice.matcher(&vm.spec) else { return Ok(None) };
    let field = format!("spec.{}", choice.field());
    let scope = choice.scope(&matcher.kind).ok_or_else(|| {
        let kinds = [Scope::Namespaced, Scope::Cluster].map(|scope| choice.kind(scope));
        let message = format!("{:?} is none of {}", matcher.kind, kinds.join(", "));
        Problem::invalid(format!("{field}.kind"), message)
    })?;
    let chosen = |spec: Option<&Value>, source| {
        let spec = spec.cloned().unwrap_or_default();
        Ok(Some(Chosen { choice, scope, name: matcher.name.clone(), spec, source }))
    };
    let recorded = recorded_revision(vm, choice, scope);
    let named = Some(matcher.revision_name.as_str()).filter(|name| !name.is_empty());
    if let Some(name) = recorded.as_deref().or(named) {
        let data = lookup.revision(&vm.metadata.namespace, name);
        match data.as_ref().and_then(|data| data.get("spec")) {
            Some(spec) => return chosen(Some(spec), Source::Revision(name.to_owned())),
            None if recorded.is_none() => {
                let message = format!("there is no ControllerRevision {name:?} of one");
                return Err(Problem::invalid(format!("{field}.revisionName"), message));
            }
            // The recorded revision was deleted. Another one is made.
            None => {}
        }
    }
    let namespace = if scope == Scope::Namespaced { vm.metadata.namespace.as_str() } else { "" };
    let Some(object) = lookup.object(choice, scope, namespace, &matcher.name) else {
        let kind = choice.resource(scope);
        let (what, name) = (choice.field(), &matcher.name);
        let message = format!("Failure to find {what}: {}.{} {name:?} not found", kind.plural, kind.group);
        return Err(Problem::not_found(field, message));
    };
    chosen(object.get("spec"), Source::Object(object.clone()))
}

/// The revision that the status names, if it is one of the object that the spec names.
fn recorded_revision(vm: &VirtualMachine, choice: Choice, scope: Scope) -> Option<String> {
    let matcher = choice.matcher(&vm.spec)?;
    let recorded = match choice {
        Choice::Instancetype => vm.status.instancetype_ref.as_ref(),
        Choice::Preference => vm.status.preference_ref.as_ref(),
    }?;
    let text = |pointer: &str| recorded.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let revision = text("/controllerRevisionRef/name");
    let same = text("/name") == matcher.name
        && text("/kind") == choice.kind(scope)
        && (matcher.revision_name.is_empty() || matcher.revision_name == revision);
    (same && !revision.is_empty()).then(|| revision.to_owned())
}
