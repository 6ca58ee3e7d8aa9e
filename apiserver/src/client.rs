//! A client of the API server in its own process, without sockets and TLS.
//!
//! [`InProcess`] is what `kube::Client::new` takes: controllers and the node agent use a `kube::Client` whether the API
//! server is a cluster's or is part of their process.

mod body;

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use axum::response::IntoResponse as _;
use futures_util::future::BoxFuture;
use tower::{BoxError, Service};

use crate::auth::User;
use crate::flow_control::Origin;
use crate::http::{self, ApiError, Server};
use body::Guarded;

/// Sends requests to a [`Server`] of the same process as one [user](User).
///
/// Requests are authorized, admitted, limited and counted as those that come over TLS are, of the priority level
/// [`System`](crate::flow_control::PriorityLevel::System). Only the authentication is left
/// out, so an `Authorization` header is ignored; impersonation headers work, for users who may impersonate. Response
/// bodies are streams: a watch sends its events as they happen, and ends when its body is dropped. A request whose future
/// is dropped is cancelled, but for a write that has begun.
///
/// A panic of the server becomes a response of 500, or an error of the body that is being read.
///
/// Two things need the TLS listener: upgrades of the connection (WebSockets), which are refused with 400, and the paths
/// of [`http::Proxy`], whose requests have credentials of their own.
///
/// ```no_run
/// # fn of(server: std::sync::Arc<vireo_apiserver::http::Server>) -> kube::Client {
/// use vireo_apiserver::auth::User;
/// use vireo_apiserver::client::InProcess;
///
/// let user = User::service_account("kubevirt", "virt-controller");
/// kube::Client::new(InProcess::new(server, user), "kubevirt")
/// # }
/// ```
#[derive(Clone)]
pub struct InProcess {
    server: Weak<Server>,
    /// Absent in parts of the server, which would keep each other.
    _kept: Option<Arc<Server>>,
    user: Arc<User>,
    user_agent: Option<HeaderValue>,
    origin: Origin,
}

impl InProcess {
    /// Sends requests as this user.
    pub fn new(server: Arc<Server>, user: User) -> Self {
        let part = Self::part_of(Arc::downgrade(&server), user);
        Self { _kept: Some(server), origin: Origin::Component, ..part }
    }

    /// The same for a part of the server, as a service or the admission, which does not keep the server. When the server
    /// is gone, requests are answered with 503.
    pub fn part_of(server: Weak<Server>, user: User) -> Self {
        Self { server, _kept: None, user: Arc::new(user), user_agent: None, origin: Origin::Part }
    }

    /// Sets the `User-Agent` of requests that have none. What stands before its slash is the field manager of writes that
    /// name none.
    #[must_use]
    pub fn with_user_agent(self, user_agent: HeaderValue) -> Self {
        Self { user_agent: Some(user_agent), ..self }
    }

    /// Who makes the requests.
    pub fn user(&self) -> &User {
        &self.user
    }
}

impl fmt::Debug for InProcess {
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        form.debug_struct("InProcess").field("user", &self.user.name).finish_non_exhaustive()
    }
}

impl<B> Service<Request<B>> for InProcess
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { server, user, user_agent, origin, .. } = self.clone();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(origin);
        if let Some(user_agent) = user_agent {
            request.headers_mut().entry(header::USER_AGENT).or_insert(user_agent);
        }
        Box::pin(async move {
            let Some(server) = server.upgrade() else {
                let (code, message) = (StatusCode::SERVICE_UNAVAILABLE, "the API server has stopped");
                return Ok(ApiError::new(code, "ServiceUnavailable", message).into_response());
            };
            if request.headers().contains_key(header::UPGRADE) || request.method() == Method::CONNECT {
                let message = "Upgrade requests are not supported by the in-process client: \
                               use the address of the API server";
                return Ok(ApiError::bad_request(message).into_response());
            }
            let is_head = request.method() == Method::HEAD;
            let response = http::answer(server, User::clone(&user), request).await;
            // As an HTTP connection does, which sends the headers alone.
            Ok(response.map(|body| if is_head { Body::empty() } else { Body::new(Guarded::new(body)) }))
        })
    }
}
