//! The subresources of Pods, and those that services add.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{EvictParams, LogParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use serde_json::{Value, json};
use vireo_apiserver::admission::{Admission, AdmitAll, Attributes};
use vireo_apiserver::auth::User;
use vireo_apiserver::http::{Answer, ApiError, ApiService, Endpoint, ResourcePath};

use crate::test_server::{TestServer, refused};

/// Answers `pods/log`.
#[derive(Debug)]
struct Logs;

impl ApiService for Logs {
    fn resources(&self, group: &str, version: &str) -> Vec<Value> {
        let log = json!({"name": "pods/log", "singularName": "", "namespaced": true, "kind": "Pod", "verbs": ["get"]});
        if (group, version) == ("", "v1") { vec![log] } else { Vec::new() }
    }

    fn endpoint(&self, path: &ResourcePath) -> Option<Result<Endpoint, ApiError>> {
        let is_log = path.group.is_empty() && path.resource == "pods" && path.subresource() == ["log"];
        is_log.then_some(Ok(Endpoint::Connection))
    }

    fn serve(self: Arc<Self>, path: ResourcePath, _: Request) -> Answer<Result<Response, ApiError>> {
        Box::pin(async move { Ok(format!("of {}", path.name.unwrap_or_default()).into_response()) })
    }
}

/// Refuses evictions.
#[derive(Debug)]
struct Keeps;

impl Admission for Keeps {
    fn evict(&self, attributes: &Attributes<'_>, _: bool) -> Result<(), ApiError> {
        let pod = attributes.old.unwrap();
        Err(ApiError::too_many_requests(format!("{} stays", pod["metadata"]["name"])))
    }
}

fn pod(spec: Value) -> Pod {
    let mut pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (field, value) in spec.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    serde_json::from_value(pod).unwrap()
}

async fn get(client: &Client, path: &str, accept: &str) -> Value {
    let request = axum::http::Request::get(path).header("Accept", accept).body(Vec::new()).unwrap();
    client.request(request).await.unwrap()
}

async fn bind(client: &Client, metadata: Value) -> Result<Value, Error> {
    let binding =
        json!({"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"name": "n"}});
    let request = axum::http::Request::post("/api/v1/namespaces/default/pods/a/binding");
    let request = request.header("Content-Type", "application/json");
    client.request(request.body(binding.to_string().into_bytes()).unwrap()).await
}

#[tokio::test]
async fn a_service_adds_subresources_to_the_core_group() {
    let server = TestServer::start_with(Arc::new(AdmitAll), vec![Arc::new(Logs)]);
    let client = server.admin();
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    pods.create(&PostParams::default(), &pod(json!({}))).await.unwrap();
    assert_eq!(pods.logs("a", &LogParams::default()).await.unwrap(), "of a");
    let list = get(&client, "/api/v1", "application/json").await;
    let names: Vec<&str> =
        list["resources"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
    for name in ["pods", "pods/binding", "pods/eviction", "pods/log", "pods/status", "bindings", "configmaps"]
    {
        assert_eq!(names.iter().filter(|known| **known == name).count(), 1, "{name} {names:?}");
    }
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let groups = get(&client, "/api", accept).await;
    let resources = groups["items"][0]["versions"][0]["resources"].as_array().unwrap();
    let pods = resources.iter().find(|one| one["resource"] == "pods").unwrap();
    assert_eq!((&pods["responseKind"]["kind"], &pods["shortNames"]), (&json!("Pod"), &json!(["po"])));
    let parts = pods["subresources"].as_array().unwrap();
    let kind = |name: &str| {
        let part = parts.iter().find(|one| one["subresource"] == name).unwrap();
        let kind = &part["responseKind"];
        ["group", "version", "kind"].map(|field| kind[field].as_str().unwrap().to_owned())
    };
    assert_eq!(kind("eviction"), ["policy", "v1", "Eviction"]);
    assert_eq!(kind("log"), ["", "v1", "Pod"]);
    assert_eq!(kind("status"), ["", "v1", "Pod"]);
}

#[tokio::test]
async fn admission_can_refuse_an_eviction() {
    let server = TestServer::start_with(Arc::new(Keeps), Vec::new());
    let pods: Api<Pod> = Api::default_namespaced(server.admin());
    let missing = refused(pods.evict("a", &EvictParams::default()).await);
    assert_eq!(missing.code, 404);
    pods.create(&PostParams::default(), &pod(json!({}))).await.unwrap();
    let kept = refused(pods.evict("a", &EvictParams::default()).await);
    assert_eq!(
        (kept.code, kept.reason.as_str(), kept.message.as_str()),
        (429, "TooManyRequests", "\"a\" stays")
    );
    pods.get("a").await.unwrap();
}

#[tokio::test]
async fn a_binding_is_of_one_pod() {
    let server = TestServer::start();
    let client = server.admin();
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    pods.create(&PostParams::default(), &pod(json!({}))).await.unwrap();
    let other = refused(bind(&client, json!({"name": "a", "uid": "other"})).await);
    assert_eq!((other.code, other.reason.as_str()), (409, "Conflict"));
    bind(&client, json!({"name": "a", "labels": {"zone": "z"}})).await.unwrap();
    let bound = pods.get("a").await.unwrap();
    assert_eq!(bound.metadata.labels.unwrap()["zone"], "z");
    assert_eq!(bound.spec.unwrap().node_name.as_deref(), Some("n"));
    let unprivileged = server.client(User::named("eve", &["system:authenticated"]));
    assert_eq!(refused(bind(&unprivileged, json!({"name": "a"})).await).code, 403);
}

#[tokio::test]
async fn an_applied_port_has_the_default_protocol_as_its_key() {
    let server = TestServer::start();
    let pods: Api<Pod> = Api::default_namespaced(server.admin());
    let manifest = |image: &str| {
        Patch::Apply(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [
            {"name": "c", "image": image, "ports": [{"containerPort": 80}]}]}}),
        )
    };
    pods.patch("a", &PatchParams::apply("one"), &manifest("i:1")).await.unwrap();
    let again = pods.patch("a", &PatchParams::apply("one"), &manifest("i:2")).await.unwrap();
    let container = &again.spec.unwrap().containers[0];
    assert_eq!(container.image.as_deref(), Some("i:2"));
    let ports = container.ports.as_ref().unwrap();
    assert_eq!((ports.len(), ports[0].protocol.as_deref()), (1, Some("TCP")));
}
