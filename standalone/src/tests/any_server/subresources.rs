//! KubeVirt's API server as a client of any server.

use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use futures_util::future::BoxFuture;
use http_body_util::BodyExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use tower::ServiceExt as _;
use vireo_operators::virt_api::{NodeAgents, VirtApi};

use super::*;

/// Plays the agents of nodes, which do everything.
#[derive(Debug, Default)]
struct Agents(Mutex<Vec<(String, String)>>);

impl NodeAgents for Agents {
    fn send(&self, node: &str, request: Request) -> BoxFuture<'static, Response> {
        let request = (node.to_owned(), format!("{} {}", request.method(), request.uri()));
        self.0.lock().unwrap().push(request);
        Box::pin(async { StatusCode::OK.into_response() })
    }
}

/// Sends a request to virt-api; `path` is below the namespace of the test.
pub(super) async fn send(cluster: &Cluster, (method, path): (&str, &str), body: Value) -> (u16, Value) {
    send_with(cluster, &Arc::default(), (method, path), body).await
}

async fn send_with(
    cluster: &Cluster,
    agents: &Arc<Agents>,
    (method, path): (&str, &str),
    body: Value,
) -> (u16, Value) {
    let virt_api = VirtApi::new(cluster.virt_api(), Arc::clone(agents) as _);
    let uri = format!("/apis/subresources.kubevirt.io/v1/namespaces/{}/{path}", cluster.namespace);
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    let request = Request::builder().method(method).uri(uri).body(body).unwrap();
    let response = virt_api.oneshot(request).await.unwrap();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() })
}

async fn vm(cluster: &Cluster, strategy: &str) -> Value {
    let spec = json!({"runStrategy": strategy, "template": {"spec": vmi_spec()}});
    cluster.create(Kind::VM, "web", json!({ "spec": spec })).await
}

#[tokio::test]
async fn a_vm_is_started_and_stopped_by_its_subresources() {
    on_a_server(async |cluster| {
        vm(cluster, "Halted").await;
        let vms = cluster.api(Kind::VM);
        let strategy = async || vms.get("web").await.unwrap().data["spec"]["runStrategy"].clone();
        let put = async |path: &str, body: Value| send(cluster, ("PUT", path), body).await;
        let (code, status) = put("virtualmachines/web/stop", Value::Null).await;
        assert_eq!((code, &status["reason"]), (409, &json!("Conflict")));
        let message =
            "Operation cannot be fulfilled on virtualmachines.kubevirt.io \"web\": VM is not running";
        assert_eq!(status["message"], message);
        assert_eq!(put("virtualmachines/none/start", Value::Null).await.1["reason"], "NotFound");
        assert_eq!(put("virtualmachines/web/start", json!({"dryRun": ["All"]})).await, (202, Value::Null));
        assert_eq!(strategy().await, "Halted");
        assert_eq!(put("virtualmachines/web/start", json!({"dryRun": ["Some"]})).await.0, 422);
        assert_eq!(put("virtualmachines/web/start", json!({})).await.0, 202);
        assert_eq!(strategy().await, "Always");
        assert_eq!(put("virtualmachines/web/restart", json!({"gracePeriodSeconds": "x"})).await.0, 400);
        assert_eq!(put("virtualmachines/web/stop", json!({})).await.0, 202);
        assert_eq!(strategy().await, "Halted");
        assert_eq!(put("virtualmachines/web/freeze", json!({})).await.0, 404);
        assert_eq!(send(cluster, ("GET", "virtualmachines/web/start"), Value::Null).await.0, 405);
    })
    .await;
}

#[tokio::test]
async fn a_stop_shortens_the_grace_period_of_the_vmi() {
    on_a_server(async |cluster| {
        cluster.start_controllers();
        vm(cluster, "Always").await;
        cluster.until("a VMI", || !cluster.object(Kind::VMI, "web").is_null()).await;
        let path = "virtualmachines/web/stop";
        let (code, status) = send(cluster, ("PUT", path), json!({"gracePeriod": 7})).await;
        assert_eq!(code, 202, "{status}");
        cluster
            .until("it is deleted within the grace period", || {
                let vmi = cluster.object(Kind::VMI, "web");
                is_being_deleted(&vmi) && vmi["spec"]["terminationGracePeriodSeconds"] == 7
            })
            .await;
    })
    .await;
}

