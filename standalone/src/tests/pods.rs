//! Who creates pods, and how those of launchers are evicted.

use super::*;

const PODS: &str = "/api/v1/namespaces/default/pods";

fn virt_controller() -> User {
    let (namespace, name) = vireo_install::policy::VIRT_CONTROLLER;
    User { groups: vec!["system:masters".to_owned()], ..User::service_account(namespace, name) }
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"kubevirt.io": "virt-launcher"}},
        "spec": {"nodeName": "node1", "containers": [{"name": "compute", "image": "launcher"}]}})
}

impl World {
    pub(super) async fn create_pod(&self, pod: &Value) -> (u16, Value) {
        let request = Request::builder().method("POST").uri(PODS).header("Content-Type", "application/json");
        self.send_as(virt_controller(), request.body(Body::from(pod.to_string())).unwrap()).await
    }

    /// A VMI of a strategy with the pod of its launcher.
    async fn launcher(&self, strategy: Value) {
        let mut vmi = vmi("guest");
        vmi["spec"]["evictionStrategy"] = strategy;
        let (code, vmi) = self.ask("POST", VMIS, vmi).await;
        assert_eq!(code, 201, "{vmi}");
        let path = format!("{VMIS}/guest/status");
        let status = json!({"status": {"nodeName": "node1"}});
        assert_eq!(self.patch(&path, "merge", status).await.0, 200);
        let mut pod = pod("virt-launcher-guest");
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "name": "guest", "uid": vmi["metadata"]["uid"], "controller": true}]);
        let (code, pod) = self.create_pod(&pod).await;
        assert_eq!(code, 201, "{pod}");
    }

    async fn evict(&self, query: &str) -> (u16, Value) {
        let name = "virt-launcher-guest";
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
        self.ask("POST", &format!("{PODS}/{name}/eviction{query}"), eviction).await
    }

    async fn is_being_deleted(&self) -> bool {
        let (code, pod) = self.ask("GET", &format!("{PODS}/virt-launcher-guest"), Value::Null).await;
        assert_eq!(code, 200, "{pod}");
        pod["metadata"]["deletionTimestamp"].is_string()
    }

    async fn evacuated(&self) -> Value {
        self.ask("GET", &format!("{VMIS}/guest"), Value::Null).await.1["status"]["evacuationNodeName"].clone()
    }
}

#[tokio::test]
async fn only_components_create_pods() {
    let world = World::new();
    let (code, refused) = world.ask("POST", PODS, pod("mine")).await;
    assert_eq!((code, &refused["reason"]), (422, &json!("Invalid")));
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("spec: Forbidden: only VirtualMachineInstances run here"), "{message}");
    assert_eq!(world.create_pod(&pod("launcher")).await.0, 201);
    let labels = json!({"metadata": {"labels": {"seen": "yes"}}});
    let (code, labelled) = world.patch(&format!("{PODS}/launcher"), "strategic-merge", labels).await;
    assert_eq!((code, &labelled["metadata"]["labels"]["seen"]), (200, &json!("yes")), "{labelled}");
}

#[tokio::test]
async fn a_launcher_is_evicted_unless_its_vmi_is_to_be_migrated() {
    for strategy in [Value::Null, json!("None"), json!("LiveMigrateIfPossible")] {
        let world = World::new();
        world.launcher(strategy.clone()).await;
        assert_eq!(world.evict("?dryRun=All").await.0, 201);
        assert!(!world.is_being_deleted().await);
        let (code, evicted) = world.evict("").await;
        assert_eq!((code, &evicted["status"]), (201, &json!("Success")), "{strategy} {evicted}");
        assert!(world.is_being_deleted().await, "{strategy}");
    }
    let world = World::new();
    world.launcher(json!("LiveMigrate")).await;
    let (code, denied) = world.evict("").await;
    assert_eq!((code, &denied["reason"]), (429, &json!("TooManyRequests")));
    let why = "VMI guest is configured with an eviction strategy but is not live-migratable";
    assert_eq!(denied["message"], why);
    assert!(!world.is_being_deleted().await);
}

#[tokio::test]
async fn an_external_eviction_marks_the_vmi() {
    let world = World::new();
    world.launcher(json!("External")).await;
    assert_eq!(world.evict("?dryRun=All").await.0, 429);
    assert_eq!(world.evacuated().await, Value::Null);
    let (code, denied) = world.evict("").await;
    let why = "Eviction triggered evacuation of VMI \"default/guest\"";
    assert_eq!((code, denied["message"].as_str()), (429, Some(why)));
    assert_eq!(world.evacuated().await, "node1");
    let (code, denied) = world.evict("").await;
    assert_eq!((code, denied["message"].as_str()), (429, Some(&*format!("Evacuation in progress: {why}"))));
    assert!(!world.is_being_deleted().await);
}
