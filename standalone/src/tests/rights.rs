//! What users with roles may do.

use super::*;

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
const API_VERSION: &str = "rbac.authorization.k8s.io/v1";

fn ada() -> User {
    User::named("ada", &["system:authenticated"])
}

fn binding(name: &str, role: &str) -> Value {
    json!({"apiVersion": API_VERSION, "kind": "RoleBinding", "metadata": {"name": name},
        "roleRef": {"kind": "ClusterRole", "name": role}, "subjects": [{"kind": "User", "name": "ada"}]})
}

impl World {
    async fn as_ada(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        self.as_ada_with(method, path, body, &[]).await
    }

    async fn as_ada_with(
        &self,
        method: &str,
        path: &str,
        body: Value,
        headers: &[(&str, &str)],
    ) -> (u16, Value) {
        let mut request = Request::builder().method(method).uri(path);
        let media = if method == "PATCH" { "application/apply-patch+yaml" } else { "application/json" };
        for (name, value) in headers.iter().chain(&[("Content-Type", media)]) {
            request = request.header(*name, *value);
        }
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send_as(ada(), request.body(Body::from(body)).unwrap()).await
    }

    async fn give(&self, role: &str) {
        let (code, made) = self.ask("POST", BINDINGS, binding(&format!("ada-{role}"), role)).await;
        assert_eq!(code, 201, "{made}");
    }
}

#[tokio::test]
async fn everything_is_refused_that_no_role_allows() {
    let world = World::new();
    let object = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines";
    let part = "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachines/v/start";
    for (method, path, message) in [
        (
            "GET",
            object,
            "virtualmachines.kubevirt.io is forbidden: User \"ada\" cannot list resource \"virtualmachines\" in API group \"kubevirt.io\" in the namespace \"default\"",
        ),
        (
            "PUT",
            part,
            "virtualmachines.subresources.kubevirt.io \"v\" is forbidden: User \"ada\" cannot update resource \"virtualmachines/start\" in API group \"subresources.kubevirt.io\" in the namespace \"default\"",
        ),
        (
            "GET",
            "/api/v1/nodes",
            "nodes is forbidden: User \"ada\" cannot list resource \"nodes\" in API group \"\" at the cluster scope",
        ),
        (
            "GET",
            "/api/v1/nothing",
            "nothing is forbidden: User \"ada\" cannot list resource \"nothing\" in API group \"\" at the cluster scope",
        ),
        ("GET", "/metrics", "forbidden: User \"ada\" cannot get path \"/metrics\""),
        ("POST", "/version", "forbidden: User \"ada\" cannot post path \"/version\""),
    ] {
        let (code, status) = world.as_ada(method, path, Value::Null).await;
        assert_eq!((code, &status["reason"]), (403, &json!("Forbidden")), "{path}");
        assert_eq!(status["message"], message);
    }
    assert_eq!(world.as_ada("GET", "/apis/kubevirt.io/v1", Value::Null).await.0, 200);
    let (_, status) = world.as_ada("PUT", part, Value::Null).await;
    let details = json!({"name": "v", "group": "subresources.kubevirt.io", "kind": "virtualmachines"});
    assert_eq!(status["details"], details);
}

#[tokio::test]
async fn a_binding_grants_exactly_its_role() {
    let world = World::new();
    world.give("view").await;
    assert_eq!(world.as_ada("GET", VMIS, Value::Null).await.0, 200);
    assert_eq!(world.as_ada("GET", &format!("{VMIS}/none"), Value::Null).await.0, 404);
    for (method, path) in [
        ("POST", VMIS.to_owned()),
        ("DELETE", format!("{VMIS}/none")),
        ("DELETE", VMIS.to_owned()),
        ("GET", VMIS.replace("default", "kube-system")),
        ("GET", "/apis/kubevirt.io/v1/virtualmachineinstances".to_owned()),
        ("GET", "/api/v1/namespaces/default/secrets".to_owned()),
        ("GET", ROLES.to_owned()),
    ] {
        assert_eq!(world.as_ada(method, &path, Value::Null).await.0, 403, "{method} {path}");
    }
    world.give("edit").await;
    assert_eq!(world.as_ada("POST", MAPS, map("a", json!({}))).await.0, 201);
    assert_eq!(world.as_ada("DELETE", &format!("{MAPS}/a"), Value::Null).await.0, 200);
    assert_eq!(world.as_ada("DELETE", VMIS, Value::Null).await.0, 403, "kubevirt.io:edit has no collections");
    world.ask("DELETE", &format!("{BINDINGS}/ada-edit"), Value::Null).await;
    assert_eq!(world.as_ada("POST", MAPS, map("b", json!({}))).await.0, 403, "at once");
}

