//! Whether an object may be stored.

use serde_json::Value;

use super::Writer;
use crate::admission::{AdmissionResult, Attributes, Operation, Rejection};
use crate::http::ApiError;
use crate::http::access::Asker;
use crate::http::query::Unknown;
use crate::http::route::Object;
use crate::rbac::action::{Access, Action};
use crate::rbac::escalate::{Escalation, Writing};
use crate::resource::{CUSTOM_RESOURCE_DEFINITIONS, Cause, NAMESPACES};
use crate::schema::structural;
use crate::store::Store;
use crate::{meta, objects, resource};

/// Whether an object is of the kind and in the namespace of the request.
pub(super) fn match_request(object: &Object, value: &Value) -> Result<(), ApiError> {
    for (field, expected) in
        [("apiVersion", object.resource.api_version()), ("kind", object.resource.kind.clone().into_owned())]
    {
        let has = value.get(field).and_then(Value::as_str).unwrap_or_default();
        if has != expected {
            let message = format!(
                "the {field} in the data ({has:?}) does not match the expected {field} ({expected:?})"
            );
            return Err(ApiError::bad_request(message));
        }
    }
    in_namespace(object, value)
}

/// Whether an object has the kind that a subresource takes, if it has one.
pub(super) fn is_kind(value: &Value, kind: &str, is_version: impl Fn(&str) -> bool) -> Result<(), ApiError> {
    let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
    let (has, version) = (text("kind"), text("apiVersion"));
    if (has.is_empty() || has == kind) && (version.is_empty() || is_version(version)) {
        return Ok(());
    }
    Err(ApiError::bad_request(format!("the object provided is not of kind {kind}: {version:?} {has:?}")))
}

