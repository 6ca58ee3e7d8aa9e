//! Parts of the API that another service of the program answers.

use std::fmt;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::ApiError;
use super::request_info::ResourcePath;

/// An answer on its way.
pub type Answer<T> = BoxFuture<'static, T>;

/// What a service has at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// Requests are answered.
    Request,
    /// A connection, which goes on for as long as its client wants.
    Connection,
}

/// Answers requests for paths of its own below `/apis`, as an aggregated API server does. Its clients are authenticated
/// and authorized before.
pub trait ApiService: fmt::Debug + Send + Sync {
    /// Groups with their versions, the preferred one first, for discovery.
    fn groups(&self) -> Vec<(&'static str, Vec<&'static str>)> {
        Vec::new()
    }

    /// Elements of the APIResourceList of a group and version.
    fn resources(&self, group: &str, version: &str) -> Vec<Value> {
        let _ = (group, version);
        Vec::new()
    }

    /// Further paths for the index of all paths.
    fn paths(&self) -> Vec<String> {
        Vec::new()
    }

    /// What there is at a path; None where the path is not this service's.
    fn endpoint(&self, path: &ResourcePath) -> Option<Result<Endpoint, ApiError>>;

    /// Answers a request for a path at which there is an endpoint.
    fn serve(self: Arc<Self>, path: ResourcePath, request: Request) -> Answer<Result<Response, ApiError>>;
}

/// Answers requests that bring credentials of its own kind, and are not for the API.
pub trait Proxy: fmt::Debug + Send + Sync {
    /// Whether it answers requests for a path.
    fn serves(&self, path: &str) -> bool;

    /// The answer to a request; None where its credentials are not right.
    fn answer(self: Arc<Self>, request: Request) -> Option<Proxied>;
}

/// A request with credentials of another kind.
pub struct Proxied {
    /// In whose name it is, for the [limits](crate::flow_control) of requests that go on for long.
    pub flow: String,
    /// Its answer.
    pub answer: Answer<Response>,
}

impl fmt::Debug for Proxied {
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        form.debug_struct("Proxied").field("flow", &self.flow).finish_non_exhaustive()
    }
}