#[tokio::test]
async fn what_is_applied_anew_needs_the_right_to_create() {
    let world = World::new();
    let rule = |verbs: &[&str]| json!([{"verbs": verbs, "apiGroups": [""], "resources": ["configmaps"]}]);
    let role = |verbs: &[&str]| json!({"apiVersion": API_VERSION, "kind": "Role", "metadata": {"name": "patcher"}, "rules": rule(verbs)});
    assert_eq!(world.ask("POST", ROLES, role(&["patch"])).await.0, 201);
    let mut bound = binding("patcher", "patcher");
    bound["roleRef"]["kind"] = json!("Role");
    assert_eq!(world.ask("POST", BINDINGS, bound).await.0, 201);
    let path = format!("{MAPS}/a?fieldManager=me");
    let (code, status) = world.as_ada("PATCH", &path, map("a", json!({"k": "v"}))).await;
    assert!(status["message"].to_string().contains("cannot create resource"), "{code} {status}");
    world.ask("POST", MAPS, map("a", json!({}))).await;
    assert_eq!(world.as_ada("PATCH", &path, map("a", json!({"k": "v"}))).await.0, 200);
}

#[tokio::test]
async fn privileges_are_not_escalated() {
    let world = World::new();
    world.give("admin").await;
    let (code, status) = world.as_ada("POST", BINDINGS, binding("up", "cluster-admin")).await;
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("is attempting to grant RBAC permissions not currently held:\n{"), "{message}");
    assert_eq!(code, 403);
    assert_eq!(world.as_ada("POST", BINDINGS, binding("same", "kubevirt.io:edit")).await.0, 201);
    assert_eq!(world.as_ada("POST", BINDINGS, binding("gone", "none")).await.0, 404);
    let role = |resource: &str| {
        json!({"apiVersion": API_VERSION, "kind": "Role", "metadata": {"name": "mine"},
            "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": [resource]}]})
    };
    assert_eq!(world.as_ada("POST", ROLES, role("nodes")).await.0, 403);
    assert_eq!(world.as_ada("POST", ROLES, role("secrets")).await.0, 201);
    let path = format!("{ROLES}/mine");
    assert_eq!(world.as_ada("PUT", &path, role("nodes")).await.0, 403);
    let up = json!({"apiVersion": API_VERSION, "kind": "Role", "metadata": {"name": "mine"}, "rules": []});
    assert_eq!(world.as_ada("PATCH", &format!("{path}?fieldManager=a&force=true"), up).await.0, 200);
    let (code, status) = world
        .patch(
            &format!("{BINDINGS}/same"),
            "merge",
            json!({"roleRef": {"name": "view", "kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io"}}),
        )
        .await;
    assert_eq!((code, &status["details"]["causes"][0]["field"]), (422, &json!("roleRef")));
}

