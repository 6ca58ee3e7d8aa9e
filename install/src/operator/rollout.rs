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

/// What objects are applied to.
pub(super) trait ApplyTarget {
    /// Why an object cannot be applied.
    type Error;

    /// Whether it has an object as it was applied.
    fn is_applied(&self, object: &Value) -> bool;

    /// Applies an object.
    async fn apply(&self, object: &Value) -> Result<(), Self::Error>;

    /// An object as it is there.
    fn live(&self, object: &Value) -> Option<Live>;
}

/// Applies the objects of each stage that are not applied, up to the first stage that is not rolled out. The objects of that
/// stage that are not; none when all stages are rolled out.
///
/// # Errors
/// When an object cannot be applied.
pub(super) async fn roll_out<'o, T: ApplyTarget>(
    target: &T,
    stages: &'o [Vec<Value>],
) -> Result<Vec<&'o Value>, T::Error> {
    for stage in stages {
        let mut pending = Vec::new();
        for object in stage {
            if !target.is_applied(object) {
                target.apply(object).await?;
            }
            // What was applied just now is seen by the next event.
            let live = target.live(object).filter(|live| !live.is_deleting && is_rolled_out(object, live));
            if live.is_none() || !target.is_applied(object) {
                pending.push(object);
            }
        }
        if !pending.is_empty() {
            return Ok(pending);
        }
    }
    Ok(Vec::new())
}

/// Whether an object is as it is desired, and what it is for is there.
fn is_rolled_out(desired: &Value, live: &Live) -> bool {
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
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use futures_util::FutureExt as _;
    use serde_json::json;

    use super::super::installed::describe;
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

    /// A cluster where workloads are rolled out some time after they were applied, and everything else at once.
    #[derive(Default)]
    struct FakeCluster {
        objects: RefCell<BTreeMap<String, (Value, Live)>>,
        /// The workloads in the order in which they were applied.
        order: RefCell<Vec<String>>,
    }

    impl FakeCluster {
        /// One with an installation.
        fn with(installation: &Installation) -> Self {
            let cluster = Self::default();
            let all = objects(installation).into_iter();
            let entry = |object: Value| (describe(&object), (object.clone(), state(&object, true)));
            cluster.objects.borrow_mut().extend(all.map(entry));
            cluster
        }

        /// Rolls an object out; the Pods of the former one are available until then.
        fn finish(&self, object: &Value) {
            let mut objects = self.objects.borrow_mut();
            let (applied, live) = objects.get_mut(&describe(object)).unwrap();
            assert!(is_available(applied, Some(live)), "the former Pods go on");
            *live = state(applied, true);
        }
    }

    impl ApplyTarget for FakeCluster {
        type Error = Infallible;

        fn is_applied(&self, object: &Value) -> bool {
            self.objects.borrow().get(&describe(object)).is_some_and(|(applied, _)| applied == object)
        }

        async fn apply(&self, object: &Value) -> Result<(), Infallible> {
            let is_workload = component(object).is_some();
            if is_workload {
                self.order.borrow_mut().push(object["metadata"]["name"].as_str().unwrap().to_owned());
            }
            let live = state(object, !is_workload);
            self.objects.borrow_mut().insert(describe(object), (object.clone(), live));
            Ok(())
        }

        fn live(&self, object: &Value) -> Option<Live> {
            self.objects.borrow().get(&describe(object)).map(|(_, live)| live.clone())
        }
    }

    /// An object that is rolled out, or is not updated yet.
    fn state(object: &Value, is_updated: bool) -> Live {
        let new = i64::from(is_updated);
        let replicas = object["spec"]["replicas"].as_i64().unwrap_or(1);
        live(
            2,
            &json!({"observedGeneration": 2, "desiredNumberScheduled": 1, "replicas": replicas,
                "updatedReplicas": replicas * new, "availableReplicas": replicas,
                "updatedNumberScheduled": new, "numberAvailable": 1,
                "conditions": [{"type": "Established", "status": "True"}, {"type": "Available", "status": "True"}]}),
        )
    }

    /// Workloads in the order in which they are replaced when a cluster goes from one installation to another.
    fn replaced(from: &Installation, to: &Installation) -> Vec<String> {
        let cluster = FakeCluster::with(from);
        let stages = stages(objects(to), true);
        loop {
            let rolled_out = roll_out(&cluster, &stages).now_or_never().expect("nothing waits");
            let Ok(pending) = rolled_out;
            let names: Vec<String> = pending.iter().map(|object| describe(object)).collect();
            assert!(names.len() < 2, "one component at a time: {names:?}");
            if pending.is_empty() {
                return cluster.order.take();
            }
            pending.into_iter().for_each(|object| cluster.finish(object));
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
