//! The work queues of this process.

use std::fmt;
use std::iter;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::metric_set::{Metric, MetricSet, Value, counter, gauge};

const DEPTH: Metric = gauge("kubevirt_workqueue_depth", "Objects that wait for a worker.");
const ADDS: Metric =
    counter("kubevirt_workqueue_adds_total", "How often an object began to wait for a worker.");
const RETRIES: Metric = counter("kubevirt_workqueue_retries_total", "How often a reconciliation failed.");
const UNFINISHED: Metric = gauge(
    "kubevirt_workqueue_unfinished_work_seconds",
    "The times of all reconciliations that have begun and not ended, in sum.",
);
const LONGEST: Metric = gauge(
    "kubevirt_workqueue_longest_running_processor_seconds",
    "The time of the longest reconciliation that has not ended.",
);
const QUEUED: (&str, &str) =
    ("kubevirt_workqueue_queue_duration_seconds", "How long objects waited for a worker.");
const WORKED: (&str, &str) = ("kubevirt_workqueue_work_duration_seconds", "How long reconciliations took.");

/// Those that controllers work on, by the names of the controllers.
static QUEUES: Mutex<Vec<(&str, Weak<dyn Measured>)>> = Mutex::new(Vec::new());

/// A queue that can be measured.
pub(crate) trait Measured: Send + Sync {
    /// What it is now.
    fn measures(&self) -> Measures;
}

/// What is known of a queue.
pub(crate) struct Measures {
    pub(crate) depth: u64,
    /// How long each reconciliation has taken that has not ended.
    pub(crate) running: Vec<Duration>,
    pub(crate) counts: Counts,
}

/// What has happened in a queue.
#[derive(Debug, Clone)]
pub(crate) struct Counts {
    pub(crate) adds: u64,
    pub(crate) retries: u64,
    pub(crate) queued: Histogram,
    pub(crate) worked: Histogram,
}

impl Default for Counts {
    fn default() -> Self {
        // client-go's: from 10 ns to 10 s.
        let buckets = || Histogram::new(exponential_buckets(1e-8, 10.0, 10));
        Self { adds: 0, retries: 0, queued: buckets(), worked: buckets() }
    }
}

fn queues() -> MutexGuard<'static, Vec<(&'static str, Weak<dyn Measured>)>> {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shows a queue for as long as it exists, or until another one has its name.
pub(crate) fn show(name: &'static str, queue: Weak<dyn Measured>) {
    let mut queues = queues();
    queues.retain(|(one, queue)| *one != name && queue.strong_count() > 0);
    queues.push((name, queue));
}

/// Adds the numbers of all queues to a set. The times of their objects are in what is returned.
pub(super) fn add(metric_set: &mut MetricSet) -> Durations {
    let mut durations = Vec::new();
    let queues: Vec<_> =
        queues().iter().filter_map(|(name, queue)| Some((*name, queue.upgrade()?))).collect();
    for (name, queue) in queues {
        let Measures { depth, running, counts } = queue.measures();
        let longest = running.iter().max().copied().unwrap_or_default();
        let part = |duration: Duration| Value::Part(duration.as_secs_f64());
        for (metric, value) in [
            (&DEPTH, Value::Whole(depth)),
            (&ADDS, Value::Whole(counts.adds)),
            (&RETRIES, Value::Whole(counts.retries)),
            (&UNFINISHED, part(running.iter().sum())),
            (&LONGEST, part(longest)),
        ] {
            metric_set.add(metric, vec![("name".into(), name.to_owned())], Some(value));
        }
        durations.push((name, counts));
    }
    Durations(durations)
}

/// How long objects waited and reconciliations took, for each queue.
#[derive(Debug, Default)]
pub(super) struct Durations(Vec<(&'static str, Counts)>);

impl Collector for Durations {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        self.histograms(QUEUED, |counts| &counts.queued, &mut encoder)?;
        self.histograms(WORKED, |counts| &counts.worked, &mut encoder)
    }
}

impl Durations {
    fn histograms(
        &self,
        (name, help): (&str, &str),
        of: fn(&Counts) -> &Histogram,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), fmt::Error> {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (queue, counts) in &self.0 {
            let labels: Vec<_> = iter::once(("name", *queue)).collect();
            of(counts).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::encode_with;
    use super::*;
    use crate::queue::WorkQueue;

    #[tokio::test(start_paused = true)]
    async fn a_queue_shows_what_waits_and_what_is_worked_on() {
        let queue = Arc::new(WorkQueue::new(Duration::from_secs(1), Duration::from_secs(1)));
        queue.show("queues::tests");
        for key in ["a", "b", "c"] {
            queue.add(key);
        }
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!((queue.next().await, queue.next().await), ("a", "b"));
        tokio::time::advance(Duration::from_secs(3)).await;
        queue.add_rate_limited("a");
        queue.done(&"a");
        tokio::time::advance(Duration::from_millis(500)).await;
        let text = || {
            let mut set = MetricSet::default();
            let durations = add(&mut set);
            encode_with(set, durations, &[]).unwrap()
        };
        let shown = text();
        for (metric, value) in [
            ("depth", "1"),
            ("adds_total", "3"),
            ("retries_total", "1"),
            ("unfinished_work_seconds", "3.5"),
            ("longest_running_processor_seconds", "3.5"),
            ("queue_duration_seconds_sum", "4.0"),
            ("queue_duration_seconds_count", "2"),
            ("work_duration_seconds_sum", "3.0"),
        ] {
            let line = format!("kubevirt_workqueue_{metric}{{name=\"queues::tests\"}} {value}");
            assert!(shown.lines().any(|one| one == line), "{line}:\n{shown}");
        }
        drop(queue);
        assert!(!text().contains("queues::tests"), "it is gone");
    }
}
