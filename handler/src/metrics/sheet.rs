use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Names and values.
pub(super) type Labels = Vec<(Cow<'static, str>, String)>;

/// What a line says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metric {
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

/// Something that only grows. Its name ends in `_total`.
pub(super) const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, help }
}

/// Something that may also shrink.
pub(super) const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, help }
}

/// A number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    Whole(u64),
    Part(f64),
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

/// Nanoseconds as seconds.
pub(super) fn seconds(nanoseconds: u64) -> Value {
    Value::Part(std::time::Duration::from_nanos(nanoseconds).as_secs_f64())
}

/// Everything that is known at one moment, in the order of names.
#[derive(Debug, Default)]
pub(super) struct Sheet(BTreeMap<&'static str, (Metric, Samples)>);

type Samples = Vec<(Labels, Value)>;

impl Sheet {
    /// Notes a value, if it is known.
    pub(super) fn add(&mut self, metric: &Metric, labels: Labels, value: Option<Value>) {
        if let Some(value) = value {
            self.0.entry(metric.name).or_insert_with(|| (*metric, Vec::new())).1.push((labels, value));
        }
    }
}

impl Collector for Sheet {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for (metric, samples) in self.0.values() {
            // The encoder puts the end on itself.
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
