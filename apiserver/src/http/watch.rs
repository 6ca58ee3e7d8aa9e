//! Watches: a line of JSON for every event.
//!
//! A watch keeps no queue of its own. It remembers how far it has sent, and reads on in the store's past; a client that
//! reads so slowly that its position is no longer in the history gets 410 and starts over.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::measured::Lasting;
use super::query::Query;
use super::route::Object;
use super::table::{Form, text};
use super::{ApiError, Server};
use crate::resource::Resource;
use crate::selector::Selector;
use crate::store::{Event, Object as Stored, Store};

/// The default duration of a watch.
const LASTING: Duration = Duration::from_secs(45 * 60);
/// How often one that wants them gets bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(60);

/// Bytes of what is sent first that are written at once, or one object.
const PIECE: usize = 64 << 10;

struct Watch {
    store: Arc<Store>,
    revisions: tokio::sync::watch::Receiver<u64>,
    resource: Arc<Resource>,
    namespace: Option<String>,
    name: Option<String>,
    selector: Selector,
    form: Form,
    /// Everything up to this was sent.
    position: u64,
    /// What is sent first, a piece at a time as the client reads.
    first: std::vec::IntoIter<Arc<Stored>>,
    /// Whether the end of that is marked.
    marked: bool,
    deadline: Instant,
    bookmark: Option<Instant>,
    over: bool,
    _counted: Lasting,
}

/// Begins a watch.
pub(super) fn serve(
    server: &Server,
    object: &Object,
    query: &Query,
    form: Form,
) -> Result<Response, ApiError> {
    let selector = Selector::read(|field| object.resource.selects_by(field), &query.labels, &query.fields)
        .map_err(ApiError::bad_request)?;
    let mut watch = Watch {
        store: Arc::clone(&server.store),
        revisions: server.store.subscribe(),
        resource: Arc::clone(&object.resource),
        namespace: object.namespace.clone(),
        name: object.name.clone(),
        selector,
        form,
        position: query.revision.unwrap_or_default(),
        first: Vec::new().into_iter(),
        marked: false,
        deadline: Instant::now() + query.timeout.unwrap_or(LASTING).min(LASTING * 2),
        bookmark: query.bookmarks.then(|| Instant::now() + BOOKMARKS),
        over: false,
        _counted: server.measures.watching(object.resource.name()),
    };
    if query.revision.is_none() || query.initial_events {
        let listing = server.store.list(&object.resource.name(), object.namespace.as_deref());
        watch.position = listing.revision;
        watch.first = listing.objects.into_iter();
        watch.marked = query.initial_events && query.bookmarks;
    }
    let body = Body::from_stream(stream::unfold(watch, |mut watch| async {
        let chunk = watch.next().await?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(chunk)), watch))
    }));
    Ok(([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-cache, private")], body)
        .into_response())
}

/// An event; `object` is JSON.
fn line(kind: &str, object: &str) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

impl Watch {
    /// The next piece of what there was at the beginning.
    fn begin(&mut self) -> Option<String> {
        let mut piece = String::new();
        while piece.len() < PIECE
            && let Some(object) = self.first.next()
        {
            if self.selects(&object) {
                piece.push_str(&line("ADDED", &text(&self.resource, &object, self.form)));
            }
        }
        if piece.is_empty() && std::mem::take(&mut self.marked) {
            piece = self.mark(json!({"k8s.io/initial-events-end": "true"}));
        }
        Some(piece).filter(|piece| !piece.is_empty())
    }

    fn selects(&self, object: &Stored) -> bool {
        let named = self.name.as_deref().is_none_or(|name| object.key.name == name);
        named && self.selector.selects_stored(object)
    }

    /// A bookmark: nothing happened up to here that the client does not know.
    fn mark(&self, annotations: Value) -> String {
        let mut metadata = json!({ "resourceVersion": self.position.to_string() });
        if !annotations.is_null() {
            metadata["annotations"] = annotations;
        }
        let object = json!({
            "kind": self.resource.kind, "apiVersion": self.resource.api_version(), "metadata": metadata,
        });
        line("BOOKMARK", &object.to_string())
    }

    fn line(&self, event: &Event) -> Option<String> {
        let was = event.before.as_ref().is_some_and(|before| self.selects(before));
        let is = event.stays && self.selects(&event.object);
        let kind = match (was, is) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        Some(line(kind, &text(&self.resource, &event.object, self.form)))
    }

    /// What to send next; nothing when the watch is over.
    async fn next(&mut self) -> Option<String> {
        if let Some(piece) = self.begin() {
            return Some(piece);
        }
        while !self.over {
            self.revisions.borrow_and_update();
            match self.store.events(&self.resource.name(), self.namespace.as_deref(), self.position) {
                Ok((position, events)) => {
                    self.position = position;
                    let lines: String = events.iter().filter_map(|event| self.line(event)).collect();
                    if !lines.is_empty() {
                        return Some(lines);
                    }
                }
                Err(expired) => {
                    self.over = true;
                    return Some(line("ERROR", &ApiError::from(expired).to_value().to_string()));
                }
            }
            let bookmark = self.bookmark;
            let marking = async {
                match bookmark {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.revisions.changed() => self.over = changed.is_err(),
                () = tokio::time::sleep_until(self.deadline) => self.over = true,
                () = marking => {
                    self.bookmark = Some(Instant::now() + BOOKMARKS);
                    return Some(self.mark(Value::Null));
                }
            }
        }
        None
    }
}
