//! Requests and answers, as those of a Kubernetes API server.
//!
//! [`request_info`] reads a request once, for authorization and for [`mod@route`], which finds what is served there; [`query`]
//! reads the parameters. [`read`], [`watch`] and [`mod@write`] serve objects of every resource in the table alike;
//! [`discovery`] lists what is served.

mod access;
mod blocking;
pub mod body;
pub mod discovery;
mod health;
mod measured;
mod protobuf;
mod query;
mod read;
mod request_info;
mod review;
mod route;
mod service;
mod table;
mod token;
mod watch;
mod write;

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Instant;

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use serde::Serialize;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use tracing::error;

pub use crate::error::{ApiError, status};
pub use measured::Measures;
pub use query::dry_run;
pub use request_info::{RequestInfo, ResourcePath};
pub use service::{Answer, ApiService, Endpoint, Proxied, Proxy};

use crate::admission::Admission;
use crate::auth::{Tokens, User};
use crate::flow_control::{self, FlowControl, Kept, Origin, PriorityLevel};
use crate::rbac::roles::RolesNow;
use crate::served_resources::{ServedResources, ServedResourcesCache};
use crate::store::Store;
use discovery::Served;
use measured::RequestLabels;
use query::Query;
use route::{Delegated, Object, Route};
use write::WriteRequest;

/// Kubernetes' message for a panic.
const PANICKED: &str = "This request caused apiserver to panic. Look in the logs for details.";
/// Where metrics are.
pub const METRICS: &str = "/metrics";

/// What requests are answered from.
#[derive(Debug)]
pub struct Server {
    /// The objects.
    pub store: Arc<Store>,
    /// Authentication by tokens.
    pub tokens: Arc<Tokens>,
    /// The directory of the state. It must have free space.
    pub state_dir: PathBuf,
    /// Admission, after the validation of the resource.
    pub admission: Arc<dyn Admission>,
    /// Who answers for parts of the API.
    pub services: Vec<Arc<dyn ApiService>>,
    /// Who answers requests with credentials of other kinds.
    pub proxies: Vec<Arc<dyn Proxy>>,
    /// What is served.
    pub served: ServedResourcesCache,
    /// Who may do what.
    pub roles: RolesNow,
    /// Answers at [`METRICS`].
    pub metrics: Router,
    /// What is counted of requests.
    pub measures: Measures,
    /// How many requests are answered at the same time.
    pub flow_control: FlowControl,
}

/// Answers a request of an authenticated user. A panic is answered with 500, as a Kubernetes API server does.
pub async fn answer(server: Arc<Server>, user: User, request: Request) -> Response {
    let (begin, mut about) = (Instant::now(), RequestLabels::new(&request));
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let served = AssertUnwindSafe(serve(&server, user, request, &mut about)).catch_unwind().await;
    let served = served.unwrap_or_else(|_| {
        error!(%method, path, "a request panicked");
        Err(ApiError::internal(PANICKED))
    });
    let response = served.unwrap_or_else(ApiError::into_response);
    server.measures.answered(about, response.status(), begin.elapsed());
    response
}

async fn serve(
    server: &Arc<Server>,
    user: User,
    mut request: Request,
    about: &mut RequestLabels,
) -> Result<Response, ApiError> {
    let query = Query::parse(request.uri().query().unwrap_or_default())?;
    let info = RequestInfo::parse(request.method(), request.uri().path(), &query)?;
    let origin = request.extensions().get().copied().unwrap_or(Origin::Remote);
    let (level, flow) = (PriorityLevel::of(&user, origin), user.name.clone());
    let is_read = request.method().is_safe();
    access::check(server, user, &info, &mut request)?;
    let served = server.served.now(&server.store);
    let target = Route::of(&info, &served, &server.services)?;
    about.means(&target, &query);
    if origin == Origin::Part {
        return dispatch(server, target, &served, query, request).await;
    }
    if about.is_long_running() {
        let connection = request.extensions().get::<Weak<Kept>>().cloned();
        let permit = server.flow_control.long_running(level, &flow)?;
        let response = dispatch(server, target, &served, query, request).await?;
        return Ok(flow_control::keep(permit, connection.as_ref(), response));
    }
    if origin == Origin::Remote && !is_read {
        server.flow_control.admit_change((level, &flow))?;
    }
    let request = body::buffer(request).await?;
    let response = {
        let _seat = server.flow_control.seat(level, &flow).await?;
        dispatch(server, target, &served, query, request).await?
    };
    match origin {
        Origin::Remote => Ok(server.flow_control.answer((level, &flow), is_read, response)?),
        // They read it at once.
        Origin::Component | Origin::Part => Ok(response),
    }
}

