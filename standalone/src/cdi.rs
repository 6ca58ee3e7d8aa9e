//! What CDI has for uploads: their targets, their tokens, and the endpoint that receives images.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use serde_json::{Value, json};
use vireo_apiserver::auth::{Tokens, bearer};
use vireo_apiserver::http::{
    Answer, ApiError, ApiService, Endpoint, Proxied, Proxy, ResourcePath, body, json_of,
};
use vireo_apiserver::meta;
use vireo_apiserver::resource::Cause;
use vireo_client::Kind;
use vireo_handler::jobs::{JobContext, JobError, Jobs, Pool};
use vireo_handler::launcher::link::chain;
use vireo_handler::storage::{Upload, UploadError};

use crate::resource::storage;
use crate::uploads::{NotNow, Subject, Uploads, token};

/// Where images come to.
const DOORS: [&str; 2] = ["/v1beta1/upload", "/v1alpha1/upload"];
const GROUP: &str = "upload.cdi.kubevirt.io";
const KIND: &str = "UploadTokenRequest";
/// How long nothing may come.
const PATIENCE: Duration = Duration::from_secs(60);
/// So many bytes of a body are written at once.
const TOGETHER: usize = 1 << 20;

/// What is asked at a path of CDI's API.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cdi {
    /// Where uploads go.
    Config,
    /// A token, in a namespace.
    Token(String),
}

/// What is asked at a path.
fn at(path: &ResourcePath) -> Option<Cdi> {
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
async fn serve(server: &Arc<CdiApi>, cdi: Cdi, request: Request) -> Result<Response, ApiError> {
    match (cdi, request.method()) {
        (Cdi::Config, &Method::GET) => Ok(json_of(StatusCode::OK, &config(&server.uploads.url))),
        (Cdi::Token(namespace), &Method::POST) => pass(server, &namespace, request).await,
        _ => Err(ApiError::method_not_allowed()),
    }
}

fn config(url: &str) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "CDIConfig", "metadata": {"name": "config"},
        "spec": {}, "status": {"uploadProxyURL": url},
    })
}

async fn pass(server: &Arc<CdiApi>, namespace: &str, request: Request) -> Result<Response, ApiError> {
    let mut asked =
        body::object(request).await?.ok_or_else(|| ApiError::bad_request("the request has no body"))?;
    let name = asked.pointer("/spec/pvcName").and_then(Value::as_str).unwrap_or_default().to_owned();
    if name.is_empty() {
        let cause = Cause::required("spec.pvcName", "Required value");
        return Err(ApiError::unsound((GROUP, KIND), meta::text(&asked, "name"), &[cause]));
    }
    let row = &storage::CLAIMS;
    let claims = Kind::CLAIM.namespaced(&server.uploads.client, namespace);
    // Others have no object, and are no part of a path.
    let claim = match meta::is_dns_name(namespace) && meta::is_dns_name(&name) {
        true => claims.get_opt(&name).await.map_err(|error| rejection(error.into()))?,
        false => None,
    };
    let claim = claim.ok_or_else(|| ApiError::not_found(row, &name))?;
    let uid = claim.metadata.uid.unwrap_or_default();
    let subject = Subject { namespace: namespace.to_owned(), name, uid };
    let token = token::sign(server.tokens.signer(), &subject, Timestamp::now())
        .ok_or_else(|| ApiError::internal("the host gives no random numbers"))?;
    asked["apiVersion"] = json!(format!("{GROUP}/v1beta1"));
    asked["kind"] = json!(KIND);
    meta::of(&mut asked).insert("namespace".to_owned(), json!(namespace));
    asked["status"] = json!({ "token": token });
    Ok(json_of(StatusCode::CREATED, &asked))
}

/// CDI's API, as far as it is there.
#[derive(Debug)]
pub struct CdiApi {
    /// Who signs tokens.
    pub tokens: Arc<Tokens>,
    /// What fills claims.
    pub uploads: Uploads,
}

impl ApiService for CdiApi {
    fn endpoint(&self, path: &ResourcePath) -> Option<Result<Endpoint, ApiError>> {
        at(path).map(|_| Ok(Endpoint::Request))
    }

