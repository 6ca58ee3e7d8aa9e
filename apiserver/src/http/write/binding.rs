//! `pods/NAME/binding` and `bindings`: the assignment of a pod to a node.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::Value;

use super::validate::{in_namespace, is_kind};
use super::{WriteRequest, Writer, given};
use crate::http::blocking::run_blocking;
use crate::http::{ApiError, created, json_of};
use crate::meta;
use crate::resource::{self, Cause};
use crate::store::Object as Stored;

/// Its kind, in the core group.
pub(in crate::http) const KIND: &str = "Binding";

/// POST of a Binding. Where the path names no pod, the Binding does.
pub(in crate::http) async fn bind(request: WriteRequest) -> Result<Response, ApiError> {
    if request.request.method() != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    let (mut writer, _, request) = request.split()?;
    let binding = given(request).await?;
    let text = |pointer: &str| binding.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    is_kind(&binding, KIND, |version| version == "v1")?;
    in_namespace(&writer.object, &binding)?;
    let name = meta::text(&binding, "name").to_owned();
    if writer.object.name.as_ref().is_some_and(|named| *named != name) {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    let mut causes = Vec::new();
    if !["", "Node"].contains(&text("/target/kind")) {
        let why = format!("Unsupported value: {:?}: supported values: \"Node\"", text("/target/kind"));
        causes.push(Cause::unsupported("target.kind", why));
    }
    if text("/target/name").is_empty() {
        causes.push(Cause::required("target.name", "Required value"));
    }
    let problems = meta::problems(&binding).into_iter();
    causes.extend(problems.map(|(field, why)| Cause::invalid(field, why)));
    if !causes.is_empty() {
        return Err(ApiError::unsound(("", KIND), &name, &causes));
    }
    writer.object.name = Some(name);
    run_blocking(move || writer.bind(&binding)).await?;
    Ok(json_of(StatusCode::CREATED, &created()))
}

impl Writer {
    fn bind(&self, binding: &Value) -> Result<(), ApiError> {
        let decide = |before: Option<&Arc<Stored>>| {
            let before = before.ok_or_else(|| self.absent())?.value();
            self.check_identity(binding, &before)?;
            let mut value = Value::clone(&before);
            resource::bind(&mut value, binding)
                .map_err(|why| ApiError::conflict_on("pods/binding", self.name(), &why))?;
            Ok(self.decide(value))
        };
        self.store.update(&self.object.key(self.name()), self.space(), decide, |_| Ok(()))?;
        Ok(())
    }
}
