use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::metric_set::{Metric, MetricSet, counter};

const SYNCS: Metric = counter("kubevirt_vmi_sync_total", "How often a component has reconciled a VMI.");

/// How often a component has reconciled each of its VMIs.
#[derive(Debug)]
pub struct Syncs {
    component: &'static str,
    counts: Mutex<BTreeMap<(String, String), u64>>,
}

impl Syncs {
    /// None yet.
    pub fn new(component: &'static str) -> Self {
        Self { component, counts: Mutex::default() }
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<(String, String), u64>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a reconciliation of a VMI.
    pub fn count(&self, namespace: &str, name: &str) {
        *self.counts().entry((namespace.to_owned(), name.to_owned())).or_default() += 1;
    }

    /// Removes the count of a VMI that is gone.
    pub fn forget(&self, namespace: &str, name: &str) {
        self.counts().remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Adds the counts to a set.
    pub fn add(&self, metric_set: &mut MetricSet) {
        for ((namespace, name), count) in &*self.counts() {
            let labels = vec![
                ("controller".into(), self.component.to_owned()),
                ("namespace".into(), namespace.clone()),
                ("name".into(), name.clone()),
            ];
            metric_set.add(&SYNCS, labels, Some((*count).into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::encode;

    #[test]
    fn reconciliations_are_counted_while_there_is_a_vmi() {
        let syncs = Syncs::new("virt-handler");
        for (namespace, name) in [("a", "one"), ("a", "one"), ("a", "two")] {
            syncs.count(namespace, name);
        }
        syncs.forget("a", "two");
        let mut set = MetricSet::default();
        syncs.add(&mut set);
        let text = encode(set, &[]).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [r#"kubevirt_vmi_sync_total{controller="virt-handler",namespace="a",name="one"} 2"#]
        );
    }
}
