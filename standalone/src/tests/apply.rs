//! Server-side apply, and whose fields are whose.

use super::*;

impl World {
    async fn apply(&self, path: &str, query: &str, manifest: &Value) -> (u16, Value) {
        let path = format!("{path}?{query}");
        self.send("PATCH", &path, "application/apply-patch+yaml", manifest.to_string()).await
    }
}

/// Who has set what, in order of their names.
fn owners(object: &Value) -> Vec<(String, String, Value)> {
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let reported = |entry: &Value| {
        let name = format!("{} {}", text(entry, "manager"), text(entry, "operation"));
        (name, text(entry, "subresource"), entry["fieldsV1"].clone())
    };
    let mut owners: Vec<_> = entries.iter().map(reported).collect();
    // The server's order is by time, of which a test may take more than a second.
    owners.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    owners
}

#[tokio::test]
async fn a_manifest_is_applied_and_conflicts_are_reported() {
    let world = World::new();
    let path = format!("{MAPS}/a");
    let (code, made) = world.apply(&path, "fieldManager=one", &map("a", json!({"k": "1"}))).await;
    assert_eq!((code, &made["metadata"]["generation"]), (201, &json!(1)));
    let data = |name: &str| json!({"f:data": {format!("f:{name}"): {}}});
    assert_eq!(owners(&made), [("one Apply".to_owned(), String::new(), data("k"))]);
    let (code, again) = world.apply(&path, "fieldManager=one", &map("a", json!({"k": "1"}))).await;
    assert_eq!((code, &again), (200, &made), "nothing happened");
    let rival = map("a", json!({"k": "2"}));
    let (code, status) = world.apply(&path, "fieldManager=two", &rival).await;
    assert_eq!((code, &status["reason"]), (409, &json!("Conflict")));
    assert_eq!(status["message"], "Apply failed with 1 conflict: conflict with \"one\": .data.k");
    let cause =
        json!({"reason": "FieldManagerConflict", "message": "conflict with \"one\"", "field": ".data.k"});
    assert_eq!(status["details"]["causes"], json!([cause]));
    let (code, taken) = world.apply(&path, "fieldManager=two&force=true", &rival).await;
    assert_eq!((code, &taken["data"]["k"]), (200, &json!("2")));
    assert_eq!(owners(&taken), [("two Apply".to_owned(), String::new(), data("k"))]);
    let (_, dry) = world.apply(&path, "fieldManager=two&dryRun=All", &map("a", json!({"k": "3"}))).await;
    assert_eq!(dry["data"]["k"], "3");
    assert_eq!(world.ask("GET", &path, Value::Null).await.1["data"]["k"], "2");
}

