//! One object, and lists.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::query::{Match, Query};
use super::route::Object;
use super::table::{Form, table, text};
use super::{ApiError, Server, json_of, response};
use crate::resource::Resource;
use crate::selector::Selector;
use crate::store::{Listing, Object as Stored};

/// One object.
pub(super) fn one(server: &Server, object: &Object, form: Form) -> Result<Response, ApiError> {
    let name = object.name.as_deref().unwrap_or_default();
    let found =
        server.store.get(&object.key(name)).ok_or_else(|| ApiError::not_found(&object.resource, name))?;
    Ok(response(StatusCode::OK, &*text(&object.resource, &found, form)))
}

/// Where a list is read on: the moment it shows, and the last object that was listed.
#[derive(Debug, PartialEq, Eq)]
struct Next {
    revision: u64,
    namespace: String,
    name: String,
}

impl Next {
    fn write(&self) -> String {
        URL_SAFE_NO_PAD.encode(format!("{}\0{}\0{}", self.revision, self.namespace, self.name))
    }

    fn read(token: &str) -> Option<Self> {
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
        let mut parts = text.split('\0');
        let (revision, namespace, name) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
        Some(Self { revision, namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

/// Several objects, a page at a time if a limit was given; all pages show the same moment.
pub(super) fn list(
    server: &Server,
    object: &Object,
    query: &Query,
    form: Form,
) -> Result<Response, ApiError> {
    let selector = Selector::read(|field| object.resource.selects_by(field), &query.labels, &query.fields)
        .map_err(ApiError::bad_request)?;
    let next = match &query.next {
        None => None,
        Some(token) => {
            Some(Next::read(token).ok_or_else(|| ApiError::bad_request("continue key is not valid"))?)
        }
    };
    let listing = moment(server, object, query, next.as_ref())?;
    let after = next.map(|next| (next.namespace, next.name)).unwrap_or_default();
    let rest = listing.objects.iter().filter(|object| {
        (object.key.namespace.as_str(), object.key.name.as_str()) > (after.0.as_str(), after.1.as_str())
    });
    let mut selected = rest.filter(|object| selector.selects_stored(object));
    let page: Vec<_> = match query.limit {
        Some(limit) => selected.by_ref().take(limit).collect(),
        None => selected.by_ref().collect(),
    };
    let more = selected.next().is_some();
    let mut metadata = json!({ "resourceVersion": listing.revision.to_string() });
    if let Some(last) = page.last().filter(|_| more) {
        let (namespace, name) = (last.key.namespace.clone(), last.key.name.clone());
        metadata["continue"] = json!(Next { revision: listing.revision, namespace, name }.write());
        // How many a selector would leave is not counted, as that would read them all.
        if selector.is_empty() {
            metadata["remainingItemCount"] = json!(selected.count() + 1);
        }
    }
    Ok(match form {
        Form::Table(include) => {
            let rows = page.iter().map(|found| found.value_once());
            json_of(StatusCode::OK, &table(&object.resource, rows, include, metadata))
        }
        Form::Plain => response(StatusCode::OK, list_text(&object.resource, &metadata, &page)),
    })
}

/// A list as JSON; the objects are copied as they are stored.
fn list_text(resource: &Resource, metadata: &Value, items: &[&Arc<Stored>]) -> String {
    let (kind, api_version) = (json!(format!("{}List", resource.kind)), json!(resource.api_version()));
    let bytes: usize = items.iter().map(|item| item.size + 32).sum();
    let mut text = String::with_capacity(bytes + 256);
    text.push_str(&format!(r#"{{"kind":{kind},"apiVersion":{api_version},"metadata":{metadata},"items":["#));
    for (index, item) in items.iter().enumerate() {
        text.push_str(if index > 0 { "," } else { "" });
        text.push_str(&item.json());
    }
    text.push_str("]}");
    text
}

fn moment(server: &Server, object: &Object, query: &Query, next: Option<&Next>) -> Result<Listing, ApiError> {
    let (resource, namespace) = (object.resource.name(), object.namespace.as_deref());
    if let Some(next) = next {
        return Ok(server.store.list_at(&resource, namespace, next.revision)?);
    }
    match (query.revision, query.matching) {
        (Some(revision), Some(Match::Exact)) => Ok(server.store.list_at(&resource, namespace, revision)?),
        (Some(revision), _) if revision > server.store.revision() => {
            let now = server.store.revision();
            Err(ApiError::too_early(revision, now))
        }
        _ => Ok(server.store.list(&resource, namespace)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_and_others_do_not() {
        let next = Next { revision: 7, namespace: "a".to_owned(), name: "b".to_owned() };
        assert_eq!(Next::read(&next.write()), Some(next));
        for token in
            ["", "!", "AAAA", &URL_SAFE_NO_PAD.encode("x\0a\0b"), &URL_SAFE_NO_PAD.encode([255, 0, 0])]
        {
            assert_eq!(Next::read(token), None, "{token}");
        }
    }
}