#[tokio::test]
async fn one_may_ask_for_another_with_the_right_to_it() {
    let world = World::new();
    let as_bob = [("Impersonate-User", "bob")];
    let (code, status) = world.as_ada_with("GET", "/version", Value::Null, &as_bob).await;
    let message = "users \"bob\" is forbidden: User \"ada\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope";
    assert_eq!((code, &status["message"]), (403, &json!(message)));
    let rules = json!([{"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["bob"]},
        {"verbs": ["list"], "apiGroups": [""], "resources": ["nodes"]}]);
    let role = json!({"apiVersion": API_VERSION, "kind": "ClusterRole", "metadata": {"name": "imp"}, "rules": rules});
    let kinds = "/apis/rbac.authorization.k8s.io/v1";
    assert_eq!(world.ask("POST", &format!("{kinds}/clusterroles"), role).await.0, 201);
    let mut bound = binding("imp", "imp");
    bound["kind"] = json!("ClusterRoleBinding");
    assert_eq!(world.ask("POST", &format!("{kinds}/clusterrolebindings"), bound).await.0, 201);
    let me = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let (code, reported) = world.as_ada_with("POST", me, json!({}), &as_bob).await;
    assert_eq!((code, &reported["status"]["userInfo"]["username"]), (201, &json!("bob")));
    assert_eq!(world.as_ada("GET", "/api/v1/nodes", Value::Null).await.0, 200);
    let (code, status) = world.as_ada_with("GET", "/api/v1/nodes", Value::Null, &as_bob).await;
    assert!(
        code == 403 && status["message"].to_string().contains("bob"),
        "her own rights are away: {status}"
    );
    for more in ["Impersonate-Group", "Impersonate-Uid"] {
        let headers = [as_bob[0], (more, "system:masters")];
        assert_eq!(world.as_ada_with("GET", "/api/v1/nodes", Value::Null, &headers).await.0, 403, "{more}");
    }
}

#[tokio::test]
async fn authenticated_users_learn_the_version() {
    let world = World::new();
    for version in ["v1", "v1alpha3"] {
        let base = format!("/apis/subresources.kubevirt.io/{version}");
        let (code, reported) = world.as_ada("GET", &format!("{base}/version"), Value::Null).await;
        assert_eq!((code, reported["gitVersion"].is_string()), (200, true), "{reported}");
        let (code, reported) = world.as_ada("GET", &format!("{base}/guestfs"), Value::Null).await;
        assert_eq!((code, &reported["reason"]), (400, &json!("BadRequest")), "{reported}");
        assert_eq!(world.as_ada("GET", &format!("{base}/healthz"), Value::Null).await.0, 403);
        let (code, reported) = world.ask("GET", &format!("{base}/healthz"), Value::Null).await;
        assert_eq!((code, &reported["apiserver"]["connectivity"]), (200, &json!("ok")), "{reported}");
        assert_eq!(world.ask("POST", &format!("{base}/version"), json!({})).await.0, 405);
        let (_, list) = world.as_ada("GET", &base, Value::Null).await;
        let names: Vec<_> = list["resources"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert!(names.contains(&&json!("version")), "{list}");
    }
    let unknown = Request::get("/apis/subresources.kubevirt.io/v1/version").body(Body::empty()).unwrap();
    assert_eq!(world.send_as(User::anonymous(), unknown).await.0, 403);
}

/// In the order of upstream's `virtctl image-upload pvc`.
#[tokio::test]
async fn an_editor_learns_which_parts_of_cdi_are_absent() {
    let world = World::new();
    let volume = "/apis/cdi.kubevirt.io/v1beta1/namespaces/default/datavolumes/disk";
    assert_eq!(world.as_ada("GET", volume, Value::Null).await.0, 403);
    world.give("view").await;
    assert_eq!(world.as_ada("GET", volume, Value::Null).await.0, 404);
    let tokens = "/apis/upload.cdi.kubevirt.io/v1beta1/namespaces/default/uploadtokenrequests";
    let request = json!({"kind": "UploadTokenRequest", "spec": {"pvcName": "disk"}});
    assert_eq!(world.as_ada("POST", tokens, request.clone()).await.0, 403);
    world.give("edit").await;
    for (method, path) in [
        ("GET", "/api/v1/namespaces/default/persistentvolumeclaims/disk"),
        ("GET", volume),
        ("DELETE", volume),
        ("GET", "/apis/cdi.kubevirt.io/v1beta1/namespaces/default/datasources/disk"),
    ] {
        let (code, status) = world.as_ada(method, path, Value::Null).await;
        assert_eq!((code, &status["reason"]), (404, &json!("NotFound")), "{method} {path}: {status}");
    }
    let events = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Ddisk";
    assert_eq!(world.as_ada("GET", events, Value::Null).await.0, 200);
    let config = "/apis/cdi.kubevirt.io/v1beta1/cdiconfigs/config";
    assert_eq!(world.as_ada("GET", config, Value::Null).await.0, 200);
    assert_eq!(world.as_ada("POST", tokens, request).await.0, 404, "there is no such claim yet");
}

#[tokio::test]
async fn a_write_whose_admission_cannot_read_is_an_error_of_the_server() {
    let world = World::new();
    let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/kubevirt-apiserver";
    assert_eq!(world.patch(role, "merge", json!({"rules": []})).await.0, 200);
    let mut vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "web"},
        "spec": {"runStrategy": "Halted", "template": {"spec": vmi("web")["spec"]}}});
    let vms = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines";
    assert_eq!(world.ask("POST", vms, vm.clone()).await.0, 201, "it refers to nothing");
    vm["metadata"]["name"] = json!("small");
    vm["spec"]["instancetype"] = json!({"name": "small", "kind": "VirtualMachineInstancetype"});
    let (code, status) = world.ask("POST", vms, vm).await;
    assert_eq!((code, &status["reason"]), (500, &json!("InternalError")));
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("system:serviceaccount:kubevirt:virt-api"), "{message}");
}
