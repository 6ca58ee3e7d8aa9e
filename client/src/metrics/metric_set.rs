use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// The labels of a sample.
pub type Labels = Vec<(Cow<'static, str>, String)>;

/// A metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// As it is printed.
    name: &'static str,
    kind: Kind,
    help: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
}

/// A counter. Its name ends in `_total`.
pub const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, help }
}

/// A gauge.
pub const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, help }
}

/// The value of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    Whole(u64),
    Part(f64),
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

/// Nanoseconds as seconds.
pub fn seconds(nanoseconds: u64) -> Value {
    Value::Part(std::time::Duration::from_nanos(nanoseconds).as_secs_f64())
}

/// The samples of one request, in the order of metric names.
#[derive(Debug, Default)]
pub struct MetricSet(BTreeMap<&'static str, (Metric, Samples)>);

type Samples = Vec<(Labels, Value)>;

impl MetricSet {
    /// Adds a sample, if its value is known.
    pub fn add(&mut self, metric: &Metric, labels: Labels, value: Option<Value>) {
        if let Some(value) = value {
            self.0.entry(metric.name).or_insert_with(|| (*metric, Vec::new())).1.push((labels, value));
        }
    }
}

/// Collects metrics anew for each request.
pub struct Collected<F>(pub F);

impl<F> fmt::Debug for Collected<F> {
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        form.debug_struct("Collected").finish_non_exhaustive()
    }
}

impl<F: Fn(&mut MetricSet) + Send + Sync + 'static> Collector for Collected<F> {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let mut metric_set = MetricSet::default();
        (self.0)(&mut metric_set);
        metric_set.encode(encoder)
    }
}

impl Collector for MetricSet {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for (metric, samples) in self.0.values() {
            // The encoder adds the suffix itself.
            let name = metric.name.strip_suffix("_total").unwrap_or(metric.name);
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(name, metric.help, None, kind)?;
            for (labels, value) in samples {
                if labels.is_empty() {
                    line(metric.kind, *value, family)?;
                    break;
                }
                line(metric.kind, *value, family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

fn line(kind: Kind, value: Value, encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    match (kind, value) {
        (Kind::Counter, Value::Whole(number)) => ConstCounter::new(number).encode(encoder),
        (Kind::Counter, Value::Part(number)) => ConstCounter::new(number).encode(encoder),
        (Kind::Gauge, Value::Whole(number)) => ConstGauge::new(number).encode(encoder),
        (Kind::Gauge, Value::Part(number)) => ConstGauge::new(number).encode(encoder),
    }
}
