use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;
use vireo_handler::storage::{AllowedDirectories, AllowedPaths};

use std::path::Path;
use std::sync::Arc;

use crate::cdi::CdiApi;
use crate::uploads::Uploads;
use axum::Router;
use serde_json::{Value, json};
use vireo_apiserver::auth::User;
use vireo_apiserver::auth::{Signer, Tokens};
use vireo_apiserver::http::{Measures, Proxy as _, Server, answer};
use vireo_apiserver::resource::Registry;
use vireo_apiserver::store::{Key, Store};
use vireo_install::resource::kubevirt;
use vireo_operators::vmi::{Launcher, StartedBy};

mod world;

pub(crate) use world::tokens;
use world::{LIMIT, World};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const VMIS: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances";

/// What launcher Pods have in common in tests.
fn launcher() -> Launcher {
    Launcher::new("launcher:test", StartedBy::NodeAgent)
}

fn map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

fn vmi(name: &str) -> Value {
    json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": name},
        "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}})
}

#[tokio::test]
async fn the_path_says_what_a_body_does_not() {
    let world = World::new();
    let (code, made) = world.ask("POST", MAPS, json!({"metadata": {"name": "a"}})).await;
    assert_eq!((code, &made["kind"], &made["apiVersion"]), (201, &json!("ConfigMap"), &json!("v1")));
    let bare = json!({"metadata": {"name": "a"}, "spec": vmi("a")["spec"]});
    assert_eq!(world.ask("POST", VMIS, bare).await.0, 400, "other kinds need apiVersion and kind");
}

#[tokio::test]
async fn an_object_lives_from_create_to_delete() {
    let world = World::new();
    let (code, made) = world.ask("POST", MAPS, map("a", json!({"k": "v"}))).await;
    assert_eq!((code, &made["metadata"]["generation"]), (201, &json!(1)));
    assert_eq!(world.ask("POST", MAPS, map("a", json!({}))).await.1["reason"], "AlreadyExists");
    let path = format!("{MAPS}/a");
    let mut changed = made.clone();
    changed["data"]["k"] = json!("w");
    let (code, changed) = world.ask("PUT", &path, changed).await;
    assert_eq!(
        (code, &changed["data"]["k"], &changed["metadata"]["generation"]),
        (200, &json!("w"), &json!(2))
    );
    let (code, status) = world.ask("PUT", &path, made.clone()).await;
    assert_eq!((code, &status["reason"]), (409, &json!("Conflict")), "an old resourceVersion");
    let (code, patched) = world.patch(&path, "merge", json!({"data": {"k": null, "l": "x"}})).await;
    assert_eq!((code, &patched["data"]), (200, &json!({"l": "x"})));
    assert_eq!(patched["metadata"]["uid"], made["metadata"]["uid"]);
    let (_, same) = world.patch(&path, "strategic-merge", json!({"data": {"l": "x"}})).await;
    assert_eq!(
        same["metadata"]["resourceVersion"], patched["metadata"]["resourceVersion"],
        "nothing changed"
    );
    let wrong = json!({"preconditions": {"uid": "other"}});
    assert_eq!(world.ask("DELETE", &path, wrong).await.0, 409);
    assert_eq!(world.ask("DELETE", &path, Value::Null).await.1["status"], "Success");
    let (code, status) = world.ask("GET", &path, Value::Null).await;
    assert_eq!((code, &status["message"]), (404, &json!("configmaps \"a\" not found")));
}

#[tokio::test]
async fn a_dry_run_tells_and_does_nothing() {
    let world = World::new();
    let revision = world.server.store.revision();
    let (code, made) = world.ask("POST", &format!("{MAPS}?dryRun=All"), map("a", json!({}))).await;
    assert_eq!((code, made["metadata"]["uid"].is_string()), (201, true));
    assert_eq!(world.server.store.revision(), revision);
    world.ask("POST", MAPS, map("a", json!({"k": "v"}))).await;
    let path = format!("{MAPS}/a?dryRun=All");
    assert_eq!(world.patch(&path, "merge", json!({"data": {"k": "w"}})).await.1["data"]["k"], "w");
    assert_eq!(world.ask("DELETE", &path, Value::Null).await.0, 200);
    assert_eq!(world.ask("GET", &format!("{MAPS}/a"), Value::Null).await.1["data"]["k"], "v");
}

