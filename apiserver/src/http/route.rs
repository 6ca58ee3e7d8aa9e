//! What a request is about among what is served.

use std::sync::Arc;

use super::ApiError;
use super::health::Endpoint;
use super::request_info::{RequestInfo, ResourcePath};
use super::review::{self, Review};
use super::service::{self, ApiService};

use crate::resource::Resource;
use crate::served_resources::ServedResources;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    Root,
    Version,
    /// Whether the server is well, or one check of that.
    Health(Endpoint, Option<String>),
    /// What Prometheus reads.
    Metrics,
    /// `/api`
    Core,
    /// `/apis`
    Groups,
    Group(String),
    Resources(String, String),
    OpenApiV2,
    OpenApiV3Index,
    OpenApiV3(String),
    Object(Object),
    /// The number of replicas of an object.
    Scale(Object),
    /// The assignment of a pod to a node. The pod is not named where its Binding names it.
    Binding(Object),
    /// The eviction of a pod.
    Eviction(Object),
    /// A token for an account.
    Token(Object),
    /// A review, in a namespace if it is one of those.
    Review(&'static Review, Option<String>),
    /// What a service answers.
    Service(Delegated),
}

/// Objects of a resource: all, those of a namespace, or one.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) resource: Arc<Resource>,
    /// Absent: of all namespaces, or of none.
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    /// Its status apart.
    pub(super) status: Option<Status>,
}

/// A path at which a service has an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Delegated {
    /// Which of the server's services.
    pub(super) service: usize,
    pub(super) path: ResourcePath,
    /// Whether it is a connection, which goes on for as long as its client wants.
    pub(super) is_connection: bool,
}

/// The `/status` of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Status;

impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.resource, &other.resource)
            && (&self.namespace, &self.name, self.status) == (&other.namespace, &other.name, other.status)
    }
}

impl Eq for Object {}

impl Object {
    /// The key of one object.
    pub(super) fn key(&self, name: &str) -> crate::store::Key {
        self.resource.key(self.namespace.as_deref().unwrap_or_default(), name)
    }
}

impl Route {
    /// What a request is about among what is served.
    pub(super) fn of(
        info: &RequestInfo,
        served: &ServedResources,
        services: &[Arc<dyn ApiService>],
    ) -> Result<Self, ApiError> {
        let Some(path) = info.resource() else {
            return Self::document(&info.segments()).ok_or_else(ApiError::path_not_found);
        };
        if let Some(review) = review::at(path) {
            return Ok(Self::Review(review, path.namespace.clone()));
        }
        for (number, service) in services.iter().enumerate() {
            if let Some(endpoint) = service.endpoint(path) {
                let is_connection = endpoint? == service::Endpoint::Connection;
                return Ok(Self::Service(Delegated { service: number, path: path.clone(), is_connection }));
            }
        }
        Ok(match path.subresource().as_slice() {
            ["token"] if is_core(path, "serviceaccounts") => Self::Token(object(served, path, None)?),
            ["binding"] if is_core(path, "pods") => Self::Binding(object(served, path, None)?),
            ["eviction"] if is_core(path, "pods") => Self::Eviction(object(served, path, None)?),
            [] if is_core(path, "bindings") && path.name.is_none() && path.namespace.is_some() => {
                let pods = ResourcePath { resource: "pods".to_owned(), ..path.clone() };
                Self::Binding(object(served, &pods, None)?)
            }
            ["scale"] if !path.group.is_empty() => Self::Scale(scaled(served, path)?),
            ["status"] => Self::Object(object(served, path, Some(Status))?),
            [] => Self::Object(object(served, path, None)?),
            _ => return Err(ApiError::path_not_found()),
        })
    }

    fn document(segments: &[&str]) -> Option<Self> {
        Some(match segments {
            [] => Self::Root,
            ["version"] => Self::Version,
            [name, check @ ..]
                if check.len() < 2
                    && let Some(endpoint) = Endpoint::named(name) =>
            {
                Self::Health(endpoint, check.first().map(|check| (*check).to_owned()))
            }
            ["metrics"] => Self::Metrics,
            ["openapi", "v2"] => Self::OpenApiV2,
            ["openapi", "v3"] => Self::OpenApiV3Index,
            ["openapi", "v3", group_version @ ..] => Self::OpenApiV3(group_version.join("/")),
            ["api"] => Self::Core,
            ["apis"] => Self::Groups,
            ["apis", group] => Self::Group((*group).to_owned()),
            ["api", version] => Self::Resources(String::new(), (*version).to_owned()),
            ["apis", group, version] => Self::Resources((*group).to_owned(), (*version).to_owned()),
            _ => return None,
        })
    }
}

/// Whether a path is below this resource of the core group.
fn is_core(path: &ResourcePath, resource: &str) -> bool {
    path.group.is_empty() && path.resource == resource
}

