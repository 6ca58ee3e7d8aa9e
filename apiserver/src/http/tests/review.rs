//! TokenReview and the access reviews.

use super::*;

impl World {
    async fn review(&self, user: User, path: &str, spec: Value) -> (u16, Value) {
        let request = Request::builder().method("POST").uri(format!("/apis/{path}"));
        self.send_as(user, request.body(Body::from(json!({ "spec": spec }).to_string())).unwrap()).await
    }
}

#[tokio::test]
async fn reviews_report_users_and_their_rights() {
    let world = World::new();
    let (admin, other) = (User::administrator, || User::named("other", &["system:authenticated"]));
    let (code, me) = world.review(admin(), "authentication.k8s.io/v1/selfsubjectreviews", Value::Null).await;
    assert_eq!((code, &me["kind"]), (201, &json!("SelfSubjectReview")));
    assert_eq!(
        me["status"]["userInfo"],
        json!({"username": "admin", "groups": ["system:masters", "system:authenticated"]})
    );
    let token = async |token: &str| {
        let spec = json!({ "token": token });
        world.review(admin(), "authentication.k8s.io/v1/tokenreviews", spec).await.1["status"].clone()
    };
    assert_eq!(token("right").await["user"]["username"], "admin");
    assert!(token("wrong").await.get("authenticated").is_none());
    let objects = json!({"resourceAttributes": {"verb": "delete", "resource": "nodes"}});
    let version = json!({"nonResourceAttributes": {"verb": "get", "path": "/version"}});
    let may = "authorization.k8s.io/v1/selfsubjectaccessreviews";
    for (user, spec, allowed) in [
        (admin(), &objects, true),
        (admin(), &version, true),
        (other(), &objects, false),
        (other(), &version, true),
    ] {
        let (_, review) = world.review(user.clone(), may, spec.clone()).await;
        assert_eq!(review["status"]["allowed"], allowed, "{user:?} {spec}");
    }
    let mut theirs = objects.clone();
    for (groups, allowed) in [(json!(["system:masters"]), true), (json!(["others"]), false)] {
        theirs["groups"] = groups;
        for (resource, namespace) in
            [("subjectaccessreviews", ""), ("namespaces/default/localsubjectaccessreviews", "default")]
        {
            theirs["resourceAttributes"]["namespace"] = json!(namespace);
            let path = format!("authorization.k8s.io/v1/{resource}");
            let (code, review) = world.review(admin(), &path, theirs.clone()).await;
            assert_eq!((code, &review["status"]), (201, &json!({ "allowed": allowed })), "{path} {theirs}");
        }
    }
    let rules = "authorization.k8s.io/v1/selfsubjectrulesreviews";
    let (_, all) = world.review(admin(), rules, json!({"namespace": "default"})).await;
    assert_eq!(all["status"]["resourceRules"][0]["verbs"], json!(["*"]));
    let (_, few) = world.review(other(), rules, json!({"namespace": "default"})).await;
    assert!(few["status"]["nonResourceRules"].to_string().contains("/version"), "{few}");
    let kinds = few["status"]["resourceRules"].to_string();
    assert!(kinds.contains("selfsubjectreviews") && !kinds.contains("secrets"), "{few}");
    for (path, spec, code) in [
        (may, json!({}), 422),
        (may, json!({"resourceAttributes": {}, "nonResourceAttributes": {}}), 422),
        ("authorization.k8s.io/v1/subjectaccessreviews", objects, 422),
        ("authentication.k8s.io/v1/tokenreviews", json!({}), 422),
        (
            "authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews",
            json!({"user": "x", "resourceAttributes": {"namespace": "kube-system"}}),
            422,
        ),
        (
            "authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews",
            json!({"user": "x", "nonResourceAttributes": {"path": "/"}}),
            422,
        ),
        (rules, json!({}), 400),
        ("authorization.k8s.io/v1/inventions", json!({}), 404),
        ("authorization.k8s.io/v2/selfsubjectaccessreviews", json!({}), 404),
    ] {
        assert_eq!(world.review(admin(), path, spec.clone()).await.0, code, "{path} {spec}");
    }
    assert_eq!(world.ask("GET", &format!("/apis/{may}"), Value::Null).await.0, 405);
    let (_, found) = world.ask("GET", "/apis/authorization.k8s.io/v1", Value::Null).await;
    assert_eq!(found["resources"].as_array().map(Vec::len), Some(4));
}

#[tokio::test]
async fn a_lease_must_last() {
    let world = World::new();
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = |seconds: i64| {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": format!("l{seconds}")},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": seconds, "renewTime": "2026-01-01T00:00:00.000000Z"}})
    };
    assert_eq!(world.ask("POST", leases, lease(15)).await.0, 201);
    let (code, status) = world.ask("POST", leases, lease(0)).await;
    assert_eq!((code, &status["details"]["causes"][0]["field"]), (422, &json!("spec.leaseDurationSeconds")));
}