#[tokio::test]
async fn a_list_comes_in_pages_of_one_moment() {
    let world = World::new();
    for name in ["a", "b", "c", "d"] {
        world.ask("POST", MAPS, map(name, json!({}))).await;
    }
    let (_, first) = world.ask("GET", &format!("{MAPS}?limit=2"), Value::Null).await;
    assert_eq!(first["metadata"]["remainingItemCount"], 2);
    world.ask("DELETE", &format!("{MAPS}/c"), Value::Null).await;
    let next = first["metadata"]["continue"].as_str().unwrap();
    let (_, second) = world.ask("GET", &format!("{MAPS}?limit=2&continue={next}"), Value::Null).await;
    let names: Vec<&Value> =
        second["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]).collect();
    assert_eq!(names, ["c", "d"], "as it was when the first page was read");
    assert!(second["metadata"].get("continue").is_none());
    let (_, some) = world.ask("GET", &format!("{MAPS}?fieldSelector=metadata.name%3Db"), Value::Null).await;
    assert_eq!(some["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn what_a_vmi_lacks_is_told_by_field() {
    let world = World::new();
    let mut bad = vmi("x");
    bad["spec"]["domain"]["memory"] = Value::Null;
    bad["spec"]["domain"]["devices"]["disks"] = json!([{"name": "root"}]);
    let (code, status) = world.ask("POST", VMIS, bad).await;
    assert_eq!((code, &status["reason"]), (422, &json!("Invalid")));
    let fields: Vec<&str> = status["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| cause["field"].as_str().unwrap())
        .collect();
    assert!(fields.contains(&"spec.domain.memory.guest"), "{fields:?}");
    assert!(fields.iter().any(|field| field.starts_with("spec.domain.devices.disks[0]")), "{fields:?}");
    let (code, good) = world.ask("POST", VMIS, vmi("x")).await;
    assert_eq!((code, &good["status"]["phase"]), (201, &json!("Pending")));
    let grow = json!({"spec": {"domain": {"memory": {"guest": "128Mi"}}}});
    assert_eq!(world.patch(&format!("{VMIS}/x"), "merge", grow).await.0, 422);
    let (code, leaving) = world.ask("DELETE", &format!("{VMIS}/x"), Value::Null).await;
    assert_eq!(
        (code, leaving["metadata"]["deletionTimestamp"].is_string()),
        (200, true),
        "the node holds it"
    );
    let released =
        world.patch(&format!("{VMIS}/x"), "merge", json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(released.0, 200);
    assert_eq!(world.ask("GET", &format!("{VMIS}/x"), Value::Null).await.0, 404);
}

#[tokio::test]
async fn hostile_requests_get_the_codes_of_a_real_server() {
    let world = World::new();
    world.ask("POST", MAPS, map("a", json!({}))).await;
    let item = format!("{MAPS}/a");
    let absent = "/api/v1/namespaces/none/configmaps";
    let large = "x".repeat(vireo_apiserver::http::body::LIMIT + 1);
    let deep = "[".repeat(100_000);
    let json = "application/json";
    let rows: Vec<(&str, String, &str, String, u16)> = vec![
        ("POST", MAPS.into(), json, large, 413),
        ("POST", MAPS.into(), json, deep, 400),
        ("POST", MAPS.into(), json, "[]".into(), 400),
        ("POST", MAPS.into(), json, String::new(), 400),
        ("POST", MAPS.into(), "application/vnd.kubernetes.protobuf", "k8s".into(), 400),
        ("POST", MAPS.into(), json, map("A/../b", json!({})).to_string(), 422),
        ("POST", MAPS.into(), json, map("x", json!({"a": 1})).to_string(), 400),
        ("POST", MAPS.into(), json, map("x", json!({"../a": "1"})).to_string(), 422),
        ("POST", MAPS.into(), json, vmi("x").to_string(), 400),
        ("POST", absent.into(), json, map("x", json!({})).to_string(), 404),
        ("POST", "/api/v1/configmaps".into(), json, map("x", json!({})).to_string(), 400),
        ("PATCH", item.clone(), "application/apply-patch+yaml", "{}".into(), 422),
        (
            "PATCH",
            item.clone(),
            "application/json-patch+json",
            "[{\"op\":\"replace\",\"path\":\"\",\"value\":1}]".into(),
            400,
        ),
        (
            "PATCH",
            item.clone(),
            "application/json-patch+json",
            "[{\"op\":\"remove\",\"path\":\"/x\"}]".into(),
            422,
        ),
        (
            "PATCH",
            item.clone(),
            "application/merge-patch+json",
            "{\"metadata\":{\"resourceVersion\":\"1\"}}".into(),
            409,
        ),
        ("PATCH", VMIS.to_owned() + "/x", "application/strategic-merge-patch+json", "{}".into(), 415),
        (
            "PATCH",
            item.clone(),
            "application/merge-patch+json",
            "{\"metadata\":{\"name\":\"b\"}}".into(),
            400,
        ),
        ("PATCH", item.clone(), "application/merge-patch+json", "{\"kind\":\"Secret\"}".into(), 422),
        ("PUT", VMIS.to_owned() + "/x", json, vmi("x").to_string(), 422),
        ("DELETE", item.clone(), json, "{\"kind\":\"Secret\"}".into(), 400),
        ("DELETE", format!("{item}?propagationPolicy=Lazy"), json, String::new(), 422),
        ("POST", format!("{MAPS}?dryRun=Some"), json, map("b", json!({})).to_string(), 422),
        ("GET", format!("{MAPS}?labelSelector=a%20b"), json, String::new(), 400),
        ("GET", format!("{MAPS}?fieldSelector=data.k%3Dv"), json, String::new(), 400),
        ("GET", format!("{MAPS}?limit=three"), json, String::new(), 400),
        ("GET", format!("{MAPS}?continue=zzz"), json, String::new(), 400),
        ("GET", format!("{MAPS}?resourceVersion=1&resourceVersionMatch=Exact"), json, String::new(), 200),
        ("GET", format!("{MAPS}?resourceVersion=999999"), json, String::new(), 504),
        ("GET", "/api/v1/namespaces/default/configmaps/%2e%2e".into(), json, String::new(), 404),
        ("GET", "/apis/kubevirt.io/v1/virtualmachinepools".into(), json, String::new(), 404),
        ("DELETE", "/api/v1/configmaps".into(), json, String::new(), 405),
        ("DELETE", "/api/v1/namespaces/default".into(), json, String::new(), 403),
        ("PUT", "/version".into(), json, String::new(), 405),
        ("BREW", item.clone(), json, String::new(), 405),
    ];
    for (method, path, media, body, expected) in rows {
        let shown: String = body.chars().take(60).collect();
        let (code, status) = world.send(method, &path, media, body).await;
        assert_eq!(code, expected, "{method} {path} {shown}: {status}");
        if code >= 400 {
            assert_eq!(
                (&status["kind"], &status["code"]),
                (&json!("Status"), &json!(code)),
                "{method} {path}"
            );
        }
    }
    assert_eq!(world.server.store.list("configmaps", None).objects.len(), 1);
}

/// Lines of a watch, as they come.
struct Lines {
    body: Body,
    buffer: String,
}

impl Lines {
    async fn of(world: &World, path: &str) -> Self {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = answer(Arc::clone(&world.server), User::administrator(), request).await;
        assert_eq!(response.status().as_u16(), 200, "{path}");
        Self { body: response.into_body(), buffer: String::new() }
    }

    /// Type and name, or nothing at the end.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((line, rest)) = self.buffer.split_once('\n') {
                let event: Value = serde_json::from_str(line).unwrap();
                self.buffer = rest.to_owned();
                return Some((event["type"].as_str().unwrap().to_owned(), event["object"].clone()));
            }
            let chunk = self.body.frame().await?.unwrap().into_data().unwrap();
            self.buffer.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    async fn reported(&mut self) -> String {
        let (kind, object) = self.next().await.unwrap();
        format!("{kind} {}", object["metadata"]["name"].as_str().unwrap_or_default())
    }
}

#[tokio::test]
async fn a_watch_tells_what_enters_changes_and_leaves_a_selection() {
    let world = World::new();
    let labelled = |name: &str, tier: &str| {
        let mut map = map(name, json!({}));
        map["metadata"]["labels"] = json!({ "tier": tier });
        map
    };
    world.ask("POST", MAPS, labelled("a", "web")).await;
    world.ask("POST", MAPS, labelled("b", "db")).await;
    let mut all = Lines::of(&world, &format!("{MAPS}?watch=true")).await;
    let mut web = Lines::of(&world, &format!("{MAPS}?watch=1&labelSelector=tier%3Dweb")).await;
    assert_eq!((all.reported().await, all.reported().await), ("ADDED a".to_owned(), "ADDED b".to_owned()));
    assert_eq!(web.reported().await, "ADDED a");
    world.patch(&format!("{MAPS}/b"), "merge", json!({"metadata": {"labels": {"tier": "web"}}})).await;
    world.patch(&format!("{MAPS}/a"), "merge", json!({"metadata": {"labels": {"tier": "db"}}})).await;
    world.ask("DELETE", &format!("{MAPS}/b"), Value::Null).await;
    for expected in ["MODIFIED b", "MODIFIED a", "DELETED b"] {
        assert_eq!(all.reported().await, expected);
    }
    for expected in ["ADDED b", "DELETED a", "DELETED b"] {
        assert_eq!(web.reported().await, expected);
    }
}

#[tokio::test]
async fn a_watch_goes_on_from_its_moment_or_says_that_it_is_forgotten() {
    let world = World::new();
    // Larger than a piece of what a watch begins with.
    let large = json!({"text": "x".repeat(100 << 10)});
    world.ask("POST", MAPS, map("a", large.clone())).await;
    let (_, list) = world.ask("GET", MAPS, Value::Null).await;
    let from = list["metadata"]["resourceVersion"].as_str().unwrap();
    world.ask("POST", MAPS, map("b", large)).await;
    let mut watch = Lines::of(&world, &format!("{MAPS}?watch=true&resourceVersion={from}")).await;
    assert_eq!(watch.reported().await, "ADDED b");
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut streamed = Lines::of(&world, &format!("{MAPS}?watch=true&{initial}")).await;
    assert_eq!(
        (streamed.reported().await, streamed.reported().await),
        ("ADDED a".to_owned(), "ADDED b".to_owned())
    );
    let (kind, mark) = streamed.next().await.unwrap();
    assert_eq!(
        (kind.as_str(), &mark["metadata"]["annotations"]["k8s.io/initial-events-end"]),
        ("BOOKMARK", &json!("true"))
    );
    let mut lost = Lines::of(&world, &format!("{MAPS}?watch=true&resourceVersion=999999")).await;
    let (kind, status) = lost.next().await.unwrap();
    assert_eq!(
        (kind.as_str(), &status["code"], &status["reason"]),
        ("ERROR", &json!(410), &json!("Expired"))
    );
    assert!(lost.next().await.is_none(), "and it is over");
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_in_time_and_marks_where_it_is() {
    let world = World::new();
    let path = format!(
        "{MAPS}?watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds=90",
        world.server.store.revision()
    );
    let mut watch = Lines::of(&world, &path).await;
    let (kind, mark) = watch.next().await.unwrap();
    assert_eq!(kind, "BOOKMARK");
    assert_eq!(mark["metadata"]["resourceVersion"], world.server.store.revision().to_string());
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn unknown_fields_are_refused_where_that_was_asked_for() {
    let world = World::new();
    let mut odd = map("a", json!({}));
    odd["dota"] = json!({});
    let (code, status) = world.ask("POST", &format!("{MAPS}?fieldValidation=Strict"), odd.clone()).await;
    assert_eq!(code, 400);
    assert!(status["message"].as_str().unwrap().contains("unknown field \"dota\""), "{status}");
    let (code, made) = world.ask("POST", MAPS, odd).await;
    assert_eq!((code, made.get("dota")), (201, None));
}

#[tokio::test]
async fn a_machine_is_started_and_stopped_by_asking() {
    let world = World::new();
    let vms = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines";
    let mut vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "web"},
        "spec": {"runStrategy": "Sometimes", "template": {"spec": {"domain": {"memory": {"guest": "0"}, "devices": {}}}}}});
    let (code, status) = world.ask("POST", vms, vm.clone()).await;
    let fields: Vec<&str> = status["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| cause["field"].as_str().unwrap())
        .collect();
    assert_eq!((code, fields), (422, vec!["spec.runStrategy", "spec.template.spec.domain.memory.guest"]));
    vm["spec"]["runStrategy"] = json!("Halted");
    vm["spec"]["template"]["spec"]["domain"]["memory"]["guest"] = json!("64Mi");
    assert_eq!(world.ask("POST", vms, vm).await.0, 201);
    let asks = "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachines";
    let send = async |what: &str, body: &str| {
        let request =
            Request::builder().method("PUT").uri(format!("{asks}/{what}")).body(Body::from(body.to_owned()));
        let response = answer(Arc::clone(&world.server), User::administrator(), request.unwrap()).await;
        response.status().as_u16()
    };
    assert_eq!(send("web/stop", "").await, 409, "it does not run");
    assert_eq!(send("none/start", "").await, 404);
    assert_eq!(send("web/start", "{\"dryRun\": [\"All\"]}").await, 202);
    let strategy =
        async || world.ask("GET", &format!("{vms}/web"), Value::Null).await.1["spec"]["runStrategy"].clone();
    assert_eq!(strategy().await, "Halted");
    assert_eq!(send("web/start", "{}").await, 202);
    assert_eq!(strategy().await, "Always");
    assert_eq!(send("web/start", "").await, 409, "Always does not");
    assert_eq!(send("web/restart", "{\"gracePeriodSeconds\": 5}").await, 400);
    assert_eq!(send("web/stop", "").await, 202);
    assert_eq!(strategy().await, "Halted");
}

mod any_server;
mod apply;
mod cluster;
mod defaults;
mod limits;
mod placement;
mod pods;
mod projected;
mod provisioner;
mod reserved;
mod rights;
mod start;
mod upload;
mod vm;
