use vireo_apiserver::store::{Key, Limits};

use super::*;

const EVENTS: &str = "/api/v1/namespaces/default/events";

fn nested(depth: usize) -> Value {
    (0..depth).fold(json!(1), |inner, _| json!({ "a": inner }))
}

fn event(series: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"namespace": "default"}, "series": series})
}

/// The reason and the field of a rejection.
fn why((code, status): (u16, Value)) -> (u16, String, String) {
    let text = |at: &str| status.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
    (code, text("/reason"), text("/details/causes/0/field"))
}

#[tokio::test]
async fn copies_of_a_patch_are_refused_before_they_are_made() {
    let world = World::new();
    let data = json!({"k": "x".repeat(1_000_000)});
    let (code, made) = world.ask("POST", MAPS, map("a", data)).await;
    assert_eq!(code, 201, "{}", made["message"]);
    let copy = |number: u8| json!({"op": "copy", "from": "/data", "path": format!("/data/x{number}")});
    let bomb = Value::Array((0..24).map(copy).collect());
    let (code, status) = world.patch(&format!("{MAPS}/a"), "json", bomb).await;
    assert_eq!((code, &status["reason"]), (413, &json!("RequestEntityTooLarge")));
    let (_, still) = world.ask("GET", &format!("{MAPS}/a"), Value::Null).await;
    assert_eq!(still, made);
}

#[tokio::test]
async fn no_write_makes_an_object_too_deep() {
    let most = Limits::REQUEST.depth;
    let world = World::new();
    assert_eq!(world.ask("POST", EVENTS, event(nested(most - 1))).await.0, 201);
    let item = format!("{EVENTS}/e");
    let (_, before) = world.ask("GET", &item, Value::Null).await;
    let deep = event(nested(most));
    let mut fresh = deep.clone();
    fresh["metadata"]["name"] = json!("fresh");
    let mut replaced = before.clone();
    replaced["series"] = nested(most);
    let end = format!("/series{}", "/a".repeat(most - 2));
    let put = json!([{"op": "replace", "path": end, "value": nested(2)}]);
    let doubled = json!([{"op": "copy", "from": "/series", "path": end}]);
    let apply = "application/apply-patch+yaml";
    for (what, refused) in [
        ("create", world.ask("POST", EVENTS, fresh.clone()).await),
        ("update", world.ask("PUT", &item, replaced).await),
        ("merge", world.patch(&item, "merge", json!({"series": nested(most)})).await),
        ("strategic", world.patch(&item, "strategic-merge", json!({"series": nested(most)})).await),
    ] {
        let expected = (422, "Invalid".to_owned(), "series.a.a".to_owned());
        assert_eq!(why(refused), expected, "{what}");
    }
    for (what, (code, status)) in [
        ("add", world.patch(&item, "json", put).await),
        ("copy", world.patch(&item, "json", doubled).await),
        (
            "apply",
            world.send("PATCH", &format!("{item}?fieldManager=m&force=true"), apply, deep.to_string()).await,
        ),
        (
            "create by applying",
            world.send("PATCH", &format!("{EVENTS}/fresh?fieldManager=m"), apply, fresh.to_string()).await,
        ),
    ] {
        assert!([400, 422].contains(&code), "{what}: {status}");
    }
    let (_, after) = world.ask("GET", &item, Value::Null).await;
    assert_eq!(after, before);
    let path = format!("{item}?fieldManager=m&force=true");
    assert_eq!(world.send("PATCH", &path, apply, event(nested(60)).to_string()).await.0, 200);
}

#[tokio::test]
async fn an_object_may_be_as_large_as_etcd_takes_it() {
    let world = World::new();
    let of = |bytes: usize| {
        let mut event = event(json!({}));
        event["message"] = json!("x".repeat(bytes));
        event
    };
    let most = Limits::REQUEST.bytes;
    let refused = world.ask("POST", EVENTS, of(most)).await;
    assert_eq!(why(refused).1, "RequestEntityTooLarge");
    assert_eq!(world.ask("POST", EVENTS, of(most - 1000)).await.0, 201);
    let item = format!("{EVENTS}/e");
    let grown = world.patch(&item, "merge", json!({"reason": "x".repeat(1000)})).await;
    assert_eq!(why(grown).0, 413);
    // What is not large is not refused for what is.
    assert_eq!(world.patch(&item, "merge", json!({"reason": "x"})).await.0, 200);
    assert_eq!(world.ask("DELETE", &item, Value::Null).await.0, 200);
}

#[tokio::test]
async fn an_administrator_learns_of_objects_that_cannot_be_read() {
    let world = World::with_unreadable(&[Key::new("configmaps", "default", "lost")]);
    let request = Request::builder().uri("/readyz?verbose").body(Body::empty()).unwrap();
    let response = answer(Arc::clone(&world.server), User::administrator(), request).await;
    assert_eq!(response.status(), 200);
    let reported = response.into_body().collect().await.unwrap().to_bytes();
    let reported = std::str::from_utf8(&reported).unwrap();
    assert!(reported.contains("[+]objects ok: 1 could not be read"), "{reported}");
    let mut registry = prometheus_client::registry::Registry::default();
    let server = &world.server;
    server.measures.register(&mut registry, Arc::clone(&server.store), server.flow_control.clone());
    let mut shown = String::new();
    prometheus_client::encoding::text::encode(&mut shown, &registry).unwrap();
    assert!(shown.contains("vireo_unreadable_objects{resource=\"configmaps\"} 1"), "{shown}");
}

/// Every kind, with a part that is as deep as the parser lets through, in debug builds on the stack of a worker.
#[tokio::test]
async fn deep_objects_of_every_kind_are_answered() {
    let world = World::new();
    let parsed = 120;
    let lists = (0..parsed - 10).fold(json!([]), |inner, _| json!([inner]));
    let rows: Vec<_> = world.server.served.registry().all().cloned().collect();
    for row in rows {
        let namespace = if row.namespaced { "/namespaces/default" } else { "" };
        let version = row.api_version();
        let root = if row.group.is_empty() { "api" } else { "apis" };
        let path = format!("/{root}/{version}{namespace}/{}", row.plural);
        for part in ["spec", "status", "series", "rules", "data", "metadata", "template", "allowedTopologies"]
        {
            for deep in [nested(parsed), lists.clone(), json!({"template": nested(parsed - 5)})] {
                let name = "default";
                let mut value = json!({"apiVersion": version, "kind": row.kind, "metadata": {"name": name}});
                match part {
                    "metadata" => {
                        value["metadata"]["managedFields"] = json!([{"manager": "m", "operation": "Update",
                        "apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": deep}])
                    }
                    part => value[part] = deep,
                }
                let (code, _) = world.ask("POST", &path, value.clone()).await;
                assert!((200..500).contains(&code), "{path} {part}: {code}");
                let (code, _) = world.patch(&format!("{path}/{name}"), "merge", value.clone()).await;
                assert!((200..500).contains(&code), "{path} {part}: {code}");
                let apply = format!("{path}/{name}?fieldManager=m&force=true");
                let media = "application/apply-patch+yaml";
                let (code, _) = world.send("PATCH", &apply, media, value.to_string()).await;
                assert!((200..500).contains(&code), "{path} {part}: {code}");
            }
        }
    }
}