#[tokio::test]
async fn every_write_is_accounted_for() {
    let world = World::new();
    let path = format!("{MAPS}/a");
    let query = "fieldManager=kubectl-create";
    let (_, made) =
        world.ask("POST", &format!("{MAPS}?{query}"), map("a", json!({"k": "1", "l": "1"}))).await;
    let all = json!({"f:data": {".": {}, "f:k": {}, "f:l": {}}});
    assert_eq!(owners(&made), [("kubectl-create Update".to_owned(), String::new(), all)]);
    let edit = json!({"data": {"k": "2"}});
    let (_, edited) = world.patch(&format!("{path}?fieldManager=edit"), "merge", edit).await;
    let left = json!({"f:data": {".": {}, "f:l": {}}});
    assert_eq!(
        owners(&edited),
        [
            ("edit Update".to_owned(), String::new(), json!({"f:data": {"f:k": {}}})),
            ("kubectl-create Update".to_owned(), String::new(), left)
        ]
    );
    // As kubectl moves from the client's apply to the server's.
    let entries = json!([{"manager": "kubectl", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:k": {}}}}]);
    let patch = json!([{"op": "replace", "path": "/metadata/managedFields", "value": entries}]);
    let (code, moved) = world.patch(&path, "json", patch).await;
    assert_eq!((code, owners(&moved).len(), owners(&moved)[0].0.as_str()), (200, 1, "kubectl Apply"));
    let mut silent = moved.clone();
    silent["metadata"].as_object_mut().unwrap().remove("managedFields");
    let (_, same) = world.ask("PUT", &path, silent).await;
    assert_eq!(same, moved, "who says nothing of managers keeps them");
    let namespace = "/api/v1/namespaces/default";
    let status = json!({"status": {"conditions": [{"type": "Odd", "status": "True"}]}});
    let (_, marked) = world.patch(&format!("{namespace}/status?fieldManager=me"), "merge", status).await;
    let mine = owners(&marked).into_iter().find(|(name, ..)| name == "me Update").unwrap();
    assert_eq!(mine.1, "status");
    assert!(mine.2["f:status"]["f:conditions"].get("k:{\"type\":\"Odd\"}").is_some(), "{mine:?}");
    assert!(owners(&marked).iter().any(|(name, ..)| name == "vireo Update"), "the server's own part");
}

#[tokio::test]
async fn a_status_is_applied_by_its_own_subresource() {
    let world = World::new();
    let path = "/api/v1/namespaces/default";
    let with = |conditions: Value| {
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": {"x": "y"}},
            "status": {"conditions": conditions}})
    };
    let condition = |kind: &str| json!({"type": kind, "status": "True"});
    let query = "fieldManager=one";
    world.apply(&format!("{path}/status"), query, &with(json!([condition("A"), condition("B")]))).await;
    let (code, rest) = world.apply(&format!("{path}/status"), query, &with(json!([condition("A")]))).await;
    assert_eq!((code, &rest["status"]["conditions"]), (200, &json!([condition("A")])));
    assert_eq!(rest["status"]["phase"], "Active");
    assert!(rest["metadata"]["labels"].get("x").is_none(), "only the status is written there");
    let (_, labelled) = world.apply(path, "fieldManager=two", &with(json!([]))).await;
    assert_eq!((&labelled["status"], &labelled["metadata"]["labels"]["x"]), (&rest["status"], &json!("y")));
}

#[tokio::test]
async fn the_url_names_what_a_manifest_does_not() {
    let world = World::new();
    let path = format!("{MAPS}/a");
    let nameless = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"}});
    for expected in [201, 200] {
        let (code, made) = world.apply(&path, "fieldManager=m", &nameless).await;
        assert_eq!((code, &made["metadata"]["name"]), (expected, &json!("a")), "{made}");
    }
}

#[tokio::test]
async fn what_cannot_be_applied_is_refused() {
    let world = World::new();
    let good = map("a", json!({}));
    let mut unknown = good.clone();
    unknown["dota"] = json!({});
    let mut managed = good.clone();
    managed["metadata"]["managedFields"] = json!([]);
    let mut known = good.clone();
    known["metadata"]["uid"] = json!("u");
    let path = format!("{MAPS}/a");
    for (path, query, manifest, expected, word) in [
        (&path, "", &good, 422, "fieldManager: Required value"),
        (&path, &format!("fieldManager={}", "x".repeat(129)), &good, 422, "Too long"),
        (&path, "fieldManager=m&force=x", &good, 400, "force"),
        (&path, "fieldManager=m", &unknown, 400, ".dota: field not declared in schema"),
        (&path, "fieldManager=m", &managed, 400, "managedFields must be nil"),
        (&path, "fieldManager=m", &known, 409, "uid mismatch"),
        (&path, "fieldManager=m", &map("b", json!({})), 400, "does not match the name on the URL"),
        (&path, "fieldManager=m", &vmi("a"), 400, "does not match the expected"),
        (&path, "fieldManager=m", &json!([1]), 400, "is not an object"),
        (&"/api/v1/namespaces/none/configmaps/a".to_owned(), "fieldManager=m", &good, 404, "not found"),
        (
            &"/api/v1/namespaces/none/status".to_owned(),
            "fieldManager=m",
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "none"}}),
            404,
            "not found",
        ),
    ] {
        let (code, status) = world.apply(path, query, manifest).await;
        assert!(
            code == expected && status["message"].as_str().unwrap().contains(word),
            "{query} {manifest}: {status}"
        );
    }
    world.ask("POST", MAPS, good.clone()).await;
    let (code, status) = world.patch(&format!("{path}?force=true"), "merge", json!({})).await;
    assert!(code == 422 && status["message"].as_str().unwrap().contains("non-apply patch"), "{status}");
}

