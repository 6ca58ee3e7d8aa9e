//! Creating, changing and deleting.

mod change;
mod create;
mod delete;
mod judge;

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::Value;

use super::query::{Query, Unknown};
use super::table::{Form, shown};
use super::target::Object;
use super::{Refusal, Server, body, json_of};
use crate::store::Store;

pub(super) use change::{patch, replace};
pub(super) use create::create;
pub(super) use delete::{delete, delete_all};

/// A request that writes.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) server: Arc<Server>,
    pub(super) object: Object,
    pub(super) query: Query,
    pub(super) form: Form,
    pub(super) request: Request,
}

impl Asked {
    fn split(self) -> (Writer, Form, Request) {
        let writer = Writer {
            store: Arc::clone(&self.server.store),
            dry: self.query.dry_run,
            unknown: self.query.unknown,
            object: self.object,
        };
        (writer, self.form, self.request)
    }
}

/// What is written to, and how.
#[derive(Debug)]
struct Writer {
    store: Arc<Store>,
    object: Object,
    /// Whether it is only asked what would be.
    dry: bool,
    unknown: Unknown,
}

/// What became of a write, or would have.
#[derive(Debug)]
struct Written {
    code: StatusCode,
    value: Value,
    warnings: Vec<String>,
}

impl Writer {
    /// Writes beside the runtime, as a commit waits for the disk, and answers with what was written.
    async fn answer(
        self,
        form: Form,
        work: impl FnOnce(&Self) -> Result<Written, Refusal> + Send + 'static,
    ) -> Result<Response, Refusal> {
        let resource = self.object.resource;
        let written = aside(move || work(&self)).await?;
        let mut response = json_of(written.code, &shown(resource, &written.value, form));
        for warning in &written.warnings {
            let text = warning.replace(['\\', '"'], "'");
            if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
                response.headers_mut().append("warning", value);
            }
        }
        Ok(response)
    }
}

async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Refusal::internal(format!("the write broke off: {error}")))?
}

async fn given(request: Request) -> Result<Value, Refusal> {
    body::object(request).await?.ok_or_else(|| Refusal::bad_request("the request has no body"))
}
