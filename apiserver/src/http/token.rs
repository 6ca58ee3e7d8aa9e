//! `serviceaccounts/NAME/token`: a token for an account, which is returned once and not stored.

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::route::Object;
use super::{ApiError, Server, body, json_of};
use crate::auth::account::{Account, Claims, ISSUER, Named};
use crate::meta;
use crate::resource::{Cause, SECRETS, SERVICE_ACCOUNTS};

/// Its group and kind.
pub(super) const KIND: (&str, &str) = ("authentication.k8s.io", "TokenRequest");
pub(super) const VERSION: &str = "v1";
/// Seconds: an hour by default, at least ten minutes, at most what fits in 32 bits.
const USUAL: i64 = 3600;
const LEAST: i64 = 600;
const MOST: i64 = 1 << 32;
const MOST_AUDIENCES: usize = 32;

/// Answers with a token.
pub(super) async fn serve(server: &Server, object: &Object, request: Request) -> Result<Response, ApiError> {
    if request.method() != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    let mut value = body::object(request).await?.unwrap_or_else(|| json!({}));
    let api_version = format!("{}/{VERSION}", KIND.0);
    for (field, expected) in [("apiVersion", api_version.as_str()), ("kind", KIND.1)] {
        let has = value.get(field).and_then(Value::as_str).unwrap_or(expected);
        if has != expected {
            let why = format!("the {field} in the data ({has:?}) is not the expected one ({expected:?})");
            return Err(ApiError::bad_request(why));
        }
        value[field] = json!(expected);
    }
    let name = object.name.as_deref().unwrap_or_default();
    let namespace = object.namespace.clone().unwrap_or_default();
    let account = server.store.get(&SERVICE_ACCOUNTS.key(&namespace, name));
    let account = account.ok_or_else(|| ApiError::not_found(&SERVICE_ACCOUNTS, name))?;
    let spec = value.get("spec").cloned().unwrap_or_default();
    let requested = Requested::read(&spec).map_err(|cause| ApiError::unsound(KIND, "", &[cause]))?;
    let secret = requested.secret.map(|wanted| bound(server, &namespace, wanted)).transpose()?;
    let named = |value: &Value| Named {
        name: meta::text(value, "name").to_owned(),
        uid: meta::text(value, "uid").to_owned(),
    };
    let holder = Account { namespace: namespace.clone(), account: named(&account.value()), secret };
    let now = Timestamp::now().as_second();
    let claims = Claims::new(holder, requested.audiences.clone(), now, Some(requested.seconds));
    let token = server.tokens.sign(&claims);
    let token = token.ok_or_else(|| ApiError::internal("the token could not be signed"))?;
    let ends = Timestamp::from_second(now.saturating_add(requested.seconds));
    let ends = ends.map_err(|error| ApiError::internal(error.to_string()))?;
    let metadata = meta::of(&mut value);
    metadata.insert("name".to_owned(), json!(name));
    metadata.insert("namespace".to_owned(), json!(namespace));
    if !value["spec"].is_object() {
        value["spec"] = json!({});
    }
    value["spec"]["audiences"] = json!(requested.audiences);
    value["spec"]["expirationSeconds"] = json!(requested.seconds);
    value["status"] = json!({"token": token, "expirationTimestamp": ends.to_string()});
    Ok(json_of(StatusCode::CREATED, &value))
}

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
struct Requested {
    audiences: Vec<String>,
    seconds: i64,
    /// Its UID may be empty.
    secret: Option<Named>,
}

