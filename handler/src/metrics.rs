//! The resource usage of the node's VMs for Prometheus, with KubeVirt's metric names.
//!
//! Values are collected for each request. All launchers are queried in parallel, each with a deadline: a launcher that
//! hangs is missing from the response, is counted there, and does not delay the others. An unknown value has no line.

mod collect;
mod connections;
mod info;
mod panics;
mod phases;
mod vmi;

use std::collections::BTreeSet;
use std::sync::{Arc, atomic::AtomicU64, atomic::Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use vireo_api::v1::VirtualMachineInstance;
use vireo_client::metrics::{self, Metric, MetricSet, Syncs, counter, gauge};
use vireo_proto::launcher::Panic;

use crate::manifests::Key;
use crate::state::StateDir;
use collect::VmiSample;
pub(crate) use connections::{Connections, Endpoint};
use panics::Panics;
use phases::Phases;

/// The metrics of a VM whose launcher answered this.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(
    statistics: vireo_proto::launcher::Statistics,
    of_agent: vireo_proto::launcher::AskAgentResponse,
) {
    let vireo_proto::launcher::AskAgentResponse { filesystems, load, .. } = of_agent;
    let sample =
        VmiSample { vmi: std::sync::Arc::default(), statistics: Some(statistics), filesystems, load };
    let mut metric_set = MetricSet::default();
    vmi::add(&mut metric_set, "node", &sample);
    vireo_client::metrics::encode(metric_set, &[]).expect("text");
}

/// How many requests are served at once.
const SCRAPES: usize = 3;

const READY: Metric = gauge("kubevirt_virt_handler_ready_status", "Whether the node agent works.");
const MISSING: Metric =
    gauge("vireo_metrics_vmis_missing", "Running VMIs whose launchers did not answer this request in time.");
const REFUSED: Metric = counter(
    "vireo_metrics_refused_total",
    "Requests for metrics that were refused because others were served.",
);

/// The metrics of a node that do not come from launchers.
#[derive(Debug)]
pub struct Metrics {
    phases: Phases,
    panics: Panics,
    /// How often its VMIs were reconciled.
    pub(crate) syncs: Syncs,
    others: Mutex<Registry>,
    permits: Semaphore,
    refused: AtomicU64,
    pub(crate) connections: Connections,
    /// VMIs that virt-controller has marked as outdated. What the node publishes has the labels from when they started.
    outdated: Mutex<Outdated>,
}

type Outdated = BTreeSet<Key>;

impl Default for Metrics {
    fn default() -> Self {
        let (phases, panics, mut others) = (Phases::default(), Panics::default(), Registry::default());
        phases.register(&mut others);
        panics.register(&mut others);
        Self {
            phases,
            panics,
            syncs: Syncs::new("virt-handler"),
            others: Mutex::new(others),
            permits: Semaphore::new(SCRAPES),
            refused: AtomicU64::new(0),
            connections: Connections::default(),
            outdated: Mutex::default(),
        }
    }
}

impl Metrics {
    /// Registers metrics of other components of this process.
    pub fn join(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.others.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn outdated(&self) -> MutexGuard<'_, Outdated> {
        self.outdated.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether a VMI is marked as outdated.
    pub(crate) fn set_outdated(&self, key: &Key, is_outdated: bool) {
        let mut outdated = self.outdated();
        match is_outdated {
            true => drop(outdated.insert(key.clone())),
            false => drop(outdated.remove(key)),
        }
    }

    /// Counts a panic of the kernel of a VMI's guest.
    pub(crate) fn count_panic(&self, key: &Key, panic: &Panic) {
        self.panics.count(key, panic);
    }

    /// Records the phase of a VMI, or its removal.
    pub(crate) fn observe_vmi(&self, key: &Key, vmi: Option<&VirtualMachineInstance>) {
        self.phases.observe_vmi(key, vmi, Instant::now());
    }

    /// `GET /metrics` for the VMIs of a node, whose launchers are found by the state directory.
    pub(crate) async fn serve(
        &self,
        node: &str,
        vmis: Vec<Arc<VirtualMachineInstance>>,
        state: &StateDir,
    ) -> Response {
        let Ok(_permit) = self.permits.try_acquire() else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return (StatusCode::SERVICE_UNAVAILABLE, "other requests are being served; try again\n")
                .into_response();
        };
        let (samples, missing) = collect::everything(vmis.clone(), state).await;
        let mut metric_set = of_node(node, &samples, missing, &self.outdated());
        self.connections.add(&mut metric_set, &vmis);
        metric_set.add(&REFUSED, Vec::new(), Some(self.refused.load(Ordering::Relaxed).into()));
        metrics::response(metric_set, &[&self.others.lock().unwrap_or_else(PoisonError::into_inner)])
    }
}

/// The metrics of a node's VMs.
fn of_node(node: &str, samples: &[VmiSample], missing: usize, outdated: &Outdated) -> MetricSet {
    let mut metric_set = MetricSet::default();
    metric_set.add(&READY, Vec::new(), Some(1.into()));
    metrics::add_version(&mut metric_set);
    metric_set.add(
        &MISSING,
        vec![("node".into(), node.to_owned())],
        Some(u64::try_from(missing).unwrap_or(u64::MAX).into()),
    );
    info::add(&mut metric_set, node, samples.iter().map(|sample| &*sample.vmi), outdated);
    for sample in samples {
        vmi::add(&mut metric_set, node, sample);
    }
    metric_set
}

#[cfg(test)]
mod tests;
