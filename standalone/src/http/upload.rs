//! What CDI has for uploads: where they go, tokens for them, and the door that images come through.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use vireo_handler::launcher::link::chain;
use vireo_handler::storage::{Upload, UploadError};

use super::request_info::ResourcePath;
use super::{Refusal, Server, body, json_of};
use crate::auth::bearer;
use crate::resource::Cause;
use crate::uploads::{self, NotNow, Subject, token};
use crate::{meta, place};

/// Where images come to.
const DOORS: [&str; 2] = ["/v1beta1/upload", "/v1alpha1/upload"];
const GROUP: &str = "upload.cdi.kubevirt.io";
const KIND: &str = "UploadTokenRequest";
/// How long nothing may come.
const PATIENCE: Duration = Duration::from_secs(60);
/// Parts of a body that wait to be written.
const WAITING: usize = 8;

/// What is asked at a path of CDI's API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cdi {
    /// Where uploads go.
    Config,
    /// A token, in a namespace.
    Token(String),
}

/// What is asked at a path.
pub(super) fn at(path: &ResourcePath) -> Option<Cdi> {
    if path.version != "v1beta1" || !path.subresource.is_empty() {
        return None;
    }
    match (path.group.as_str(), &path.namespace, path.resource.as_str(), path.name.as_deref()) {
        ("cdi.kubevirt.io", None, "cdiconfigs", Some("config")) => Some(Cdi::Config),
        (GROUP, Some(namespace), "uploadtokenrequests", None) => Some(Cdi::Token(namespace.clone())),
        _ => None,
    }
}

/// Answers what is asked of CDI's API.
pub(super) async fn serve(server: &Arc<Server>, cdi: Cdi, request: Request) -> Result<Response, Refusal> {
    match (cdi, request.method()) {
        (Cdi::Config, &Method::GET) => Ok(json_of(StatusCode::OK, &config(&server.uploads.url))),
        (Cdi::Token(namespace), &Method::POST) => pass(server, &namespace, request).await,
        _ => Err(Refusal::method_not_allowed()),
    }
}

fn config(url: &str) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "CDIConfig", "metadata": {"name": "config"},
        "spec": {}, "status": {"uploadProxyURL": url},
    })
}

async fn pass(server: &Arc<Server>, namespace: &str, request: Request) -> Result<Response, Refusal> {
    let mut asked =
        body::object(request).await?.ok_or_else(|| Refusal::bad_request("the request has no body"))?;
    let name = asked.pointer("/spec/pvcName").and_then(Value::as_str).unwrap_or_default().to_owned();
    if name.is_empty() {
        let cause = Cause::required("spec.pvcName", "Required value");
        return Err(Refusal::unsound((GROUP, KIND), meta::text(&asked, "name"), &[cause]));
    }
    let row = place::claims();
    let claim = server.store.get(&row.key(namespace, &name)).ok_or_else(|| Refusal::not_found(row, &name))?;
    let uid = meta::text(&claim.value, "uid").to_owned();
    let subject = Subject { namespace: namespace.to_owned(), name, uid };
    let token = token::sign(server.tokens.signer(), &subject, Timestamp::now())
        .ok_or_else(|| Refusal::internal("the machine gives no random numbers"))?;
    asked["apiVersion"] = json!(format!("{GROUP}/v1beta1"));
    asked["kind"] = json!(KIND);
    meta::of(&mut asked).insert("namespace".to_owned(), json!(namespace));
    asked["status"] = json!({ "token": token });
    Ok(json_of(StatusCode::CREATED, &asked))
}

/// Whether images come through a path: then who sends them shows a token of [`token::sign`].
pub fn is_door(path: &str) -> bool {
    DOORS.contains(&path)
}

/// Which claim the sender of an image may fill.
pub fn sender(server: &Server, request: &Request) -> Option<Subject> {
    let shown = bearer(request.headers().get(header::AUTHORIZATION)?)?;
    token::read(server.tokens.signer(), shown, Timestamp::now())
}

/// Takes an image for a claim.
pub async fn receive(server: Arc<Server>, subject: Subject, request: Request) -> Response {
    match take(&server, subject, request).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(refusal) => {
            let mut response = refusal.into_response();
            // What still comes is not read.
            response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
            response
        }
    }
}

async fn take(server: &Arc<Server>, subject: Subject, request: Request) -> Result<(), Refusal> {
    if request.method() != Method::POST && request.method() != Method::PUT {
        return Err(Refusal::method_not_allowed());
    }
    let length =
        request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let (begun, of) = (Arc::clone(server), subject.clone());
    let upload = aside(move || {
        let key = uploads::claim(&begun.store, &begun.uploads.files, &of)?;
        let upload = begun.uploads.files.begin_upload(&key.namespace, &key.name)?;
        upload.expect(length.unwrap_or(0))?;
        Ok(upload)
    });
    let upload = read(upload.await?, request.into_body()).await?;
    let server = Arc::clone(server);
    aside(move || uploads::put(&server.store, &server.uploads.files, &subject, upload.finish()?)).await
}

async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NotNow> + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Refusal::internal(format!("the upload broke off: {error}")))?.map_err(refusal)
}

/// Reads all of a body. What came so far goes if it breaks off.
async fn read(upload: Upload, mut body: Body) -> Result<Upload, Refusal> {
    let (parts, mut waiting) = mpsc::channel::<Bytes>(WAITING);
    let writer = tokio::task::spawn_blocking(move || {
        let mut upload = upload;
        while let Some(part) = waiting.blocking_recv() {
            upload.write(&part)?;
        }
        Ok::<_, UploadError>(upload)
    });
    let come = async {
        loop {
            let frame =
                tokio::time::timeout(PATIENCE, body.frame()).await.map_err(|_| Refusal::too_slow())?;
            let Some(frame) = frame else { return Ok::<_, Refusal>(()) };
            let frame =
                frame.map_err(|error| Refusal::bad_request(format!("the body broke off: {error}")))?;
            let Ok(part) = frame.into_data() else { continue };
            if parts.send(part).await.is_err() {
                // The writer says why.
                return Ok(());
            }
        }
    };
    let come = come.await;
    drop(parts);
    let written =
        writer.await.map_err(|error| Refusal::internal(format!("the upload broke off: {error}")))?;
    let upload = written.map_err(|error| refusal(error.into()))?;
    come.map(|()| upload)
}

fn refusal(why: NotNow) -> Refusal {
    let message = chain(&why);
    let (code, reason) = match &why {
        NotNow::Gone => (StatusCode::NOT_FOUND, "NotFound"),
        NotNow::Unfit(_) | NotNow::Upload(UploadError::Busy | UploadError::Claim(_)) => {
            (StatusCode::CONFLICT, "Conflict")
        }
        NotNow::Upload(UploadError::TooLarge { .. }) => {
            (StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge")
        }
        NotNow::Upload(UploadError::Format(_) | UploadError::Damaged(_) | UploadError::Convert(_)) => {
            (StatusCode::BAD_REQUEST, "BadRequest")
        }
        NotNow::Upload(UploadError::Full) => (StatusCode::INSUFFICIENT_STORAGE, "InsufficientStorage"),
        NotNow::Upload(UploadError::Write(_)) | NotNow::Disk(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "InternalError")
        }
    };
    Refusal::new(code, reason, message)
}