    fn serve(self: Arc<Self>, path: ResourcePath, request: Request) -> Answer<Result<Response, ApiError>> {
        Box::pin(async move { serve(&self, at(&path).ok_or_else(ApiError::path_not_found)?, request).await })
    }
}

/// Images come through it. Who sends them shows a token of [`token::sign`].
impl Proxy for CdiApi {
    fn serves(&self, path: &str) -> bool {
        DOORS.contains(&path)
    }

    fn answer(self: Arc<Self>, request: Request) -> Option<Proxied> {
        let subject = sender(&self, &request)?;
        // Tokens say for which claim they are, and not who got them.
        let flow = format!("uploads to {}", subject.namespace);
        Some(Proxied { flow, answer: Box::pin(receive(self, subject, request)) })
    }
}

/// Which claim the sender of an image may fill.
fn sender(server: &CdiApi, request: &Request) -> Option<Subject> {
    let shown = bearer(request.headers().get(header::AUTHORIZATION)?)?;
    token::read(server.tokens.signer(), shown, Timestamp::now())
}

/// Takes an image for a claim.
async fn receive(server: Arc<CdiApi>, subject: Subject, request: Request) -> Response {
    match take(&server, subject, request).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(rejection) => {
            let mut response = rejection.into_response();
            // What still comes is not read.
            response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
            response
        }
    }
}

async fn take(server: &Arc<CdiApi>, subject: Subject, request: Request) -> Result<(), ApiError> {
    if request.method() != Method::POST && request.method() != Method::PUT {
        return Err(ApiError::method_not_allowed());
    }
    let length =
        request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let key = server.uploads.claim(&subject).await.map_err(rejection)?;
    let files = server.uploads.files.clone();
    let begin = move |_: &JobContext| {
        let upload = files.begin_upload(&key.namespace, &key.name)?;
        upload.expect(length.unwrap_or(0))?;
        Ok::<_, NotNow>(upload)
    };
    let Jobs { quick, imports } = &server.uploads.jobs;
    let namespace = &subject.namespace;
    let upload = flatten(quick.run(namespace, begin).await)?;
    let upload = read(upload, request.into_body(), (quick, namespace)).await?;
    let finish = move |job: &JobContext| Ok(upload.finish(job)?);
    let filled = flatten(imports.run(namespace, finish).await)?;
    server.uploads.put(&subject, filled).await.map_err(rejection)
}

fn flatten<T>(done: Result<Result<T, NotNow>, JobError>) -> Result<T, ApiError> {
    done.map_err(|error| NotNow::Upload(error.into())).flatten().map_err(rejection)
}

/// Reads all of a body. What came so far goes if it breaks off. No thread waits for the client.
async fn read(
    mut upload: Upload,
    mut body: Body,
    (pool, namespace): (&Pool, &str),
) -> Result<Upload, ApiError> {
    loop {
        let (parts, is_last) = next(&mut body).await?;
        let write = move |_: &JobContext| {
            parts.iter().try_for_each(|part| upload.write(part))?;
            Ok(upload)
        };
        upload = flatten(pool.run(namespace, write).await)?;
        if is_last {
            return Ok(upload);
        }
    }
}

/// The next parts of a body that are written together, and whether they are the last.
async fn next(body: &mut Body) -> Result<(Vec<Bytes>, bool), ApiError> {
    let (mut parts, mut length) = (Vec::new(), 0);
    while length < TOGETHER {
        let frame = tokio::time::timeout(PATIENCE, body.frame()).await.map_err(|_| ApiError::too_slow())?;
        let Some(frame) = frame else { return Ok((parts, true)) };
        let frame = frame.map_err(|error| ApiError::bad_request(format!("the body broke off: {error}")))?;
        if let Ok(part) = frame.into_data() {
            length += part.len();
            parts.push(part);
        }
    }
    Ok((parts, false))
}

fn rejection(why: NotNow) -> ApiError {
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
        NotNow::Upload(UploadError::Job(_)) => (StatusCode::GATEWAY_TIMEOUT, "Timeout"),
        NotNow::Upload(UploadError::Full) => (StatusCode::INSUFFICIENT_STORAGE, "InsufficientStorage"),
        NotNow::Upload(UploadError::Write(_)) | NotNow::Hold(_) | NotNow::Kube(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "InternalError")
        }
    };
    ApiError::new(code, reason, message)
}
