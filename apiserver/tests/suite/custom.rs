//! Objects of a CustomResourceDefinition.

use std::pin::pin;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::test_server::{TestServer, refused};

/// How long a definition may take to be served, and an event to come.
const LIMIT: Duration = Duration::from_secs(30);

/// Defines `boxes.example.com` and waits until they are served.
async fn boxes(client: &Client) -> Api<DynamicObject> {
    let integer = json!({"type": "integer", "minimum": 0});
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"size": integer.clone()}},
        "status": {"type": "object", "properties": {"filled": integer}}}});
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": "boxes.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "boxes", "kind": "Box"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}]}
    }))
    .unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&PostParams::default(), &definition).await.unwrap();
    let established = await_condition(definitions, "boxes.example.com", conditions::is_crd_established());
    tokio::time::timeout(LIMIT, established).await.expect("it is established").unwrap();
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("example.com", "v1", "Box"), "boxes");
    Api::default_namespaced_with(client.clone(), &resource)
}

fn manifest(part: &str, value: Value) -> Patch<Value> {
    let (api_version, kind) = ("example.com/v1", "Box");
    Patch::Apply(json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}, part: value}))
}

#[tokio::test]
async fn custom_objects_are_applied_watched_and_validated() {
    let server = TestServer::start();
    let boxes = boxes(&server.admin()).await;
    let params = PatchParams::apply("controller");
    let made = boxes.patch("a", &params, &manifest("spec", json!({"size": 3}))).await.unwrap();
    assert_eq!(made.metadata.generation, Some(1));
    let invalid = refused(boxes.patch("a", &params, &manifest("spec", json!({"size": -1}))).await);
    assert_eq!((invalid.code, invalid.reason.as_str()), (422, "Invalid"));

    let mut events = pin!(watcher::watcher(boxes.clone(), watcher::Config::default()));
    let mut next = async || {
        let next = tokio::time::timeout(LIMIT, events.try_next()).await;
        next.expect("an event comes").unwrap().expect("the stream goes on")
    };
    assert!(matches!(next().await, Event::Init));
    assert!(matches!(next().await, Event::InitApply(one) if one.uid() == made.uid()));
    assert!(matches!(next().await, Event::InitDone));
    let status = boxes.patch_status("a", &params, &manifest("status", json!({"filled": 2}))).await.unwrap();
    assert_eq!((&status.data["spec"]["size"], status.metadata.generation), (&json!(3), Some(1)));
    let Event::Apply(seen) = next().await else { panic!("the status changed") };
    assert_eq!(
        (&seen.data["status"]["filled"], seen.resource_version()),
        (&json!(2), status.resource_version())
    );
    assert_eq!(boxes.list(&ListParams::default()).await.unwrap().items.len(), 1);
}
