//! Counts the requests to the API server, and measures how long they take.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::http::{Method, Request, Response, Uri};
use futures_util::future::BoxFuture;
use kube::client::Body;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tower::{Layer, Service};

/// The code of a request without a response; client-go's.
const NO_RESPONSE: &str = "<error>";

/// What is known of a request before its response; the host is that of the API server.
#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    code: String,
    method: String,
    host: String,
    resource: String,
    verb: &'static str,
}

/// What requests have in common whose latencies are measured together. The URL has the names of its variables in their
/// places, escaped, as client-go has it.
#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LatencyLabels {
    verb: String,
    url: String,
}

/// KubeVirt's.
const BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2., 3., 4., 5., 6., 8., 10., 15., 20., 30.,
    45., 60.,
];

/// How many requests there were, by their responses, and how long they took.
#[derive(Debug, Clone)]
pub struct RequestCounter {
    counts: Family<RequestLabels, Counter>,
    latencies: Family<LatencyLabels, Histogram, fn() -> Histogram>,
}

impl Default for RequestCounter {
    fn default() -> Self {
        let latencies: fn() -> Histogram = || Histogram::new(BUCKETS);
        Self { counts: Family::default(), latencies: Family::new_with_constructor(latencies) }
    }
}

impl RequestCounter {
    /// Has a registry show them.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Requests to the API server, by the codes of their responses";
        registry.register("kubevirt_rest_client_requests", help, self.counts.clone());
        let help = "How long requests to the API server took, without watches";
        registry.register("kubevirt_rest_client_request_latency_seconds", help, self.latencies.clone());
    }

    /// Counts the requests of a client to an API server.
    pub(crate) fn layer(&self, host: &str) -> CounterLayer {
        CounterLayer { counter: self.clone(), host: host.into() }
    }
}

/// Counts the requests of a client.
pub(crate) struct CounterLayer {
    counter: RequestCounter,
    host: Arc<str>,
}

impl<S> Layer<S> for CounterLayer {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, counter: self.counter.clone(), host: Arc::clone(&self.host) }
    }
}

/// A client whose requests are counted.
pub(crate) struct Counted<S> {
    inner: S,
    counter: RequestCounter,
    host: Arc<str>,
}

impl<S, B> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (resource, verb) = operation(request.method(), request.uri());
        let mut labels = RequestLabels {
            code: NO_RESPONSE.to_owned(),
            method: request.method().to_string(),
            host: self.host.to_string(),
            resource,
            verb,
        };
        // The response to a watch is there at once, and does not end.
        let measured = (verb != "WATCH").then(|| LatencyLabels {
            verb: labels.method.clone(),
            url: format!("https://{}{}", self.host, template(request.uri().path())),
        });
        let (counter, begin, response) = (self.counter.clone(), Instant::now(), self.inner.call(request));
        Box::pin(async move {
            let response = response.await;
            if let Some(labels) = measured {
                counter.latencies.get_or_create(&labels).observe(begin.elapsed().as_secs_f64());
            }
            if let Ok(response) = &response {
                labels.code = response.status().as_u16().to_string();
            }
            counter.counts.get_or_create(&labels).inc();
            response
        })
    }
}

/// The path of a request with the names of its variables for their values.
fn template(path: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    // The first one is empty.
    let version = match parts.get(1) {
        Some(&"api") => 2,
        Some(&"apis") => 3,
        _ => return path.to_owned(),
    };
    let is_namespaced = parts.get(version + 1) == Some(&"namespaces") && parts.len() > version + 3;
    if is_namespaced && let Some(namespace) = parts.get_mut(version + 2) {
        *namespace = "%7Bnamespace%7D";
    }
    let name = if is_namespaced { version + 4 } else { version + 2 };
    if let Some(name) = parts.get_mut(name) {
        *name = "%7Bname%7D";
    }
    parts.join("/")
}

