//! Writes the metrics that a guest reads, every 5 seconds while it runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument as _, Span, debug};
use vireo_api::spec::{NATIVE, Vm, VolumeSource};
use vireo_proto::launcher::{Statistics, hypervisor};

use crate::downward_metrics::{HostMetrics, Names, document, update};
use crate::launcher::link::{chain, statistics};
use crate::node::Node;
use crate::storage::{metrics_disk, metrics_port};

/// KubeVirt's.
const INTERVAL: Duration = Duration::from_secs(5);

/// Runs until it is dropped.
#[derive(Debug)]
pub(super) struct MetricsWriter {
    /// Absent where the guest reads none.
    _task: Option<AbortOnDropHandle<()>>,
}

/// The files that the guest of a VM reads metrics from, in the directory of its disks.
pub(super) fn files(vm: &Vm, directory: &Path) -> Vec<PathBuf> {
    let disks = vm.disks().iter().filter(|disk| *disk.source() == VolumeSource::DownwardMetrics);
    let mut files: Vec<PathBuf> = disks.map(|disk| metrics_disk(directory, disk.name())).collect();
    files.extend(vm.has_metrics_port().then(|| metrics_port(directory)));
    files
}

impl MetricsWriter {
    /// Starts for the VM whose launcher serves `socket`. Does nothing without files.
    pub(super) fn start(
        node: &Arc<Node>,
        files: Vec<PathBuf>,
        socket: PathBuf,
        kind: hypervisor::Kind,
    ) -> Self {
        if files.is_empty() {
            return Self { _task: None };
        }
        let product = if kind == hypervisor::Kind::Native { NATIVE } else { "qemu" };
        let node = node.settings.node_name.clone();
        let run = async move {
            let mut ticks = interval(INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                match statistics(&socket).await {
                    Ok(vm) => write(&files, &node, product, vm).await,
                    Err(error) => debug!(error = chain(&error), "no statistics for the guest's metrics"),
                }
            }
        };
        Self { _task: Some(AbortOnDropHandle::new(tokio::spawn(run.instrument(Span::current())))) }
    }
}

async fn write(files: &[PathBuf], node: &str, product: &'static str, vm: Statistics) {
    let (files, node) = (files.to_vec(), node.to_owned());
    let write = move || {
        let host = HostMetrics::read()?;
        let text = document(Names { node: &node, product }, &host, &vm);
        files.iter().try_for_each(|file| update(file, &text))
    };
    match tokio::task::spawn_blocking(write).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "cannot write the guest's metrics"),
        Err(error) => debug!(%error, "writing the guest's metrics broke off"),
    }
}
