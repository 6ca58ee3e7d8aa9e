use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::metric_set::{Metric, MetricSet, counter};

const SYNCS: Metric = counter("kubevirt_vmi_sync_total", "How often a component has reconciled a VMI.");

/// Component, namespace and name.
type Key = (&'static str, String, String);

/// Those of all components of this process, which have one metric.
static COUNTS: Mutex<BTreeMap<Key, u64>> = Mutex::new(BTreeMap::new());

fn counts() -> MutexGuard<'static, BTreeMap<Key, u64>> {
    COUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts how often a component of this process reconciles each of its VMIs.
#[derive(Debug, Clone, Copy)]
pub struct Syncs(&'static str);

impl Syncs {
    /// Those of a component.
    pub const fn new(component: &'static str) -> Self {
        Self(component)
    }

    fn key(self, namespace: &str, name: &str) -> Key {
        (self.0, namespace.to_owned(), name.to_owned())
    }

    /// Counts a reconciliation of a VMI.
    pub fn count(self, namespace: &str, name: &str) {
        *counts().entry(self.key(namespace, name)).or_default() += 1;
    }

    /// Removes the count of a VMI that is gone.
    pub fn forget(self, namespace: &str, name: &str) {
        counts().remove(&self.key(namespace, name));
    }
}

/// Adds the counts of all components to a set.
pub(super) fn add(metric_set: &mut MetricSet) {
    for ((component, namespace, name), count) in &*counts() {
        let labels = vec![
            ("controller".into(), (*component).to_owned()),
            ("namespace".into(), namespace.clone()),
            ("name".into(), name.clone()),
        ];
        metric_set.add(&SYNCS, labels, Some((*count).into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::encode;

    #[test]
    fn reconciliations_are_counted_while_there_is_a_vmi() {
        let (handler, controller) = (Syncs::new("virt-handler"), Syncs::new("virt-controller"));
        for (namespace, name) in [("syncs", "one"), ("syncs", "one"), ("syncs", "two")] {
            handler.count(namespace, name);
        }
        controller.count("syncs", "one");
        handler.forget("syncs", "two");
        let mut set = MetricSet::default();
        add(&mut set);
        let text = encode(set, &[]).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(r#"namespace="syncs""#)).collect();
        assert_eq!(
            lines,
            [
                r#"kubevirt_vmi_sync_total{controller="virt-controller",namespace="syncs",name="one"} 1"#,
                r#"kubevirt_vmi_sync_total{controller="virt-handler",namespace="syncs",name="one"} 2"#,
            ]
        );
        assert_eq!(text.matches("# TYPE kubevirt_vmi_sync ").count(), 1, "one family of both");
    }
}