/// The resource and the verb of a request, as KubeVirt names them; no resource where the path is of a document.
fn operation(method: &Method, uri: &Uri) -> (String, &'static str) {
    let mut segments = uri.path().trim_matches('/').split('/');
    let version = match segments.next() {
        Some("api") => segments.next(),
        Some("apis") => segments.next().and_then(|_| segments.next()),
        _ => None,
    };
    let rest: Vec<&str> = version.map_or_else(Vec::new, |_| segments.collect());
    let path = match rest.as_slice() {
        ["namespaces", _, path @ ..] if !path.is_empty() => path,
        path => path,
    };
    let is_watch =
        || uri.query().unwrap_or_default().split('&').any(|one| matches!(one, "watch=true" | "watch=1"));
    let verb = match *method {
        Method::GET if is_watch() => "WATCH",
        Method::GET if path.len() == 1 => "LIST",
        Method::GET => "GET",
        Method::POST => "CREATE",
        Method::PUT => "UPDATE",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "OTHER",
    };
    (path.first().copied().unwrap_or_default().to_owned(), verb)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_has_a_resource_and_a_verb() {
        for (method, uri, resource, verb) in [
            (Method::GET, "/api/v1/namespaces/a/pods/b", "pods", "GET"),
            (Method::GET, "/api/v1/namespaces/a/pods?limit=5", "pods", "LIST"),
            (Method::GET, "/api/v1/nodes?&watch=true&resourceVersion=1", "nodes", "WATCH"),
            (Method::GET, "/api/v1/namespaces/a", "namespaces", "GET"),
            (Method::GET, "/api/v1/namespaces", "namespaces", "LIST"),
            (Method::POST, "/api/v1/namespaces/a/pods/b/eviction", "pods", "CREATE"),
            (
                Method::PATCH,
                "/apis/kubevirt.io/v1/namespaces/a/virtualmachines/b/status",
                "virtualmachines",
                "PATCH",
            ),
            (Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", "leases", "UPDATE"),
            (
                Method::DELETE,
                "/apis/apps/v1/namespaces/a/controllerrevisions/b",
                "controllerrevisions",
                "DELETE",
            ),
            (Method::GET, "/apis", "", "GET"),
            (Method::GET, "/version", "", "GET"),
        ] {
            let found = operation(&method, &uri.parse().unwrap());
            assert_eq!(found, (resource.to_owned(), verb), "{method} {uri}");
        }
    }

    #[test]
    fn requests_for_objects_of_a_resource_have_one_url() {
        for (path, expected) in [
            ("/api/v1/namespaces/a/pods/b", "/api/v1/namespaces/%7Bnamespace%7D/pods/%7Bname%7D"),
            (
                "/apis/kubevirt.io/v1/namespaces/a/virtualmachines/b/status",
                "/apis/kubevirt.io/v1/namespaces/%7Bnamespace%7D/virtualmachines/%7Bname%7D/status",
            ),
            (
                "/apis/kubevirt.io/v1/namespaces/a/virtualmachines",
                "/apis/kubevirt.io/v1/namespaces/%7Bnamespace%7D/virtualmachines",
            ),
            ("/apis/kubevirt.io/v1/virtualmachines", "/apis/kubevirt.io/v1/virtualmachines"),
            ("/api/v1/nodes/a", "/api/v1/nodes/%7Bname%7D"),
            ("/api/v1/namespaces/a", "/api/v1/namespaces/%7Bname%7D"),
            ("/version", "/version"),
            ("/apis", "/apis"),
        ] {
            assert_eq!(template(path), expected);
        }
    }

    #[tokio::test]
    async fn requests_are_counted_by_their_responses() {
        let counter = RequestCounter::default();
        let layer = counter.layer("api:6443");
        let mut service =
            layer.layer(tower::service_fn(async |request: Request<Body>| match request.uri().path() {
                "/api/v1/nodes" => Ok(Response::builder().status(403).body(()).unwrap()),
                _ => Err(()),
            }));
        for path in ["/api/v1/nodes", "/api/v1/nodes", "/api/v1/pods"] {
            let _ = service.call(Request::get(path).body(Body::empty()).unwrap()).await;
        }
        let mut registry = Registry::default();
        counter.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            r#"kubevirt_rest_client_requests_total{code="403",method="GET",host="api:6443",resource="nodes",verb="LIST"} 2"#,
            r#"kubevirt_rest_client_requests_total{code="<error>",method="GET",host="api:6443",resource="pods",verb="LIST"} 1"#,
            r#"kubevirt_rest_client_request_latency_seconds_count{verb="GET",url="https://api:6443/api/v1/nodes"} 2"#,
        ] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
    }
}
