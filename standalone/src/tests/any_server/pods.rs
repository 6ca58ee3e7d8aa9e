//! Pods as they are bound, evicted and deleted.

use axum::http::Request;
use kube::Error;
use kube::api::DeleteParams;

use super::*;

const POD: Kind = Kind::new(("", "v1"), "Pod", "pods");
const ACCOUNT: Kind = Kind::new(("", "v1"), "ServiceAccount", "serviceaccounts");

/// Creates a pod as virt-controller, which is allowed to.
async fn create(cluster: &Cluster, name: &str, spec: Value) -> Value {
    let (namespace, user) = vireo_install::policy::VIRT_CONTROLLER;
    let subject = json!({"kind": "ServiceAccount", "name": user, "namespace": namespace});
    let role = json!({"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": "edit"});
    // Another pod of the test may have made them.
    for (kind, rest) in
        [(cluster::ROLE_BINDING, json!({"subjects": [subject], "roleRef": role})), (ACCOUNT, json!({}))]
    {
        let made = cluster.try_create(kind, "pods", rest).await;
        assert!(made.is_ok() || code(&made) == 409, "{made:?}");
    }
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "serviceAccountName": "pods", "automountServiceAccountToken": false,
        "containers": [{"name": "compute", "image": "registry/launcher:v1"}],
    }});
    for (field, value) in spec.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    let pods = POD.namespaced(&cluster.virt_controller(), &cluster.namespace);
    let created = pods.create(&Default::default(), &serde_json::from_value(pod).unwrap()).await;
    serde_json::to_value(created.unwrap()).unwrap()
}

pub(super) fn code<T>(result: &Result<T, Error>) -> u16 {
    match result {
        Ok(_) => 200,
        Err(Error::Api(status)) => status.code,
        Err(error) => panic!("{error}"),
    }
}

async fn get(cluster: &Cluster, name: &str) -> Option<Value> {
    let pod = cluster.api(POD).get_opt(name).await.unwrap();
    pod.map(|pod| serde_json::to_value(pod).unwrap())
}

async fn post(cluster: &Cluster, path: &str, body: Value) -> Result<Value, Error> {
    let path = format!("/api/v1/namespaces/{}/{path}", cluster.namespace);
    let request = Request::post(path).header("Content-Type", "application/json");
    cluster.admin.request(request.body(body.to_string().into_bytes()).unwrap()).await
}

