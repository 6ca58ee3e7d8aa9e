//! Limits that all Pods of a namespace need: where a quota bounds them, it refuses Pods without.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceQuota;
use vireo_api::v1::LabelSelector;

/// The label of a namespace with the factor between requested and most memory.
const RATIO_LABEL: &str = "alpha.kubevirt.io/auto-memory-limits-ratio";
/// KubeVirt's.
const RATIO: f64 = 2.0;

/// The limits of launchers that follow from their namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NamespaceLimits {
    /// Their CPU is limited to the vCPUs, unless an instance says otherwise.
    pub cpu: bool,
    /// Their memory is limited to this multiple of what they request, unless an instance says otherwise.
    pub memory: Option<f64>,
}

impl NamespaceLimits {
    /// Those of quotas alone. The ratio is KubeVirt's.
    pub(super) fn of(quotas: &[ResourceQuota]) -> Self {
        let bounds = |name: &str| {
            let hard = quotas.iter().filter_map(|quota| quota.spec.as_ref()?.hard.as_ref());
            hard.into_iter().any(|hard| hard.contains_key(name))
        };
        Self { cpu: bounds("limits.cpu"), memory: bounds("limits.memory").then_some(RATIO) }
    }

    /// With what the labels of the namespace say: whether a cluster limits CPU there, and the ratio.
    pub(super) fn labelled(
        self,
        labels: &BTreeMap<String, String>,
        cpu_selector: Option<&LabelSelector>,
    ) -> Self {
        let given = labels.get(RATIO_LABEL).and_then(|ratio| ratio.parse().ok());
        // A limit below its request is refused.
        let ratio = given.filter(|ratio: &f64| ratio.is_finite() && *ratio >= 1.0);
        Self {
            cpu: self.cpu || cpu_selector.is_some_and(|selector| selector.chooses(labels)),
            memory: self.memory.map(|usual| ratio.unwrap_or(usual)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(hard: serde_json::Value) -> NamespaceLimits {
        let quotas = json!([{"spec": {}}, {"spec": {"hard": hard}}]);
        NamespaceLimits::of(&serde_json::from_value::<Vec<_>>(quotas).unwrap())
    }

    #[test]
    fn launchers_have_the_limits_that_quotas_bound() {
        let with = |cpu, memory| NamespaceLimits { cpu, memory };
        assert_eq!(of(json!({"pods": "1", "requests.memory": "1Gi"})), with(false, None));
        assert_eq!(of(json!({"limits.cpu": "4"})), with(true, None));
        assert_eq!(of(json!({"limits.memory": "4Gi"})), with(false, Some(2.0)));
    }

    #[test]
    fn labels_of_the_namespace_choose_the_ratio_and_limits_of_cpu() {
        let quota = of(json!({"limits.memory": "4Gi"}));
        let selector = LabelSelector {
            match_labels: [("a".to_owned(), "b".to_owned())].into(),
            ..LabelSelector::default()
        };
        for (label, ratio) in [("1.5", 1.5), ("1", 1.0), ("0.5", 2.0), ("much", 2.0), ("inf", 2.0)] {
            let labels = [(RATIO_LABEL.to_owned(), label.to_owned())].into();
            assert_eq!(
                quota.labelled(&labels, Some(&selector)),
                NamespaceLimits { cpu: false, memory: Some(ratio) }
            );
            assert_eq!(NamespaceLimits::default().labelled(&labels, None).memory, None, "no quota wants it");
        }
        let labels = [("a".to_owned(), "b".to_owned())].into();
        assert_eq!(
            quota.labelled(&labels, Some(&selector)),
            NamespaceLimits { cpu: true, memory: Some(2.0) }
        );
    }
}
