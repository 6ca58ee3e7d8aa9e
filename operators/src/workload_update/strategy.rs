//! `spec.workloadUpdateStrategy` of a KubeVirt object.

use std::time::Duration;

use jiff::SignedDuration;
use vireo_api::v1::KubeVirtSpec;

use crate::Problem;

/// The method that evicts launcher Pods.
const EVICT: &str = "Evict";
/// The method that is not available.
pub const LIVE_MIGRATE: &str = "LiveMigrate";
/// How many Pods are evicted at a time; KubeVirt's default.
const BATCH: usize = 10;
/// How long after a batch the next one is evicted; KubeVirt's default.
const INTERVAL: Duration = Duration::from_secs(60);
const PATH: &str = "spec.workloadUpdateStrategy";

/// What is done with outdated instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strategy {
    /// Whether their Pods are evicted.
    pub evicts: bool,
    /// How many at a time.
    pub batch: usize,
    /// How long after a batch the next one is.
    pub interval: Duration,
}

impl Default for Strategy {
    fn default() -> Self {
        Self { evicts: false, batch: BATCH, interval: INTERVAL }
    }
}

impl Strategy {
    /// That of a KubeVirt object. Where something in it is not valid, nothing is evicted.
    ///
    /// # Errors
    /// What is not valid in it.
    pub fn new(spec: &KubeVirtSpec) -> Result<Self, Vec<Problem>> {
        let (given, mut problems) = (&spec.workload_update_strategy, Vec::new());
        let mut strategy = Self::default();
        for (index, method) in given.workload_update_methods.iter().enumerate() {
            match method.as_str() {
                EVICT => strategy.evicts = true,
                LIVE_MIGRATE => {}
                method => {
                    let field = format!("{PATH}.workloadUpdateMethods[{index}]");
                    problems.push(Problem::unsupported_value(field, method, &[EVICT, LIVE_MIGRATE]));
                }
            }
        }
        if let Some(size) = given.batch_eviction_size {
            match usize::try_from(size) {
                Ok(size @ 1..) => strategy.batch = size,
                _ => {
                    let message = format!("Invalid value: {size}: must be greater than or equal to 1");
                    problems.push(Problem::invalid(format!("{PATH}.batchEvictionSize"), message));
                }
            }
        }
        if let Some(interval) = &given.batch_eviction_interval {
            let parsed = interval.parse::<SignedDuration>().ok().and_then(|it| Duration::try_from(it).ok());
            match parsed.filter(|interval| !interval.is_zero()) {
                Some(interval) => strategy.interval = interval,
                None => {
                    let message =
                        format!("Invalid value: {interval:?}: must be a positive duration, such as 1m30s");
                    problems.push(Problem::invalid(format!("{PATH}.batchEvictionInterval"), message));
                }
            }
        }
        if problems.is_empty() { Ok(strategy) } else { Err(problems) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use vireo_api::decode;
    use vireo_api::v1::KubeVirt;

    use super::*;

    fn strategy(given: Value) -> Result<Strategy, Vec<String>> {
        let kubevirt = json!({"spec": {"workloadUpdateStrategy": given}});
        let spec = decode::object::<KubeVirt>(kubevirt).object.spec;
        let lines = |problems: Vec<Problem>| {
            problems.into_iter().map(|one| format!("{}: {}", one.field, one.message)).collect()
        };
        Strategy::new(&spec).map_err(lines)
    }

    #[test]
    fn it_is_as_given_or_the_default() {
        let default = Strategy::default();
        assert_eq!(Strategy::new(&KubeVirtSpec::default()), Ok(default));
        assert_eq!(strategy(json!({"workloadUpdateMethods": ["LiveMigrate"]})), Ok(default));
        let given = json!({"workloadUpdateMethods": ["LiveMigrate", "Evict"], "batchEvictionSize": 1,
            "batchEvictionInterval": "1h0m30s"});
        let expected = Strategy { evicts: true, batch: 1, interval: Duration::from_secs(3630) };
        assert_eq!(strategy(given), Ok(expected));
    }

    #[test]
    fn what_is_not_valid_is_named() {
        for (given, problem) in [
            (
                json!({"workloadUpdateMethods": ["Evict", "Restart"]}),
                r#"workloadUpdateMethods[1]: Unsupported value: "Restart": supported values: "Evict", "LiveMigrate""#,
            ),
            (
                json!({"batchEvictionSize": 0}),
                "batchEvictionSize: Invalid value: 0: must be greater than or equal to 1",
            ),
            (
                json!({"batchEvictionInterval": "0s"}),
                r#"batchEvictionInterval: Invalid value: "0s": must be a positive duration, such as 1m30s"#,
            ),
            (
                json!({"batchEvictionInterval": "a while"}),
                r#"batchEvictionInterval: Invalid value: "a while": must be a positive duration, such as 1m30s"#,
            ),
        ] {
            assert_eq!(strategy(given), Err(vec![format!("{PATH}.{problem}")]));
        }
    }
}
