//! Creating, changing and deleting.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

use super::query::{Query, Unknown, dry_run};
use super::table::{Form, shown};
use super::target::Object;
use super::{Refusal, Server, body, json_of, success};
use crate::resource::Cause;
use crate::selector::Selector;
use crate::store::{Change, Store, WriteError};
use crate::{meta, patch as patching, place, schema};

/// How often a made-up name may be taken.
const NAMES_TRIED: usize = 8;
/// How far finalizers that delete dependents go.
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// What became of a write, or would have.
#[derive(Debug)]
struct Written {
    value: Value,
    warnings: Vec<String>,
}

impl Written {
    fn response(&self, code: StatusCode, object: &Object, form: Form) -> Response {
        let mut response = json_of(code, &shown(object.resource, &self.value, form));
        for warning in &self.warnings {
            let text = warning.replace(['\\', '"'], "'");
            if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
                response.headers_mut().append("warning", value);
            }
        }
        response
    }
}

/// Writes beside the runtime: a commit waits for the disk.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Refusal::internal(format!("the write broke off: {error}")))?
}

async fn given(request: Request) -> Result<Value, Refusal> {
    body::object(request).await?.ok_or_else(|| Refusal::bad_request("the request has no body"))
}

/// Whether an object is of the kind and place that the path says.
fn belongs(object: &Object, value: &Value) -> Result<(), Refusal> {
    for (field, expected) in
        [("apiVersion", object.resource.api_version()), ("kind", object.resource.kind.to_owned())]
    {
        let has = value.get(field).and_then(Value::as_str).unwrap_or_default();
        if has != expected {
            let message = format!(
                "the {field} in the data ({has:?}) does not match the expected {field} ({expected:?})"
            );
            return Err(Refusal::bad_request(message));
        }
    }
    let namespace = meta::text(value, "namespace");
    if !namespace.is_empty() && Some(namespace) != object.namespace.as_deref() {
        return Err(Refusal::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// Checks types, labels and what the resource itself demands.
fn judge(
    object: &Object,
    value: &mut Value,
    old: Option<&Value>,
    unknown: Unknown,
) -> Result<Vec<String>, Refusal> {
    let findings = schema::check(object.resource.kind, value);
    if !findings.mistyped.is_empty() {
        let told = findings.mistyped.join(", ");
        return Err(Refusal::bad_request(format!("{} cannot be read: {told}", object.resource.kind)));
    }
    let strangers: Vec<String> =
        findings.unknown.iter().map(|field| format!("unknown field {field:?}")).collect();
    if unknown == Unknown::Refuse && !strangers.is_empty() {
        return Err(Refusal::bad_request(format!("strict decoding error: {}", strangers.join(", "))));
    }
    let labels = meta::problems(value).into_iter().map(|(field, message)| Cause {
        reason: "FieldValueInvalid",
        message,
        field,
    });
    let mut causes: Vec<Cause> = labels.collect();
    if causes.is_empty() {
        causes = (object.resource.admit)(value, old);
    }
    if !causes.is_empty() {
        return Err(Refusal::invalid(object.resource, meta::text(value, "name"), &causes));
    }
    Ok(if unknown == Unknown::Warn { strangers } else { Vec::new() })
}

/// Whether something may be made in a namespace.
fn room(store: &Store, object: &Object, name: &str) -> Result<(), Refusal> {
    let Some(namespace) = &object.namespace else { return Ok(()) };
    match place::namespace(store, namespace) {
        None => Err(Refusal::not_found(place::namespaces(), namespace)),
        Some(found) if meta::is_leaving(&found.value) => {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            Err(Refusal::forbidden(object.resource, name, &why))
        }
        Some(_) => Ok(()),
    }
}

/// POST of a collection.
pub(super) async fn create(
    server: &Arc<Server>,
    object: Object,
    query: &Query,
    request: Request,
    form: Form,
) -> Result<Response, Refusal> {
    if object.resource.namespaced && object.namespace.is_none() {
        return Err(Refusal::bad_request("an empty namespace may not be set during creation"));
    }
    let value = given(request).await?;
    belongs(&object, &value)?;
    let (store, dry, unknown) = (Arc::clone(&server.store), query.dry_run, query.unknown);
    let kept = object.clone();
    let written = aside(move || {
        let given = meta::text(&value, "name").to_owned();
        if !given.is_empty() {
            return create_as(&store, &object, value, &given, (dry, unknown));
        }
        let prefix = meta::text(&value, "generateName").to_owned();
        if prefix.is_empty() {
            let cause = Cause {
                reason: "FieldValueRequired",
                message: "Required value: name or generateName is required".to_owned(),
                field: "metadata.name".to_owned(),
            };
            return Err(Refusal::invalid(object.resource, "", &[cause]));
        }
        for _ in 1..NAMES_TRIED {
            let name = meta::made_up(&prefix);
            if store.get(&object.key(&name)).is_none() {
                return create_as(&store, &object, value, &name, (dry, unknown));
            }
        }
        create_as(&store, &object, value, &meta::made_up(&prefix), (dry, unknown))
    })
    .await?;
    Ok(written.response(StatusCode::CREATED, &kept, form))
}

fn create_as(
    store: &Store,
    object: &Object,
    mut value: Value,
    name: &str,
    (dry, unknown): (bool, Unknown),
) -> Result<Written, Refusal> {
    if !(object.resource.name_fits)(name) {
        let message = format!(
            "Invalid value: {name:?}: a lowercase RFC 1123 name must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"
        );
        let cause = Cause { reason: "FieldValueInvalid", message, field: "metadata.name".to_owned() };
        return Err(Refusal::invalid(object.resource, name, &[cause]));
    }
    room(store, object, name)?;
    meta::create(&mut value, object.namespace.as_deref().unwrap_or_default(), name);
    let warnings = judge(object, &mut value, None, unknown)?;
    let stored = store.write(&object.key(name), |before, store| {
        if before.is_some() {
            return Err(Refusal::exists(object.resource, name));
        }
        // Again, now that nobody else writes.
        room(store, object, name)?;
        Ok(if dry { Change::Nothing } else { Change::Put(value.clone()) })
    })?;
    Ok(Written { value: stored.map_or(value, |stored| stored.value.clone()), warnings })
}

/// PUT of an object or its status.
pub(super) async fn replace(
    server: &Arc<Server>,
    object: Object,
    query: &Query,
    request: Request,
    form: Form,
) -> Result<Response, Refusal> {
    let value = given(request).await?;
    belongs(&object, &value)?;
    let name = object.name.clone().unwrap_or_default();
    if meta::text(&value, "name") != name {
        let has = meta::text(&value, "name");
        return Err(Refusal::bad_request(format!(
            "the name of the object ({has}) does not match the name on the URL ({name})"
        )));
    }
    change(server, object, query, form, move |_| Ok(value)).await
}

/// PATCH of an object or its status.
pub(super) async fn patch(
    server: &Arc<Server>,
    object: Object,
    query: &Query,
    request: Request,
    form: Form,
) -> Result<Response, Refusal> {
    let keys = object.resource.merge;
    let (kind, patch) = body::patch(request, keys.is_some()).await?;
    let patched = move |before: &Value| {
        patching::apply(kind, before, patch, keys.unwrap_or_default()).map_err(|error| match error {
            patching::PatchError::Malformed(message) => Refusal::bad_request(message),
            patching::PatchError::Unfit(message) => Refusal::unfit(message),
        })
    };
    change(server, object, query, form, patched).await
}

/// Changes an object to what `make` makes of it.
async fn change(
    server: &Arc<Server>,
    object: Object,
    query: &Query,
    form: Form,
    make: impl FnOnce(&Value) -> Result<Value, Refusal> + Send + 'static,
) -> Result<Response, Refusal> {
    let (store, dry, unknown) = (Arc::clone(&server.store), query.dry_run, query.unknown);
    let kept = object.clone();
    let written = aside(move || {
        let name = object.name.clone().unwrap_or_default();
        let mut done: Option<Written> = None;
        let stored = store.write(&object.key(&name), |before, _| {
            let before = before.ok_or_else(|| Refusal::not_found(object.resource, &name))?;
            let mut value = make(&before.value)?;
            let warnings = update(&object, &mut value, &before.value, unknown)?;
            done = Some(Written { value: value.clone(), warnings });
            Ok(if dry {
                Change::Nothing
            } else if meta::is_leaving(&value) && !place::is_held(&value) {
                Change::Remove(value)
            } else {
                Change::Put(value)
            })
        });
        let stored = stored.map_err(|error: WriteError<Refusal>| Refusal::from(error))?;
        let mut written = done.ok_or_else(|| Refusal::internal("the write was not decided"))?;
        if let Some(stored) = stored.filter(|_| !dry) {
            written.value = stored.value.clone();
        }
        Ok(written)
    })
    .await?;
    Ok(written.response(StatusCode::OK, &kept, form))
}

/// Makes of a new value what an update of `before` may be.
fn update(
    object: &Object,
    value: &mut Value,
    before: &Value,
    unknown: Unknown,
) -> Result<Vec<String>, Refusal> {
    let name = object.name.as_deref().unwrap_or_default();
    if !value.is_object() {
        return Err(Refusal::bad_request("what the patch makes of it is no object"));
    }
    let differs = |field: &str| {
        let has = meta::text(value, field);
        !has.is_empty() && has != meta::text(before, field)
    };
    if differs("resourceVersion") {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        return Err(Refusal::conflict(object.resource, name, why));
    }
    if differs("uid") {
        let why = format!(
            "Precondition failed: UID in precondition: {}, UID in object meta: {}",
            meta::text(value, "uid"),
            meta::text(before, "uid")
        );
        return Err(Refusal::conflict(object.resource, name, &why));
    }
    for field in ["apiVersion", "kind"] {
        value[field] = before[field].clone();
    }
    match object.status {
        Some(_) => {
            let status = value.get("status").cloned();
            value.clone_from(before);
            set_status(value, status);
        }
        None if object.resource.status => set_status(value, before.get("status").cloned()),
        None => {}
    }
    meta::update(value, before);
    let warnings = judge(object, value, Some(before), unknown)?;
    if meta::is_leaving(before) {
        let had = meta::finalizers(before);
        if let Some(fresh) = meta::finalizers(value).into_iter().find(|one| !had.contains(one)) {
            let message = format!(
                "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizer {fresh:?}"
            );
            let cause =
                Cause { reason: "FieldValueForbidden", message, field: "metadata.finalizers".to_owned() };
            return Err(Refusal::invalid(object.resource, name, &[cause]));
        }
    }
    meta::count_generation(value, before);
    Ok(warnings)
}

fn set_status(value: &mut Value, status: Option<Value>) {
    if let Some(fields) = value.as_object_mut() {
        match status {
            Some(status) => fields.insert("status".to_owned(), status),
            None => fields.remove("status"),
        };
    }
}

/// How a deletion is wanted.
#[derive(Debug, Clone, Default)]
struct Wishes {
    dry: bool,
    uid: String,
    revision: String,
    finalizer: Option<&'static str>,
}

impl Wishes {
    fn read(query: &Query, options: Option<Value>) -> Result<Self, Refusal> {
        let options = options.unwrap_or_default();
        let mut dry = query.dry_run;
        for word in options.get("dryRun").and_then(Value::as_array).into_iter().flatten() {
            dry |= dry_run(word.as_str().unwrap_or("?"))?;
        }
        let asked = options.get("propagationPolicy").and_then(Value::as_str).or(query.propagation.as_deref());
        let finalizer = match asked {
            None | Some("" | "Background") => None,
            Some("Foreground") => Some(FOREGROUND),
            Some("Orphan") => Some(ORPHAN),
            Some(other) => {
                return Err(Refusal::bad_request(format!(
                    "invalid value for propagationPolicy: {other:?}: use Background, Foreground or Orphan"
                )));
            }
        };
        let demand = |field: &str| {
            let value = options.pointer(&format!("/preconditions/{field}")).and_then(Value::as_str);
            value.unwrap_or_default().to_owned()
        };
        if query.grace.is_some_and(|grace| grace < 0) {
            return Err(Refusal::bad_request("gracePeriodSeconds must not be negative"));
        }
        Ok(Self { dry, uid: demand("uid"), revision: demand("resourceVersion"), finalizer })
    }
}

/// DELETE of an object.
pub(super) async fn delete(
    server: &Arc<Server>,
    object: Object,
    query: &Query,
    request: Request,
    form: Form,
) -> Result<Response, Refusal> {
    let wishes = Wishes::read(query, body::object(request).await?)?;
    let store = Arc::clone(&server.store);
    let (name, resource) = (object.name.clone().unwrap_or_default(), object.resource);
    let left = aside(move || remove(&store, &object, &name, &wishes)).await?;
    Ok(match left {
        Left::Going(value) => json_of(StatusCode::OK, &shown(resource, &value, form)),
        Left::Gone(value) => {
            let details = json!({
                "name": meta::text(&value, "name"), "group": resource.group, "kind": resource.plural,
                "uid": meta::text(&value, "uid"),
            });
            json_of(StatusCode::OK, &success(details))
        }
    })
}

enum Left {
    Going(Value),
    Gone(Value),
}

fn remove(store: &Store, object: &Object, name: &str, wishes: &Wishes) -> Result<Left, Refusal> {
    let resource = object.resource;
    let mut left = None;
    store.write(&object.key(name), |before, _| {
        let before = before.ok_or_else(|| Refusal::not_found(resource, name))?;
        for (wanted, field) in [(&wishes.uid, "uid"), (&wishes.revision, "resourceVersion")] {
            if !wanted.is_empty() && wanted != meta::text(&before.value, field) {
                let has = meta::text(&before.value, field);
                let why =
                    format!("Precondition failed: {field} in precondition: {wanted}, in object meta: {has}");
                return Err(Refusal::conflict(resource, name, &why));
            }
        }
        if place::is_permanent(resource, name) {
            return Err(Refusal::forbidden(resource, name, "this namespace may not be deleted"));
        }
        let mut value = before.value.clone();
        if let Some(finalizer) = wishes.finalizer.filter(|_| !meta::is_leaving(&value)) {
            let mut finalizers = meta::finalizers(&value);
            if !finalizers.iter().any(|one| one == finalizer) {
                finalizers.push(finalizer.to_owned());
            }
            meta::of(&mut value).insert("finalizers".to_owned(), json!(finalizers));
        }
        let change = place::leave(&mut value);
        left = Some(match change {
            place::Leaving::Held => Left::Going(value.clone()),
            place::Leaving::Free => Left::Gone(value.clone()),
        });
        Ok(match (wishes.dry, change) {
            (true, _) => Change::Nothing,
            (false, place::Leaving::Held) => Change::Put(value),
            (false, place::Leaving::Free) => Change::Remove(value),
        })
    })?;
    left.ok_or_else(|| Refusal::internal("the deletion was not decided"))
}

/// DELETE of a collection: each of it, as if by itself.
pub(super) async fn delete_all(
    server: &Arc<Server>,
    object: Object,
    query: &Query,
    request: Request,
) -> Result<Response, Refusal> {
    if object.resource.namespaced && object.namespace.is_none() {
        return Err(Refusal::method_not_allowed());
    }
    let selector =
        Selector::read(object.resource, &query.labels, &query.fields).map_err(Refusal::bad_request)?;
    let wishes = Wishes::read(query, body::object(request).await?)?;
    let store = Arc::clone(&server.store);
    let answer = aside(move || {
        let listing = store.list(&object.resource.name(), object.namespace.as_deref());
        let mut items = Vec::new();
        for found in listing.objects.iter().filter(|found| selector.selects(&found.value)) {
            match remove(&store, &object, &found.key.name, &wishes) {
                Ok(Left::Going(value) | Left::Gone(value)) => items.push(value),
                // Somebody else was faster.
                Err(_) if store.get(&found.key).is_none() => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(json!({
            "kind": format!("{}List", object.resource.kind), "apiVersion": object.resource.api_version(),
            "metadata": {"resourceVersion": store.revision().to_string()}, "items": items,
        }))
    })
    .await?;
    Ok(json_of(StatusCode::OK, &answer))
}