async fn dispatch(
    server: &Arc<Server>,
    target: Route,
    served: &ServedResources,
    query: Query,
    mut request: Request,
) -> Result<Response, ApiError> {
    match target {
        Route::Object(object) => objects(server, object, query, request).await,
        Route::Scale(object) => {
            let form = table::Form::negotiate(&request, &query)?;
            write::scale(WriteRequest { server: Arc::clone(server), object, query, form, request }).await
        }
        Route::Binding(object) => {
            let (server, form) = (Arc::clone(server), table::Form::Plain);
            write::binding::bind(WriteRequest { server, object, query, form, request }).await
        }
        Route::Eviction(object) => {
            let (server, form) = (Arc::clone(server), table::Form::Plain);
            write::eviction::evict(WriteRequest { server, object, query, form, request }).await
        }
        Route::Token(account) => token::serve(server, &account, request).await,
        Route::Review(review, namespace) => review::serve(server, review, namespace, request).await,
        Route::Service(Delegated { service, path, .. }) => {
            let service = server.services.get(service).ok_or_else(ApiError::path_not_found)?;
            Arc::clone(service).serve(path, request).await
        }
        Route::Health(endpoint, check) => {
            health::serve(server, (endpoint, check), query, request.method()).await
        }
        Route::Metrics => {
            *request.uri_mut() = Uri::from_static(METRICS);
            match server.metrics.clone().oneshot(request).await {
                Ok(response) => Ok(response),
                Err(never) => match never {},
            }
        }
        target => {
            if request.method() != Method::GET && request.method() != Method::HEAD {
                return Err(ApiError::method_not_allowed());
            }
            let served = Served { resources: served, services: &server.services };
            documents(&served, &target, &request)
        }
    }
}

async fn objects(
    server: &Arc<Server>,
    object: Object,
    query: Query,
    request: Request,
) -> Result<Response, ApiError> {
    let form = table::Form::negotiate(&request, &query)?;
    match (request.method().clone(), &object.name) {
        (Method::GET | Method::HEAD, None) if query.watch => {
            return watch::serve(server, &object, &query, form);
        }
        (Method::GET | Method::HEAD, None) => {
            // Many objects take long to write down, and others should not wait for it.
            let server = Arc::clone(server);
            return blocking::run_blocking(move || read::list(&server, &object, &query, form)).await;
        }
        // Deprecated, and still what some clients do: a watch of one name.
        (Method::GET, Some(_)) if query.watch && object.status.is_none() => {
            return watch::serve(server, &object, &query, form);
        }
        (Method::GET | Method::HEAD, Some(_)) => return read::one(server, &object, form),
        _ => {}
    }
    let (method, named) = (request.method().clone(), object.name.is_some());
    let whole = object.status.is_none();
    let request = WriteRequest { server: Arc::clone(server), object, query, form, request };
    match method {
        Method::POST if !named => write::create(request).await,
        Method::PUT if named => write::replace(request).await,
        Method::PATCH if named => write::patch(request).await,
        Method::DELETE if named && whole => write::delete(request).await,
        Method::DELETE if !named => write::delete_all(request).await,
        _ => Err(ApiError::method_not_allowed()),
    }
}

fn documents(served: &Served<'_>, target: &Route, request: &Request) -> Result<Response, ApiError> {
    let accept =
        request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    Ok(match target {
        Route::Version => json_of(StatusCode::OK, &discovery::version()),
        Route::Core => discovery::legacy_or_aggregated(served, accept, true),
        Route::Groups => discovery::legacy_or_aggregated(served, accept, false),
        Route::Group(group) => json_of(StatusCode::OK, &discovery::group(served, group)?),
        Route::Resources(group, version) => {
            json_of(StatusCode::OK, &discovery::resources(served, group, version)?)
        }
        Route::OpenApiV2 => discovery::openapi_v2(served.resources, accept),
        Route::OpenApiV3Index => json_of(StatusCode::OK, &crate::openapi::v3_index(served.resources)),
        Route::OpenApiV3(group_version) => {
            let document =
                crate::openapi::v3(served.resources, group_version).ok_or_else(ApiError::path_not_found)?;
            json_of(StatusCode::OK, &document)
        }
        Route::Root => json_of(StatusCode::OK, &discovery::paths(served)),
        Route::Object(_)
        | Route::Scale(_)
        | Route::Binding(_)
        | Route::Eviction(_)
        | Route::Service(_)
        | Route::Token(_)
        | Route::Review(..)
        | Route::Health(..)
        | Route::Metrics => {
            return Err(ApiError::path_not_found());
        }
    })
}

/// A JSON answer.
pub fn json_of(code: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => response(code, text),
        Err(error) => ApiError::internal(error.to_string()).into_response(),
    }
}

/// A response of JSON text.
fn response(code: StatusCode, text: impl Into<String>) -> Response {
    (code, [(header::CONTENT_TYPE, "application/json")], text.into()).into_response()
}

/// `metav1.Status` of a success.
fn success(details: Value) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

/// `metav1.Status` of what was created without an object of its own.
fn created() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}

#[cfg(test)]
mod tests;