fn object(served: &ServedResources, path: &ResourcePath, status: Option<Status>) -> Result<Object, ApiError> {
    let resource =
        served.at(&path.group, &path.version, &path.resource).ok_or_else(ApiError::path_not_found)?;
    let in_scope = match (resource.namespaced, &path.namespace, &path.name) {
        (true, None, Some(_)) => false,
        (namespaced, namespace, _) => namespaced || namespace.is_none(),
    };
    if !in_scope || (status.is_some() && !resource.status) {
        return Err(ApiError::path_not_found());
    }
    let (namespace, name) = (path.namespace.clone(), path.name.clone());
    Ok(Object { resource: Arc::clone(resource), namespace, name, status })
}

fn scaled(served: &ServedResources, path: &ResourcePath) -> Result<Object, ApiError> {
    let object = object(served, path, None)?;
    if object.resource.scale.is_some() { Ok(object) } else { Err(ApiError::path_not_found()) }
}

#[cfg(test)]
mod tests {
    use axum::http::Method;

    use super::*;
    use crate::http::query::Query;

    fn parse(path: &str) -> Result<Route, ApiError> {
        let info = RequestInfo::parse(&Method::GET, path, &Query::default())?;
        Route::of(&info, &ServedResources::default(), &[])
    }

    fn fields(path: &str) -> Option<(String, Option<String>, Option<String>, bool)> {
        match parse(path) {
            Ok(Route::Object(object)) => {
                Some((object.resource.name(), object.namespace, object.name, object.status.is_some()))
            }
            _ => None,
        }
    }

    fn of(
        resource: &str,
        namespace: &str,
        name: &str,
        status: bool,
    ) -> Option<(String, Option<String>, Option<String>, bool)> {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Some((resource.to_owned(), some(namespace), some(name), status))
    }

    #[test]
    fn objects_are_found_by_their_paths() {
        for (path, expected) in [
            ("/api/v1/namespaces", of("namespaces", "", "", false)),
            ("/api/v1/namespaces/a", of("namespaces", "", "a", false)),
            ("/api/v1/namespaces/a/status", of("namespaces", "", "a", true)),
            ("/api/v1/namespaces/a/configmaps", of("configmaps", "a", "", false)),
            ("/api/v1/namespaces/a/configmaps/b", of("configmaps", "a", "b", false)),
            ("/api/v1/configmaps", of("configmaps", "", "", false)),
            ("/api/v1/nodes/n/status", of("nodes", "", "n", true)),
            ("/apis/coordination.k8s.io/v1/leases/", of("leases.coordination.k8s.io", "", "", false)),
            ("/api/v1/namespaces/a/configmaps/b%2Dc", of("configmaps", "a", "b-c", false)),
        ] {
            assert_eq!(fields(path), expected, "{path}");
        }
    }

    #[test]
    fn bindings_and_evictions_are_those_of_pods() {
        let pod = |target: Result<Route, ApiError>| match target {
            Ok(Route::Binding(pod) | Route::Eviction(pod)) => Some((pod.resource.name(), pod.name)),
            _ => None,
        };
        let named = |name: Option<&str>| Some(("pods".to_owned(), name.map(str::to_owned)));
        for (path, expected) in [
            ("/api/v1/namespaces/a/pods/b/binding", named(Some("b"))),
            ("/api/v1/namespaces/a/pods/b/eviction", named(Some("b"))),
            ("/api/v1/namespaces/a/bindings", named(None)),
            ("/api/v1/namespaces/a/bindings/b", None),
            ("/api/v1/bindings", None),
            ("/api/v1/namespaces/a/configmaps/b/eviction", None),
            ("/apis/policy/v1/namespaces/a/pods/b/eviction", None),
        ] {
            assert_eq!(pod(parse(path)), expected, "{path}");
        }
    }

    #[test]
    fn unserved_paths_are_not_found() {
        for path in [
            "/api/v1/podtemplates",
            "/api/v2/configmaps",
            "/api/v1/configmaps/b",
            "/api/v1/namespaces/a/nodes",
            "/api/v1/namespaces/a/configmaps/b/status",
            "/api/v1/namespaces/a/configmaps/b/c/d",
            "/api/v1/namespaces//configmaps",
            "/api/v1/namespaces/a/configmaps/..",
            "/api/v1/namespaces/a/configmaps/%2e%2e",
            "/api/v1/namespaces/a/configmaps/x%2fy",
            "/api/v1/namespaces/a/configmaps/%ff",
            "/api/v1/namespaces/a/configmaps/x%00",
            "/apis/coordination.k8s.io/v1/namespaces/a/leases/b/scale",
            "/apis/coordination.k8s.io/v1/namespaces/a/leases/scale/b/scale/c",
            "/../etc/passwd",
            "//version",
            "nothing",
        ] {
            assert!(parse(path).is_err(), "{path}");
        }
    }
}