#[tokio::test]
async fn a_vm_is_expanded_with_what_was_just_created() {
    on_a_server(async |cluster| {
        let small = json!({"spec": {"cpu": {"guest": 3}, "memory": {"guest": "96Mi"}}});
        cluster.create(Kind::INSTANCETYPE, "small", small).await;
        let labels = json!({"instancetype.kubevirt.io/default-instancetype": "small",
            "instancetype.kubevirt.io/default-instancetype-kind": "VirtualMachineInstancetype"});
        let claim = json!({"metadata": {"labels": labels},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}});
        cluster.create(Kind::CLAIM, "data", claim).await;
        let template = json!({"spec": {"domain": {"devices": {}},
            "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "data"}}]}});
        let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "web"},
            "spec": {"instancetype": {"inferFromVolume": "root"}, "template": template}});
        let (code, expanded) = send(cluster, ("PUT", "expand-vm-spec"), vm.clone()).await;
        assert_eq!(code, 200, "{expanded}");
        assert_eq!(expanded["spec"]["template"]["spec"]["domain"]["memory"]["guest"], "96Mi");
        assert_eq!(expanded["spec"].get("instancetype"), None);
        let mut absent = vm;
        absent["spec"]["instancetype"] = json!({"name": "../small"});
        let (code, status) = send(cluster, ("PUT", "expand-vm-spec"), absent).await;
        assert_eq!((code, &status["details"]["causes"][0]["field"]), (422, &json!("spec.instancetype")));
    })
    .await;
}

#[tokio::test]
async fn the_agent_of_the_node_answers_for_guests() {
    on_a_server(async |cluster| {
        let agents: Arc<Agents> = Arc::default();
        let ask = async |method, path: &str| send_with(cluster, &agents, (method, path), Value::Null).await;
        let (code, status) = ask("PUT", "virtualmachineinstances/guest/reset").await;
        let message = "virtualmachineinstance.kubevirt.io \"guest\" not found";
        assert_eq!((code, &status["message"]), (404, &json!(message)));
        cluster.create(Kind::VMI, "guest", json!({ "spec": vmi_spec() })).await;
        assert_eq!(ask("PUT", "virtualmachineinstances/guest/reset").await.0, 409, "it has no node");
        cluster.patch_status(Kind::VMI, "guest", json!({"nodeName": "node7", "phase": "Running"})).await;
        assert_eq!(ask("PUT", "virtualmachineinstances/guest/reset").await.0, 200);
        assert_eq!(ask("GET", "virtualmachineinstances/guest/vnc/screenshot?moveCursor=true").await.0, 200);
        assert_eq!(ask("GET", "virtualmachineinstances/guest/reset").await.0, 405);
        let path = format!("/v1/namespaces/{}/virtualmachineinstances/guest", cluster.namespace);
        let expected = [format!("PUT {path}/reset"), format!("GET {path}/vnc/screenshot?moveCursor=true")];
        let expected = expected.map(|request| ("node7".to_owned(), request));
        assert_eq!(*agents.0.lock().unwrap(), expected);
        cluster.until("the event", || cluster.reasons() == reasons(["Reset"])).await;
        // By the VM, there is a VMI when the VM's status says so.
        vm(cluster, "Halted").await;
        let (code, status) = ask("GET", "virtualmachines/web/portforward/22").await;
        assert!(
            code == 409 && status["message"].as_str().unwrap().ends_with("VMI is not started"),
            "{status}"
        );
    })
    .await;
}

