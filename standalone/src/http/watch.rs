//! Watches: a line of JSON for every event.
//!
//! A watch keeps no queue of its own. It remembers how far it has told, and reads on in the store's past; a client that
//! reads so slowly that its place is forgotten gets 410 and starts over.

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
use super::table::{Form, shown};
use super::target::Object;
use super::{Refusal, Server};
use crate::resource::Resource;
use crate::selector::Selector;
use crate::store::{Event, Store};

/// How long a watch lasts that does not say.
const LASTING: Duration = Duration::from_secs(45 * 60);
/// How often one that wants them gets bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(60);

struct Watch {
    store: Arc<Store>,
    news: tokio::sync::watch::Receiver<u64>,
    resource: Arc<Resource>,
    namespace: Option<String>,
    name: Option<String>,
    selector: Selector,
    form: Form,
    /// Everything up to this was told.
    position: u64,
    /// What is told first.
    first: Option<String>,
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
) -> Result<Response, Refusal> {
    let selector =
        Selector::read(&object.resource, &query.labels, &query.fields).map_err(Refusal::bad_request)?;
    let mut watch = Watch {
        store: Arc::clone(&server.store),
        news: server.store.news(),
        resource: Arc::clone(&object.resource),
        namespace: object.namespace.clone(),
        name: object.name.clone(),
        selector,
        form,
        position: query.revision.unwrap_or_default(),
        first: None,
        deadline: Instant::now() + query.timeout.unwrap_or(LASTING).min(LASTING * 2),
        bookmark: query.bookmarks.then(|| Instant::now() + BOOKMARKS),
        over: false,
        _counted: server.measures.watching(object.resource.name()),
    };
    if query.revision.is_none() || query.initial_events {
        watch.begin_with_everything(query.initial_events && query.bookmarks);
    }
    let body = Body::from_stream(stream::unfold(watch, |mut watch| async {
        let chunk = watch.next().await?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(chunk)), watch))
    }));
    Ok(([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-cache, private")], body)
        .into_response())
}

fn line(kind: &str, object: &Value) -> String {
    let mut line = json!({"type": kind, "object": object}).to_string();
    line.push('\n');
    line
}

impl Watch {
    fn begin_with_everything(&mut self, marked: bool) {
        let listing = self.store.list(&self.resource.name(), self.namespace.as_deref());
        let meant = listing.objects.iter().filter(|object| self.selects(&object.value));
        let mut first: String =
            meant.map(|object| line("ADDED", &shown(&self.resource, &object.value, self.form))).collect();
        self.position = listing.revision;
        if marked {
            first.push_str(&self.mark(json!({"k8s.io/initial-events-end": "true"})));
        }
        self.first = Some(first).filter(|first| !first.is_empty());
    }

    fn selects(&self, object: &Value) -> bool {
        let named = self.name.as_deref().is_none_or(|name| crate::meta::text(object, "name") == name);
        named && self.selector.selects(object)
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
        line("BOOKMARK", &object)
    }

    fn tell(&self, event: &Event) -> Option<String> {
        let was = event.before.as_ref().is_some_and(|before| self.selects(&before.value));
        let is = event.stays && self.selects(&event.object.value);
        let kind = match (was, is) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        Some(line(kind, &shown(&self.resource, &event.object.value, self.form)))
    }

    /// What to send next; nothing when the watch is over.
    async fn next(&mut self) -> Option<String> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        while !self.over {
            self.news.borrow_and_update();
            match self.store.events(&self.resource.name(), self.namespace.as_deref(), self.position) {
                Ok((position, events)) => {
                    self.position = position;
                    let told: String = events.iter().filter_map(|event| self.tell(event)).collect();
                    if !told.is_empty() {
                        return Some(told);
                    }
                }
                Err(expired) => {
                    self.over = true;
                    return Some(line("ERROR", &Refusal::from(expired).to_value()));
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
                changed = self.news.changed() => self.over = changed.is_err(),
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
