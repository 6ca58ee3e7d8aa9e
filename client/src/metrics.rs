//! Metrics of components for Prometheus, with KubeVirt's names.

mod metric_set;
mod process;
pub(crate) mod queues;
mod requests;
mod syncs;
mod vnics;

use std::fmt;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use vireo_api::names::HEALTHZ;

pub use metric_set::{Collected, Labels, Metric, MetricSet, Value, counter, gauge, seconds};
pub use requests::RequestCounter;
pub use syncs::Syncs;
pub use vnics::vnics;

/// The path of the metrics for Prometheus.
pub const METRICS: &str = "/metrics";
/// KubeVirt's value of a label that has none.
pub const NONE: &str = "<none>";

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const VERSION: Metric = gauge("kubevirt_info", "The version of this software.");

/// Adds the version of this software.
pub fn add_version(metric_set: &mut MetricSet) {
    let version = format!("v{}", env!("CARGO_PKG_VERSION"));
    let labels = vec![("goversion".into(), NONE.to_owned()), ("kubeversion".into(), version)];
    metric_set.add(&VERSION, labels, Some(1.into()));
}

/// The response to a request for metrics: those of a set, those of this process, its work queues and its reconciliations of
/// VMIs, and those of registries.
pub fn response(mut metric_set: MetricSet, others: &[&Registry]) -> Response {
    process::add(&mut metric_set);
    syncs::add(&mut metric_set);
    let durations = queues::add(&mut metric_set);
    match encode_with(metric_set, durations, others) {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(fmt::Error) => (StatusCode::INTERNAL_SERVER_ERROR, "no text\n").into_response(),
    }
}

/// The metrics of a set and of registries, as text.
///
/// # Errors
/// When a collector cannot encode its metrics.
pub fn encode(metric_set: MetricSet, others: &[&Registry]) -> Result<String, fmt::Error> {
    encode_with(metric_set, queues::Durations::default(), others)
}

fn encode_with(
    metric_set: MetricSet,
    durations: queues::Durations,
    others: &[&Registry],
) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(metric_set));
    registry.register_collector(Box::new(durations));
    let mut text = String::new();
    text::encode_registry(&mut text, &registry)?;
    for registry in others {
        text::encode_registry(&mut text, registry)?;
    }
    text::encode_eof(&mut text)?;
    Ok(text)
}

/// The routes of a component for Prometheus and for probes. Its own metrics are collected for each request.
pub fn router<S: Clone + Send + Sync + 'static>(
    requests: &RequestCounter,
    collect: impl Fn(&mut MetricSet) + Clone + Send + Sync + 'static,
) -> Router<S> {
    let requests = requests.clone();
    let metrics = async move || {
        let (mut metric_set, mut registry) = (MetricSet::default(), Registry::default());
        add_version(&mut metric_set);
        collect(&mut metric_set);
        requests.register(&mut registry);
        response(metric_set, &[&registry])
    };
    Router::new().route(HEALTHZ, get(async || "ok")).route(METRICS, get(metrics))
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use tower::ServiceExt as _;

    use super::*;

    const LEADS: Metric = gauge("kubevirt_virt_controller_leading_status", "Whether it leads.");

    #[tokio::test]
    async fn a_component_serves_its_metrics_and_its_health() {
        let collect = |set: &mut MetricSet| set.add(&LEADS, Vec::new(), Some(1.into()));
        let router: Router = router(&RequestCounter::default(), collect);
        let ask = async |path: &str| {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            let code = response.status().as_u16();
            let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
            (code, String::from_utf8(body.to_vec()).unwrap())
        };
        assert_eq!(ask(HEALTHZ).await, (200, "ok".to_owned()));
        let (code, text) = ask(METRICS).await;
        assert_eq!(code, 200);
        for line in [
            "kubevirt_virt_controller_leading_status 1",
            &format!(
                "kubevirt_info{{goversion=\"<none>\",kubeversion=\"v{}\"}} 1",
                env!("CARGO_PKG_VERSION")
            ),
            "# EOF",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
        assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
        assert_eq!(ask("/apis").await.0, 404);
    }
}