#[tokio::test]
async fn lists_of_a_template_are_merged_by_their_keys() {
    let world = World::new();
    let path = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines/web";
    let vm = |spec: Value| {
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "web"},
            "spec": {"template": {"spec": spec}}})
    };
    let constraint = |key: &str, skew: i32| json!({"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"});
    let mut first = vm(vmi("web")["spec"].take());
    first["spec"]["runStrategy"] = json!("Halted");
    first["spec"]["template"]["spec"]["topologySpreadConstraints"] = json!([constraint("zone", 1)]);
    let (code, made) = world.apply(path, "fieldManager=one", &first).await;
    assert_eq!(code, 201, "{made}");
    let second = vm(json!({"topologySpreadConstraints": [constraint("rack", 2)]}));
    let (code, both) = world.apply(path, "fieldManager=two", &second).await;
    assert_eq!(code, 200, "{both}");
    let merged = &both["spec"]["template"]["spec"]["topologySpreadConstraints"];
    assert_eq!(merged, &json!([constraint("zone", 1), constraint("rack", 2)]));
    let rival = vm(json!({"topologySpreadConstraints": [constraint("zone", 3)]}));
    let (code, status) = world.apply(path, "fieldManager=two", &rival).await;
    let field = ".spec.template.spec.topologySpreadConstraints[topologyKey=\"zone\",whenUnsatisfiable=\"DoNotSchedule\"].maxSkew";
    assert_eq!((code, &status["details"]["causes"][0]["field"]), (409, &json!(field)));
    let keyless = vm(json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone"}]}));
    assert_eq!(world.apply(path, "fieldManager=two", &keyless).await.0, 400);
}

#[tokio::test]
async fn a_scale_is_managed_by_its_writer() {
    let world = World::new();
    let sets = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstancereplicasets";
    let set = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet", "metadata": {"name": "web"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
            "spec": vmi("x")["spec"]}}});
    let (code, made) = world.ask("POST", sets, set).await;
    assert_eq!(code, 201, "{made}");
    let path = format!("{sets}/web/scale");
    let (code, scale) = world.ask("GET", &path, Value::Null).await;
    assert_eq!((code, &scale["kind"], &scale["spec"]["replicas"]), (200, &json!("Scale"), &json!(1)));
    let mut wanted = scale.clone();
    wanted["spec"]["replicas"] = json!(3);
    let (code, dry) = world.ask("PUT", &format!("{path}?dryRun=All"), wanted.clone()).await;
    assert_eq!((code, &dry["spec"]["replicas"]), (200, &json!(3)));
    assert_eq!(world.ask("GET", &path, Value::Null).await.1, scale, "it was only asked");
    let (code, scaled) = world.ask("PUT", &format!("{path}?fieldManager=me"), wanted.clone()).await;
    assert_eq!((code, &scaled["spec"]["replicas"]), (200, &json!(3)));
    assert_eq!(world.ask("PUT", &path, wanted).await.0, 409, "an old resourceVersion");
    let (_, after) = world.ask("GET", &format!("{sets}/web"), Value::Null).await;
    let mine = owners(&after).into_iter().find(|(name, ..)| name == "me Update");
    assert_eq!(
        mine,
        Some(("me Update".to_owned(), "scale".to_owned(), json!({"f:spec": {"f:replicas": {}}})))
    );
    let (code, status) = world.patch(&path, "merge", json!({"spec": {"replicas": -1}})).await;
    assert_eq!((code, &status["details"]["causes"][0]["field"]), (422, &json!("spec.replicas")));
    assert_eq!(world.ask("GET", &format!("{sets}/none/scale"), Value::Null).await.0, 404);
}