#[tokio::test]
async fn virt_api_serves_its_documents() {
    on_a_server(async |cluster| {
        let virt_api = VirtApi::new(cluster.virt_api(), Arc::<Agents>::default());
        let get = async |path: &str| {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let response = virt_api.clone().oneshot(request).await.unwrap();
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            serde_json::from_slice::<Value>(&bytes).unwrap()
        };
        let group = "/apis/subresources.kubevirt.io";
        assert_eq!(get(group).await["name"], "subresources.kubevirt.io");
        assert_eq!(get(&format!("{group}/v1")).await["kind"], "APIResourceList");
        assert_eq!(get(&format!("{group}/v1/version")).await["compiler"], "rustc");
        let health = get(&format!("{group}/v1/healthz")).await;
        let version = cluster.admin.apiserver_version().await.unwrap();
        assert_eq!(
            (&health["apiserver"]["connectivity"], &health["apiserver"]["version"]["gitVersion"]),
            (&json!("ok"), &json!(version.git_version))
        );
        assert_eq!(get("/apis/kubevirt.io/v1").await["code"], 404);
    })
    .await;
}

#[tokio::test]
async fn virt_api_has_no_rights_but_those_of_its_subresources() {
    on_a_server(async |cluster| {
        let client = cluster.virt_api();
        let api = |kind: Kind| kind.namespaced(&client, &cluster.namespace);
        let is_forbidden =
            |code: Result<(), kube::Error>| matches!(code, Err(kube::Error::Api(status)) if status.code == 403);
        assert!(is_forbidden(api(Kind::VM).list(&ListParams::default()).await.map(drop)));
        assert!(is_forbidden(api(Kind::VMI).delete("x", &DeleteParams::default()).await.map(drop)));
        let patch = Patch::Merge(json!({}));
        for kind in [Kind::REPLICA_SET, Kind::POOL] {
            let patched = api(kind).patch_status("x", &PatchParams::default(), &patch).await;
            assert!(is_forbidden(patched.map(drop)), "{}", kind.plural);
        }
    })
    .await;
}

#[tokio::test]
async fn what_a_vm_depends_on_is_a_tree() {
    on_a_server(async |cluster| {
        let mut spec = vmi_spec();
        spec["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
        let vm = json!({"spec": {"runStrategy": "Halted", "template": {"spec": spec}}});
        cluster.create(Kind::VM, "web", vm).await;
        let graph = async |options: Value| {
            let (code, graph) = send(cluster, ("GET", "virtualmachines/web/objectgraph"), options).await;
            assert_eq!(code, 200, "{graph}");
            graph
        };
        let reference = |group: &str, kind: &str, name: &str| {
            json!({"apiGroup": group, "kind": kind, "name": name, "namespace": cluster.namespace})
        };
        let whole = graph(Value::Null).await;
        assert_eq!(whole["objectReference"], reference("kubevirt.io", "VirtualMachine", "web"));
        let children = whole["children"].as_array().unwrap();
        assert_eq!(children.len(), 1, "{whole}");
        assert_eq!(children[0]["objectReference"], reference("", "PersistentVolumeClaim", "data"));
        let config = json!({"labelSelector": {"matchLabels": {"kubevirt.io/dependency-type": "config"}}});
        assert_eq!(graph(config).await.get("children"), None);

        // It asks for the Pods of a VMI.
        cluster.create(Kind::VMI, "guest", json!({ "spec": vmi_spec() })).await;
        let path = "virtualmachineinstances/guest/objectgraph";
        let (code, graph) = send(cluster, ("GET", path), Value::Null).await;
        let of_guest = reference("kubevirt.io", "VirtualMachineInstance", "guest");
        assert_eq!((code, &graph["objectReference"]), (200, &of_guest), "{graph}");
        assert_eq!(send(cluster, ("GET", "virtualmachines/none/objectgraph"), Value::Null).await.0, 404);
        assert_eq!(send(cluster, ("PUT", path), Value::Null).await.0, 405);
        let (code, status) = send(cluster, ("PUT", "virtualmachineinstances/guest/backup"), Value::Null).await;
        let why = "backup is not available: backups are not taken yet";
        assert_eq!((code, &status["reason"], &status["message"]), (400, &json!("BadRequest"), &json!(why)));
    })
    .await;
}