/// Whether an object is in the namespace of the path.
pub(super) fn in_namespace(object: &Object, value: &Value) -> Result<(), ApiError> {
    let namespace = meta::text(value, "namespace");
    if !namespace.is_empty() && Some(namespace) != object.namespace.as_deref() {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// Whether an object has the name of the path.
pub(super) fn is_called(value: &Value, name: &str) -> Result<(), ApiError> {
    let has = meta::text(value, "name");
    if has == name {
        return Ok(());
    }
    let message = format!("the name of the object ({has}) does not match the name on the URL ({name})");
    Err(ApiError::bad_request(message))
}

impl Writer {
    /// Checks types and labels, and validates the object. Warnings for the user.
    pub(super) fn validate(&self, value: &mut Value, old: Option<&Value>) -> Result<Vec<String>, ApiError> {
        let resource = &*self.object.resource;
        let findings = resource.check(value);
        if !findings.mistyped.is_empty() {
            let fields = findings.mistyped.join(", ");
            return Err(ApiError::bad_request(format!("{} cannot be read: {fields}", resource.kind)));
        }
        let unknown: Vec<String> =
            findings.unknown.iter().map(|field| format!("unknown field {field:?}")).collect();
        if self.unknown == Unknown::Refuse && !unknown.is_empty() {
            return Err(ApiError::bad_request(format!("strict decoding error: {}", unknown.join(", "))));
        }
        let mut problems = meta::problems(value);
        if resource.is_kubernetes() {
            problems.extend(meta::odd_finalizers(value));
        }
        let causes = problems.into_iter().map(|(field, message)| Cause::invalid(field, message));
        let mut causes: Vec<Cause> = causes.collect();
        if self.object.status.is_some() {
            return self
                .validate_status(value, old)
                .map(|()| if self.unknown == Unknown::Warn { unknown } else { Vec::new() });
        }
        let operation = if old.is_none() { Operation::Create } else { Operation::Update };
        let attributes = self.attributes(operation, old);
        causes.extend(self.admission.validate_metadata(&attributes, value));
        let invalid =
            |causes: &[Cause], value: &Value| ApiError::invalid(resource, meta::text(value, "name"), causes);
        if !causes.is_empty() {
            return Err(invalid(&causes, value));
        }
        let mut warnings = if self.unknown == Unknown::Warn { unknown } else { Vec::new() };
        let admitted = self.admit(&attributes, value);
        warnings.extend(admitted.map_err(|rejection| match rejection {
            Rejection::Invalid(causes) => invalid(&causes, value),
            Rejection::Error(error) => error,
        })?);
        self.check_privileges(value, old)?;
        Ok(warnings)
    }

    /// A write of the status leaves the rest as it is stored, so only the rules of a CustomResourceDefinition, which may be
    /// about both, apply. A spec that an earlier release stored and this one would refuse can still have a status.
    fn validate_status(&self, value: &mut Value, old: Option<&Value>) -> Result<(), ApiError> {
        let resource = &*self.object.resource;
        let Some(custom) = &resource.custom else { return Ok(()) };
        structural::default(&custom.schema, value);
        let mut causes = structural::validate(&custom.schema, value);
        if causes.is_empty() {
            causes = custom.validate_rules(value, old);
        }
        match causes.is_empty() {
            true => Ok(()),
            false => Err(ApiError::invalid(resource, meta::text(value, "name"), &causes)),
        }
    }

    /// Has the object completed and validated by its resource, its schema and the admission.
    fn admit(&self, attributes: &Attributes<'_>, value: &mut Value) -> AdmissionResult {
        let Attributes { resource, old, .. } = *attributes;
        let mut warnings = self.admission.mutate(attributes, value)?;
        let mut causes = (resource.admit)(value, old);
        if resource.is(&CUSTOM_RESOURCE_DEFINITIONS) {
            causes.extend(resource::taken(&self.registry, value));
        }
        if let Some(custom) = &resource.custom {
            // As of every new object: its status is written apart.
            if old.is_none()
                && resource.status
                && let Some(fields) = value.as_object_mut()
            {
                fields.remove("status");
            }
            structural::default(&custom.schema, value);
            causes.extend(structural::validate(&custom.schema, value));
            if causes.is_empty() {
                causes = custom.validate_rules(value, old);
            }
        }
        if !causes.is_empty() {
            return Err(causes.into());
        }
        warnings.extend(self.admission.validate(attributes, value)?);
        Ok(warnings)
    }

    /// A write, as admission sees it.
    pub(super) fn attributes<'a>(&'a self, operation: Operation, old: Option<&'a Value>) -> Attributes<'a> {
        Attributes { operation, resource: &self.object.resource, old, user: &self.asker.user }
    }
}

impl Writer {
    /// Prevents privilege escalation.
    fn check_privileges(&self, value: &Value, old: Option<&Value>) -> Result<(), ApiError> {
        let Asker { user, roles } = &self.asker;
        let resource = &*self.object.resource;
        let checked = Writing { roles, user, resource }.check(value, old);
        checked.map_err(|escalation| match escalation {
            Escalation::NotHeld(why) => ApiError::forbidden(resource, meta::text(value, "name"), &why),
            Escalation::NoRole(role) => ApiError::not_found(role.resource(), &role.name),
        })
    }

    /// Whether an object may also be made by who applies it.
    pub(super) fn may_create(&self) -> Result<(), ApiError> {
        self.asker.check(&Action::Object(Access {
            verb: "create".to_owned(),
            group: self.object.resource.group.clone().into_owned(),
            resource: self.object.resource.plural.clone().into_owned(),
            subresource: String::new(),
            namespace: self.object.namespace.clone().unwrap_or_default(),
            name: self.name().to_owned(),
        }))
    }
}

/// Whether an object may be created in its namespace: it is there, and is not being deleted.
pub(super) fn check_namespace(store: &Store, object: &Object, name: &str) -> Result<(), ApiError> {
    let Some(namespace) = &object.namespace else { return Ok(()) };
    match objects::namespace(store, namespace) {
        None => Err(ApiError::not_found(&NAMESPACES, namespace)),
        Some(found) if meta::is_being_deleted(&found.value()) => {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            Err(ApiError::forbidden(&object.resource, name, &why))
        }
        Some(_) => Ok(()),
    }
}