impl Requested {
    fn read(spec: &Value) -> Result<Self, Cause> {
        let seconds = match spec.get("expirationSeconds") {
            None | Some(Value::Null) => USUAL,
            Some(given) => {
                let at = "spec.expirationSeconds";
                let invalid = |why: &str| Cause::invalid(at, format!("Invalid value: {given}: {why}"));
                match given.as_i64() {
                    None => return Err(invalid("must be a number")),
                    Some(..LEAST) => return Err(invalid("may not specify a duration less than 10 minutes")),
                    Some(seconds) if seconds > MOST => {
                        return Err(invalid("may not specify a duration larger than 2^32 seconds"));
                    }
                    Some(seconds) => seconds,
                }
            }
        };
        let audiences = match spec.get("audiences") {
            None | Some(Value::Null) => Vec::new(),
            Some(given) => serde_json::from_value::<Vec<String>>(given.clone())
                .map_err(|error| Cause::invalid("spec.audiences", format!("Invalid value: {error}")))?,
        };
        if audiences.len() > MOST_AUDIENCES {
            let why = format!("Too many: {}: must have at most {MOST_AUDIENCES} items", audiences.len());
            return Err(Cause::invalid("spec.audiences", why));
        }
        let audiences = if audiences.is_empty() { vec![ISSUER.to_owned()] } else { audiences };
        Ok(Self { audiences, seconds, secret: secret(spec.get("boundObjectRef"))? })
    }
}

fn secret(reference: Option<&Value>) -> Result<Option<Named>, Cause> {
    let Some(reference) = reference.filter(|reference| !reference.is_null()) else { return Ok(None) };
    let text = |field: &str| reference.get(field).and_then(Value::as_str).unwrap_or_default();
    match (text("apiVersion"), text("kind"), text("name")) {
        ("" | "v1", "Secret", "") => Err(Cause::required("spec.boundObjectRef.name", "Required value")),
        ("" | "v1", "Secret", name) => Ok(Some(Named { name: name.to_owned(), uid: text("uid").to_owned() })),
        (_, kind, _) => {
            let why =
                format!("Unsupported value: {kind:?}: a token can only be bound to a Secret of version v1");
            Err(Cause::unsupported("spec.boundObjectRef.kind", why))
        }
    }
}

/// A secret that is there, and is the one that is meant.
fn bound(server: &Server, namespace: &str, wanted: Named) -> Result<Named, ApiError> {
    let row = &SECRETS;
    let found = server.store.get(&row.key(namespace, &wanted.name));
    let found = found.ok_or_else(|| ApiError::not_found(row, &wanted.name))?;
    let uid = meta::text(&found.value(), "uid").to_owned();
    if !wanted.uid.is_empty() && wanted.uid != uid {
        let why = format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been deleted and then recreated",
            wanted.uid
        );
        return Err(ApiError::conflict(row, &wanted.name, &why));
    }
    Ok(Named { uid, ..wanted })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requested_lifetimes_have_limits() {
        let read = |spec: Value| Requested::read(&spec).map_err(|cause| cause.field);
        let usual = Requested { audiences: vec![ISSUER.to_owned()], seconds: USUAL, secret: None };
        assert_eq!(read(Value::Null), Ok(usual));
        let given = json!({"audiences": ["vault"], "expirationSeconds": 600,
            "boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "s", "uid": "u"}});
        let secret = Some(Named { name: "s".to_owned(), uid: "u".to_owned() });
        assert_eq!(read(given), Ok(Requested { audiences: vec!["vault".to_owned()], seconds: 600, secret }));
        for (spec, field) in [
            (json!({"expirationSeconds": 599}), "spec.expirationSeconds"),
            (json!({"expirationSeconds": -1}), "spec.expirationSeconds"),
            (json!({"expirationSeconds": (1_i64 << 32) + 1}), "spec.expirationSeconds"),
            (json!({"expirationSeconds": "1h"}), "spec.expirationSeconds"),
            (json!({"audiences": "a"}), "spec.audiences"),
            (json!({"audiences": vec!["a"; 33]}), "spec.audiences"),
            (json!({"boundObjectRef": {"kind": "Pod", "name": "p"}}), "spec.boundObjectRef.kind"),
            (json!({"boundObjectRef": {"kind": "Secret"}}), "spec.boundObjectRef.name"),
        ] {
            assert_eq!(read(spec.clone()), Err(field.to_owned()), "{spec}");
        }
    }
}
