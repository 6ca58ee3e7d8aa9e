//! What is measured of requests and of the store, by the names that a Kubernetes API server has for it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::query::Query;
use super::route::Route;
use crate::flow_control::{FlowControl, Load};
use crate::store::Store;

const BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1., 5., 30.];

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answered {
    verb: &'static str,
    resource: String,
    code: u16,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Took {
    verb: &'static str,
    resource: String,
}

/// What is counted of requests.
pub struct Measures {
    answered: Family<Answered, Counter>,
    took: Family<Took, Histogram, fn() -> Histogram>,
    lasting: Family<Took, Gauge>,
}

impl fmt::Debug for Measures {
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        form.debug_struct("Measures").finish_non_exhaustive()
    }
}

impl Default for Measures {
    fn default() -> Self {
        let took: fn() -> Histogram = || Histogram::new(BUCKETS);
        Self {
            answered: Family::default(),
            took: Family::new_with_constructor(took),
            lasting: Family::default(),
        }
    }
}

/// What a request asks for: a verb in capital letters, and a resource, empty where there is none.
#[derive(Debug, Clone)]
pub(super) struct RequestLabels {
    verb: &'static str,
    resource: String,
}

impl RequestLabels {
    /// As far as that is known before its path is read.
    pub(super) fn new(request: &Request) -> Self {
        let verb = match *request.method() {
            Method::GET | Method::HEAD => "GET",
            Method::POST => "POST",
            Method::PUT => "PUT",
            Method::PATCH => "PATCH",
            Method::DELETE => "DELETE",
            _ => "OTHER",
        };
        Self { verb, resource: String::new() }
    }

    /// Takes note of what the path and the query mean.
    pub(super) fn means(&mut self, target: &Route, query: &Query) {
        match target {
            Route::Object(object) => {
                self.resource = object.resource.name();
                self.verb = match (self.verb, &object.name) {
                    ("GET", _) if query.watch => "WATCH",
                    ("GET", None) => "LIST",
                    ("DELETE", None) => "DELETECOLLECTION",
                    (verb, _) => verb,
                };
            }
            Route::Scale(object) | Route::Binding(object) | Route::Eviction(object) => {
                self.resource = object.resource.name()
            }
            Route::Service(service) if service.is_connection => self.verb = "CONNECT",
            _ => {}
        }
    }

    /// Whether the request takes as long as its client wants.
    pub(super) fn is_long_running(&self) -> bool {
        matches!(self.verb, "CONNECT" | "WATCH")
    }
}

/// A request that goes on after its answer has begun; counted until this goes.
#[derive(Debug)]
pub(super) struct Lasting(Gauge);

impl Drop for Lasting {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Measures {
    /// Shows these, how many objects there are, and how many requests go on.
    pub fn register(&self, registry: &mut Registry, store: Arc<Store>, flow_control: FlowControl) {
        registry.register("apiserver_request", "Requests that were answered", self.answered.clone());
        let help = "How long answers took to begin, in seconds";
        registry.register("apiserver_request_duration_seconds", help, self.took.clone());
        registry.register("apiserver_longrunning_requests", "Watches that go on", self.lasting.clone());
        registry.register_collector(Box::new(Stored(store)));
        registry.register_collector(Box::new(InFlight(flow_control)));
    }

    pub(super) fn answered(&self, about: RequestLabels, code: StatusCode, took: Duration) {
        let is_long_running = about.is_long_running();
        let RequestLabels { verb, resource } = about;
        if !is_long_running {
            let took_by = Took { verb, resource: resource.clone() };
            self.took.get_or_create(&took_by).observe(took.as_secs_f64());
        }
        self.answered.get_or_create(&Answered { verb, resource, code: code.as_u16() }).inc();
    }

    /// Counts a watch.
    pub(super) fn watching(&self, resource: String) -> Lasting {
        let gauge = self.lasting.get_or_create_owned(&Took { verb: "WATCH", resource });
        gauge.inc();
        Lasting(gauge)
    }
}

#[derive(Debug)]
struct Stored(Arc<Store>);

impl Collector for Stored {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let (name, help) = ("apiserver_storage_objects", "Objects in the store.");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (resource, count) in self.0.counts() {
            ConstGauge::new(count).encode(family.encode_family(&[("resource", resource)])?)?;
        }
        let (name, help) = ("vireo_unreadable_objects", "Objects of the store that could not be read.");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let mut unreadable: BTreeMap<&str, u64> = BTreeMap::new();
        for key in self.0.unreadable() {
            *unreadable.entry(&key.resource).or_default() += 1;
        }
        for (resource, count) in unreadable {
            ConstGauge::new(count).encode(family.encode_family(&[("resource", resource)])?)?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct InFlight(FlowControl);

type NumberOf = fn(&Load) -> usize;

impl Collector for InFlight {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let loads = self.0.load();
        let numbers: [(&str, &str, NumberOf); 3] = [
            ("executing_requests", "Requests that are executed.", |load| load.executing),
            ("inqueue_requests", "Requests that wait for a seat.", |load| load.waiting),
            ("longrunning_requests", "Requests that go on as long as clients want.", |load| {
                load.long_running
            }),
        ];
        for (name, help, number) in numbers {
            let name = format!("apiserver_flowcontrol_current_{name}");
            let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
            for load in &loads {
                let count = u64::try_from(number(load)).unwrap_or(u64::MAX);
                ConstGauge::new(count)
                    .encode(family.encode_family(&[("priority_level", load.level.name())])?)?;
            }
        }
        let (name, help) =
            ("apiserver_flowcontrol_rejected_requests", "Requests that were answered with 429.");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for load in &loads {
            let counter = ConstCounter::new(load.rejected);
            counter.encode(family.encode_family(&[("priority_level", load.level.name())])?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;
    use crate::http::request_info::RequestInfo;
    use crate::served_resources::ServedResources;

    #[test]
    fn verbs_are_those_of_an_api_server() {
        for (method, path, query, verb, resource) in [
            ("GET", "/api/v1/namespaces/a/configmaps", "", "LIST", "configmaps"),
            ("GET", "/api/v1/namespaces/a/configmaps", "watch=1", "WATCH", "configmaps"),
            ("HEAD", "/api/v1/namespaces/a/configmaps/b", "", "GET", "configmaps"),
            ("DELETE", "/api/v1/namespaces/a/configmaps", "", "DELETECOLLECTION", "configmaps"),
            ("DELETE", "/api/v1/namespaces/a/configmaps/b", "", "DELETE", "configmaps"),
            ("PATCH", "/api/v1/namespaces/a/configmaps/b", "", "PATCH", "configmaps"),
            ("BREW", "/version", "", "OTHER", ""),
        ] {
            let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
            let mut about = RequestLabels::new(&request);
            let query = Query::parse(query).unwrap();
            let info = RequestInfo::parse(request.method(), path, &query).unwrap();
            about.means(&Route::of(&info, &ServedResources::default(), &[]).unwrap(), &query);
            assert_eq!((about.verb, about.resource.as_str()), (verb, resource), "{method} {path}?{query:?}");
        }
    }
}
