//! What the node's machines have used, as Prometheus reads it; named as KubeVirt's.
//!
//! Nobody looks before somebody asks. Each launcher is asked at once and has a deadline: one that hangs, or whose disk
//! does, is missing from the answer and counted there, and holds up nobody else. What is not known has no line.

mod collect;
mod info;
mod machine;
mod phases;
mod process;
mod sheet;

use std::sync::{Arc, atomic::AtomicU64, atomic::Ordering};
use std::sync::{Mutex, PoisonError};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use vireo_api::v1::VirtualMachineInstance;

use crate::manifests::Key;
use crate::node::Node;
use collect::Seen;
use phases::Phases;
use sheet::{Metric, Sheet, counter, gauge};

/// How many may ask at once.
const SCRAPES: usize = 3;
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const READY: Metric = gauge("kubevirt_virt_handler_ready_status", "Whether the node agent works.");
const VERSION: Metric = gauge("kubevirt_info", "The version of this software.");
const MISSING: Metric =
    gauge("vireo_metrics_vmis_missing", "Running VMIs whose launchers did not answer this request in time.");
const REFUSED: Metric = counter(
    "vireo_metrics_refused_total",
    "Requests for metrics that were refused because others were served.",
);

/// What is measured on a node, beside what launchers are asked for.
#[derive(Debug)]
pub struct Metrics {
    phases: Phases,
    others: Mutex<Registry>,
    places: Semaphore,
    refused: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Self {
        let (phases, mut others) = (Phases::default(), Registry::default());
        phases.register(&mut others);
        Self {
            phases,
            others: Mutex::new(others),
            places: Semaphore::new(SCRAPES),
            refused: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    /// Adds what others of this process measure.
    pub fn join(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.others.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Takes note of the phase that a VMI is in, or that it is no more.
    pub(crate) fn see(&self, key: &Key, vmi: Option<&VirtualMachineInstance>) {
        self.phases.see(key, vmi, Instant::now());
    }

    fn text(&self, sheet: Sheet) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(sheet));
        let mut text = String::new();
        text::encode_registry(&mut text, &registry)?;
        text::encode_registry(&mut text, &self.others.lock().unwrap_or_else(PoisonError::into_inner))?;
        text::encode_eof(&mut text)?;
        Ok(text)
    }
}

/// `GET /metrics`
pub(crate) async fn serve(State(node): State<Arc<Node>>) -> Response {
    let metrics = &node.metrics;
    let Ok(_place) = metrics.places.try_acquire() else {
        metrics.refused.fetch_add(1, Ordering::Relaxed);
        return (StatusCode::SERVICE_UNAVAILABLE, "others are asking; try again\n").into_response();
    };
    let (seen, missing) = collect::everything(&node).await;
    let mut sheet = of_node(&node.settings.node_name, &seen, missing);
    process::add(&mut sheet);
    sheet.add(&REFUSED, Vec::new(), Some(metrics.refused.load(Ordering::Relaxed).into()));
    match metrics.text(sheet) {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(std::fmt::Error) => (StatusCode::INTERNAL_SERVER_ERROR, "no text\n").into_response(),
    }
}

/// What is known of a node's machines.
fn of_node(node: &str, seen: &[Seen], missing: usize) -> Sheet {
    let mut sheet = Sheet::default();
    sheet.add(&READY, Vec::new(), Some(1.into()));
    let version = format!("v{}", env!("CARGO_PKG_VERSION"));
    let version = vec![("goversion".into(), info::NONE.to_owned()), ("kubeversion".into(), version)];
    sheet.add(&VERSION, version, Some(1.into()));
    sheet.add(
        &MISSING,
        vec![("node".into(), node.to_owned())],
        Some(u64::try_from(missing).unwrap_or(u64::MAX).into()),
    );
    info::add(&mut sheet, node, seen.iter().map(|seen| &*seen.vmi));
    for seen in seen {
        machine::add(&mut sheet, node, seen);
    }
    sheet
}

#[cfg(test)]
mod tests;
