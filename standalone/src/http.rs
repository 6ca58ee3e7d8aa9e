//! Requests and answers, as those of a Kubernetes API server.
//!
//! [`request_info`] reads a request once, for authorization and for [`target`], which finds what is served there, [`query`]
//! what stands behind the path; [`read`], [`watch`] and [`mod@write`] serve
//! objects of every resource in the table alike; [`discovery`] tells clients what there is.

mod access;
mod ask;
mod body;
mod discovery;
mod expand;
mod health;
mod measured;
mod plug;
mod protobuf;
mod query;
mod read;
mod refusal;
mod request_info;
mod review;
mod subresource;
mod table;
mod target;
mod token;
mod upload;
mod virt_api;
mod watch;
mod write;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use serde_json::{Value, json};
use vireo_handler::http::METRICS;
use vireo_handler::storage::AllowedPaths;

pub use measured::Measures;
pub use refusal::{Refusal, status};
pub use upload::{is_door, receive, sender};

use crate::auth::Tokens;
use crate::catalog::{Catalog, Catalogs};
use crate::rbac::roles::RolesNow;
use crate::store::Store;
use crate::uploads::Uploads;
use measured::About;
use query::Query;
use request_info::RequestInfo;
use target::{Object, Target};

/// What requests are answered from.
#[derive(Debug)]
pub struct Server {
    /// The objects.
    pub store: Arc<Store>,
    /// Whose tokens are whose.
    pub tokens: Arc<Tokens>,
    /// What fills claims.
    pub uploads: Uploads,
    /// Where everything is kept, which is to have room.
    pub state_dir: PathBuf,
    /// Which paths of this machine objects may name.
    pub allowed: AllowedPaths,
    /// What is served.
    pub catalogs: Catalogs,
    /// Who may do what.
    pub roles: RolesNow,
    /// The node agent's own endpoint, for consoles and screens.
    pub node: Router,
    /// What is counted of requests.
    pub measures: Measures,
}

/// Answers a request of somebody who may make it.
pub async fn answer(server: Arc<Server>, request: Request) -> Response {
    let (begin, mut about) = (Instant::now(), About::new(&request));
    let response = serve(&server, request, &mut about).await.unwrap_or_else(Refusal::into_response);
    server.measures.answered(about, response.status(), begin.elapsed());
    response
}

async fn serve(server: &Arc<Server>, mut request: Request, about: &mut About) -> Result<Response, Refusal> {
    let query = Query::parse(request.uri().query().unwrap_or_default())?;
    let info = RequestInfo::parse(request.method(), request.uri().path(), &query)?;
    access::check(server, &info, &mut request)?;
    let catalog = server.catalogs.now(&server.store);
    let target = Target::of(&info, &catalog)?;
    about.means(&target, &query);
    match target {
        Target::Object(object) => objects(server, object, query, request).await,
        Target::Scale(object) => {
            let form = table::Form::negotiate(&request, &query)?;
            write::scale(write::Asked { server: Arc::clone(server), object, query, form, request }).await
        }
        Target::Plug(asked) => plug::serve(server, asked, request).await,
        Target::Expand(asked) => expand::serve(server, asked, request).await,
        Target::Ask(asked) => ask::serve(server, asked, request).await,
        Target::Token(account) => token::serve(server, &account, request).await,
        Target::Cdi(cdi) => upload::serve(server, cdi, request).await,
        Target::Review(review, namespace) => review::serve(server, review, namespace, request).await,
        Target::Stream(stream) => subresource::serve(server, stream, request).await,
        Target::Health(endpoint, check) => {
            health::serve(server, (endpoint, check), query, request.method()).await
        }
        Target::Metrics => subresource::ask_node(server, request, METRICS).await,
        target => {
            if request.method() != Method::GET && request.method() != Method::HEAD {
                return Err(Refusal::method_not_allowed());
            }
            documents(&catalog, &target, &request)
        }
    }
}

async fn objects(
    server: &Arc<Server>,
    object: Object,
    query: Query,
    request: Request,
) -> Result<Response, Refusal> {
    let form = table::Form::negotiate(&request, &query)?;
    match (request.method().clone(), &object.name) {
        (Method::GET | Method::HEAD, None) if query.watch => {
            return watch::serve(server, &object, &query, form);
        }
        (Method::GET | Method::HEAD, None) => {
            // Many objects take long to write down, and others should not wait for it.
            let server = Arc::clone(server);
            return write::aside(move || read::list(&server, &object, &query, form)).await;
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
    let asked = write::Asked { server: Arc::clone(server), object, query, form, request };
    match method {
        Method::POST if !named => write::create(asked).await,
        Method::PUT if named => write::replace(asked).await,
        Method::PATCH if named => write::patch(asked).await,
        Method::DELETE if named && whole => write::delete(asked).await,
        Method::DELETE if !named => write::delete_all(asked).await,
        _ => Err(Refusal::method_not_allowed()),
    }
}

fn documents(catalog: &Catalog, target: &Target, request: &Request) -> Result<Response, Refusal> {
    let accept =
        request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    Ok(match target {
        Target::Version => json_of(StatusCode::OK, &discovery::version()),
        Target::Core => discovery::legacy_or_aggregated(catalog, accept, true),
        Target::Groups => discovery::legacy_or_aggregated(catalog, accept, false),
        Target::Group(group) => json_of(StatusCode::OK, &discovery::group(catalog, group)?),
        Target::Resources(group, version) => {
            json_of(StatusCode::OK, &discovery::resources(catalog, group, version)?)
        }
        Target::OpenApiV2 => discovery::openapi_v2(catalog, accept),
        Target::OpenApiV3Index => json_of(StatusCode::OK, &crate::schema::openapi::v3_index(catalog)),
        Target::OpenApiV3(place) => {
            let document = crate::schema::openapi::v3(catalog, place).ok_or_else(Refusal::nowhere)?;
            json_of(StatusCode::OK, &document)
        }
        Target::Root => json_of(StatusCode::OK, &discovery::paths(catalog)),
        Target::VirtApi(document) => virt_api::document(*document)?,
        Target::Object(_)
        | Target::Scale(_)
        | Target::Stream(_)
        | Target::Ask(_)
        | Target::Plug(_)
        | Target::Cdi(_)
        | Target::Expand(_)
        | Target::Token(_)
        | Target::Review(..)
        | Target::Health(..)
        | Target::Metrics => {
            return Err(Refusal::nowhere());
        }
    })
}

/// A JSON answer.
fn json_of(code: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(text) => (code, [(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => Refusal::internal(error.to_string()).into_response(),
    }
}

/// `metav1.Status` of a success.
fn success(details: Value) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

#[cfg(test)]
mod tests;