pub(super) async fn bind(cluster: &Cluster, path: &str, name: &str) -> Result<Value, Error> {
    let binding = json!({"apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": name, "annotations": {"example.com/by": "test"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node1"}});
    post(cluster, path, binding).await
}

async fn evict(cluster: &Cluster, path: &str, options: Value) -> Result<Value, Error> {
    let eviction = json!({"apiVersion": "policy/v1beta1", "kind": "Eviction",
        "metadata": {"name": "a"}, "deleteOptions": options});
    post(cluster, path, eviction).await
}

async fn delete(cluster: &Cluster, seconds: Option<u32>) {
    let params = DeleteParams { grace_period_seconds: seconds, ..DeleteParams::default() };
    cluster.api(POD).delete("a", &params).await.unwrap();
}

/// The grace period of the pod that is being deleted.
async fn grace(cluster: &Cluster) -> Option<Value> {
    let pod = get(cluster, "a").await?;
    assert!(is_being_deleted(&pod) || pod["metadata"]["deletionGracePeriodSeconds"].is_null());
    Some(pod["metadata"]["deletionGracePeriodSeconds"].clone())
}

#[tokio::test]
async fn a_new_pod_is_pending_with_defaults() {
    on_a_server(async |cluster| {
        let pod = create(cluster, "a", json!({})).await;
        assert_eq!(
            (&pod["status"]["phase"], &pod["status"]["qosClass"]),
            (&json!("Pending"), &json!("BestEffort"))
        );
        let spec = &pod["spec"];
        assert_eq!((&spec["restartPolicy"], &spec["dnsPolicy"]), (&json!("Always"), &json!("ClusterFirst")));
        assert_eq!(spec["terminationGracePeriodSeconds"], 30);
        assert_eq!(spec["schedulerName"], "default-scheduler");
        assert_eq!(spec["containers"][0]["imagePullPolicy"], "IfNotPresent");
    })
    .await;
}

#[tokio::test]
async fn a_pod_is_bound_once() {
    on_a_server(async |cluster| {
        create(cluster, "a", json!({})).await;
        let bound = bind(cluster, "pods/a/binding", "a").await.unwrap();
        assert_eq!((&bound["kind"], &bound["status"], &bound["code"]), (&json!("Status"), &json!("Success"), &json!(201)));
        let pod = get(cluster, "a").await.unwrap();
        assert_eq!(pod["spec"]["nodeName"], "node1");
        assert_eq!(pod["metadata"]["annotations"]["example.com/by"], "test");
        let condition = &pod["status"]["conditions"][0];
        assert_eq!((&condition["type"], &condition["status"]), (&json!("PodScheduled"), &json!("True")));
        let Err(Error::Api(again)) = bind(cluster, "bindings", "a").await else { panic!("it is bound") };
        let why = "Operation cannot be fulfilled on pods/binding \"a\": pod a is already assigned to node \"node1\"";
        assert_eq!((again.code, again.reason.as_str(), again.message.as_str()), (409, "Conflict", why));
        assert_eq!(code(&bind(cluster, "pods/b/binding", "b").await), 404);
        assert_eq!(code(&bind(cluster, "pods/a/binding", "b").await), 400);
        create(cluster, "b", json!({})).await;
        bind(cluster, "bindings", "b").await.unwrap();
        let params = kube::api::ListParams::default().fields("spec.nodeName=node1,status.phase=Pending");
        assert_eq!(cluster.api(POD).list(&params).await.unwrap().items.len(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_pod_without_a_node_is_removed_at_once() {
    on_a_server(async |cluster| {
        create(cluster, "a", json!({})).await;
        delete(cluster, None).await;
        assert_eq!(get(cluster, "a").await, None);
    })
    .await;
}

#[tokio::test]
async fn a_pod_on_a_node_is_deleted_gracefully() {
    on_a_server(async |cluster| {
        create(cluster, "a", json!({"nodeName": "node1"})).await;
        for (requested, expected) in [(None, 30), (Some(60), 30), (Some(5), 5), (None, 5)] {
            delete(cluster, requested).await;
            assert_eq!(grace(cluster).await, Some(json!(expected)), "{requested:?}");
        }
        assert_eq!(code(&bind(cluster, "pods/a/binding", "a").await), 409);
        delete(cluster, Some(0)).await;
        assert_eq!(get(cluster, "a").await, None);
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_has_terminated_is_removed_at_once() {
    on_a_server(async |cluster| {
        create(cluster, "a", json!({"nodeName": "node1", "restartPolicy": "Never"})).await;
        cluster.patch_status(POD, "a", json!({"phase": "Succeeded"})).await;
        delete(cluster, None).await;
        assert_eq!(get(cluster, "a").await, None);
    })
    .await;
}

#[tokio::test]
async fn pods_of_a_collection_are_deleted_gracefully() {
    on_a_server(async |cluster| {
        create(cluster, "a", json!({"nodeName": "node1"})).await;
        create(cluster, "b", json!({})).await;
        let all = cluster.api(POD).delete_collection(&Default::default(), &Default::default()).await;
        all.unwrap();
        assert_eq!(grace(cluster).await, Some(json!(30)));
        assert_eq!(get(cluster, "b").await, None);
    })
    .await;
}

#[tokio::test]
async fn an_eviction_deletes_by_its_options() {
    on_a_server(async |cluster| {
        let pod = create(cluster, "a", json!({"nodeName": "node1"})).await;
        let path = "pods/a/eviction";
        assert_eq!(code(&evict(cluster, path, json!({"preconditions": {"uid": "other"}})).await), 409);
        evict(cluster, &format!("{path}?dryRun=All"), Value::Null).await.unwrap();
        assert_eq!(grace(cluster).await, Some(Value::Null));
        let options = json!({"gracePeriodSeconds": 7, "preconditions": {"uid": pod["metadata"]["uid"]}});
        let evicted = evict(cluster, path, options).await.unwrap();
        assert_eq!((&evicted["kind"], &evicted["status"]), (&json!("Status"), &json!("Success")));
        assert_eq!(grace(cluster).await, Some(json!(7)));
        evict(cluster, path, json!({"gracePeriodSeconds": 0})).await.unwrap();
        assert_eq!(get(cluster, "a").await, None);
        assert_eq!(code(&evict(cluster, path, Value::Null).await), 404);
        assert_eq!(code(&evict(cluster, "pods/b/eviction", Value::Null).await), 400, "of another name");
    })
    .await;
}

#[tokio::test]
async fn spec_and_status_of_a_pod_are_written_apart() {
    on_a_server(async |cluster| {
        create(cluster, "a", json!({})).await;
        let status = json!({"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]});
        let patched = cluster.patch_status(POD, "a", status).await;
        assert_eq!(
            (&patched["status"]["phase"], &patched["status"]["qosClass"]),
            (&json!("Running"), &json!("BestEffort"))
        );
        let both = json!({"metadata": {"labels": {"tier": "web"}}, "status": {"phase": "Failed"}});
        let patched = cluster.patch(POD, "a", both).await;
        assert_eq!(
            (&patched["metadata"]["labels"]["tier"], &patched["status"]["phase"]),
            (&json!("web"), &json!("Running"))
        );
        let patch = |patch: Value| async move {
            let patch = kube::api::Patch::Strategic(patch);
            cluster.api(POD).patch("a", &Default::default(), &patch).await
        };
        let image = json!({"spec": {"containers": [{"name": "compute", "image": "registry/launcher:v2"}]}});
        assert!(patch(image).await.is_ok());
        let Err(Error::Api(refused)) = patch(json!({"spec": {"hostname": "other"}})).await else {
            panic!("the spec cannot be changed")
        };
        assert_eq!((refused.code, refused.reason.as_str()), (422, "Invalid"));
        assert!(refused.message.contains("spec: Forbidden: pod updates may not change fields other than"));
        assert_eq!(code(&patch(json!({"spec": {"nodeName": "node1"}})).await), 422);
    })
    .await;
}

#[tokio::test]
async fn the_table_of_pods_is_what_kubectl_shows() {
    on_a_server(async |cluster| {
        create(cluster, "a", json!({"nodeName": "node1"})).await;
        let waiting = json!({"name": "compute", "ready": false, "restartCount": 2, "image": "x", "imageID": "",
            "state": {"waiting": {"reason": "ErrImagePull"}}});
        cluster.patch_status(POD, "a", json!({"phase": "Pending", "containerStatuses": [waiting]})).await;
        let path = format!("/api/v1/namespaces/{}/pods", cluster.namespace);
        let request = Request::get(path).header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
        let table: Value = cluster.admin.request(request.body(Vec::new()).unwrap()).await.unwrap();
        let columns = table["columnDefinitions"].as_array().unwrap();
        let columns: Vec<_> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
        let wide = ["IP", "Node", "Nominated Node", "Readiness Gates"];
        assert_eq!(columns, [&["Name", "Ready", "Status", "Restarts", "Age"][..], &wide].concat());
        let cells = &table["rows"][0]["cells"];
        assert_eq!((&cells[1], &cells[2], &cells[6]), (&json!("0/1"), &json!("ErrImagePull"), &json!("node1")));
    })
    .await;
}

#[tokio::test]
async fn evictions_are_discovered() {
    on_a_server(async |cluster| {
        let served = cluster.admin.list_core_api_resources("v1").await.unwrap();
        let served = serde_json::to_value(served.resources).unwrap();
        let named = |name: &str| served.as_array().unwrap().iter().find(|one| one["name"] == name).cloned();
        let eviction = named("pods/eviction").unwrap();
        assert_eq!((&eviction["group"], &eviction["kind"]), (&json!("policy"), &json!("Eviction")));
        for name in ["bindings", "pods/binding", "pods/status"] {
            assert!(named(name).is_some(), "{name}");
        }
    })
    .await;
}
