//! In which order objects are applied, and when they are rolled out.

use serde_json::Value;

/// Components as they are created: virt-api completes and validates what the others work with.
const CREATED: [&str; 3] = ["virt-api", "virt-controller", "virt-handler"];

/// An object of a cluster, as far as virt-operator reads it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Live {
    /// Generation of its desired state; none for kinds without one.
    pub(super) generation: Option<i64>,
    /// Whether it is being deleted.
    pub(super) is_deleting: bool,
    /// Its status.
    pub(super) status: Value,
}

impl Live {
    /// Reads an object.
    #[expect(clippy::unnecessary_wraps, reason = "an informer reads objects that may not be readable")]
    pub(super) fn read(mut object: Value) -> Result<Self, serde_json::Error> {
        let metadata = &object["metadata"];
        Ok(Self {
            generation: metadata["generation"].as_i64(),
            is_deleting: !metadata["deletionTimestamp"].is_null(),
            status: object["status"].take(),
        })
    }

    fn count(&self, field: &str) -> i64 {
        self.status[field].as_i64().unwrap_or_default()
    }

    fn has(&self, condition: &str) -> bool {
        self.status["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|one| one["type"] == condition && one["status"] == "True")
    }

    /// Whether a controller has seen its generation.
    fn is_observed(&self) -> bool {
        self.generation.is_none_or(|generation| self.count("observedGeneration") >= generation)
    }
}

/// Whether an object is a component of its own.
fn component(object: &Value) -> Option<usize> {
    let name = object["metadata"]["name"].as_str()?;
    let is_workload = object["kind"] == "Deployment" || object["kind"] == "DaemonSet";
    CREATED.iter().position(|component| *component == name).filter(|_| is_workload)
}

/// Groups of objects, each of which is applied when the one before is rolled out. Node agents are the first to be updated,
/// so that they understand what newer components ask of them, and virt-api is the last.
pub(super) fn stages(objects: Vec<Value>, is_update: bool) -> Vec<Vec<Value>> {
    let (definitions, others): (Vec<Value>, Vec<Value>) =
        objects.into_iter().partition(|object| object["kind"] == "CustomResourceDefinition");
    let (mut components, others): (Vec<Value>, Vec<Value>) =
        others.into_iter().partition(|object| component(object).is_some());
    components.sort_by_key(component);
    if is_update {
        components.reverse();
    }
    [definitions, others].into_iter().chain(components.into_iter().map(|object| vec![object])).collect()
}

/// Whether an object is as it is desired, and what it is for is there.
pub(super) fn is_rolled_out(desired: &Value, live: &Live) -> bool {
    match desired["kind"].as_str() {
        Some("CustomResourceDefinition") => live.has("Established"),
        Some("Deployment") => {
            let wanted = desired["spec"]["replicas"].as_i64().unwrap_or(1);
            live.is_observed()
                && live.count("replicas") == wanted
                && ["updatedReplicas", "availableReplicas"].iter().all(|count| live.count(count) >= wanted)
        }
        Some("DaemonSet") => {
            let wanted = live.count("desiredNumberScheduled");
            live.is_observed()
                && ["updatedNumberScheduled", "numberAvailable"]
                    .iter()
                    .all(|count| live.count(count) >= wanted)
        }
        _ => true,
    }
}

/// Whether an installed object does what it is for, if perhaps not with all of its Pods.
pub(super) fn is_available(desired: &Value, live: Option<&Live>) -> bool {
    let Some(live) = live else { return false };
    match desired["kind"].as_str() {
        Some("APIService") => live.has("Available"),
        Some("Deployment") => live.count("availableReplicas") > 0,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::installation::Installation;
    use crate::installation::tests::installation;
    use crate::objects::objects;

    fn names(is_update: bool) -> Vec<String> {
        let stages = stages(objects(&installation(json!({}), 1)), is_update);
        let first = |stage: &Vec<Value>| stage[0]["metadata"]["name"].as_str().unwrap().to_owned();
        assert!(stages[0].iter().all(|object| object["kind"] == "CustomResourceDefinition"));
        stages[2..].iter().map(first).collect()
    }

    #[test]
    fn node_agents_are_created_last_and_updated_first() {
        assert_eq!(names(false), ["virt-api", "virt-controller", "virt-handler"]);
        assert_eq!(names(true), ["virt-handler", "virt-controller", "virt-api"]);
    }

    fn live(generation: i64, status: &Value) -> Live {
        Live::read(json!({"metadata": {"generation": generation}, "status": status})).unwrap()
    }

    /// Workloads in the order in which they are replaced when a cluster goes from one installation to another, where each is
    /// rolled out some time after it was applied.
    fn replaced(from: &Installation, to: &Installation) -> Vec<String> {
        let workload = |object: &Value| component(object).is_some();
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        let running = |object: &Value, updated: bool| {
            let new = i64::from(updated);
            let replicas = object["spec"]["replicas"].as_i64().unwrap_or(1);
            live(
                2,
                &json!({"observedGeneration": 2, "desiredNumberScheduled": 1, "replicas": replicas,
                "updatedReplicas": replicas * new, "availableReplicas": replicas,
                "updatedNumberScheduled": new, "numberAvailable": 1}),
            )
        };
        let applied = objects(from).into_iter().filter(workload).map(|object| (name(&object), object));
        let mut cluster: BTreeMap<String, (Value, Live)> =
            applied.map(|(name, object)| (name, (object.clone(), running(&object, true)))).collect();
        let mut order = Vec::new();
        loop {
            let mut pending = Vec::new();
            for stage in stages(objects(to), true) {
                for object in stage.into_iter().filter(workload) {
                    let known = cluster.get_mut(&name(&object)).unwrap();
                    if known.0 != object {
                        order.push(name(&object));
                        *known = (object.clone(), running(&object, false));
                    }
                    if !is_rolled_out(&object, &known.1) {
                        pending.push(name(&object));
                    }
                }
                if !pending.is_empty() {
                    break;
                }
            }
            if pending.is_empty() {
                return order;
            }
            for (object, live) in
                pending.iter().filter_map(|name| cluster.get(name).cloned()).collect::<Vec<_>>()
            {
                assert!(is_available(&object, Some(&live)), "the former Pods go on");
                cluster.insert(name(&object), (object.clone(), running(&object, true)));
            }
        }
    }

    #[test]
    fn a_downgrade_goes_as_an_update_and_changes_one_component_at_a_time() {
        let of = |tag: &str| installation(json!({ "imageTag": tag }), 3);
        let order = ["virt-handler", "virt-controller", "virt-api"];
        assert_eq!(replaced(&of("1"), &of("2")), order);
        assert_eq!(replaced(&of("2"), &of("1")), order);
        assert_eq!(replaced(&of("2"), &of("2")), [""; 0]);
    }

    #[test]
    fn a_deployment_is_rolled_out_when_all_of_its_pods_are_new_and_available() {
        let desired = json!({"kind": "Deployment", "spec": {"replicas": 2}});
        let done =
            json!({"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2});
        assert!(is_rolled_out(&desired, &live(3, &done)));
        for (field, value) in
            [("observedGeneration", 2), ("replicas", 3), ("updatedReplicas", 1), ("availableReplicas", 1)]
        {
            let mut status = done.clone();
            status[field] = json!(value);
            assert!(!is_rolled_out(&desired, &live(3, &status)), "{field}");
            assert!(is_available(&desired, Some(&live(3, &status))), "{field}");
        }
        assert!(!is_available(&desired, Some(&live(3, &json!({})))));
        assert!(!is_available(&desired, None));
    }

    #[test]
    fn a_daemon_set_is_rolled_out_on_all_nodes() {
        let desired = json!({"kind": "DaemonSet"});
        let done = json!({"observedGeneration": 1, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2,
            "numberAvailable": 2});
        assert!(is_rolled_out(&desired, &live(1, &done)));
        assert!(!is_rolled_out(&desired, &live(2, &done)));
        let mut one = done;
        one["numberAvailable"] = json!(1);
        assert!(!is_rolled_out(&desired, &live(1, &one)));
    }

    #[test]
    fn definitions_and_services_have_conditions() {
        let is = |condition: &str| json!({"conditions": [{"type": condition, "status": "True"}]});
        let definition = json!({"kind": "CustomResourceDefinition"});
        assert!(is_rolled_out(&definition, &live(1, &is("Established"))));
        assert!(!is_rolled_out(&definition, &live(1, &is("NamesAccepted"))));
        let service = json!({"kind": "APIService"});
        assert!(is_available(&service, Some(&live(0, &is("Available")))));
        assert!(!is_available(&service, Some(&live(0, &json!({})))));
    }
}
