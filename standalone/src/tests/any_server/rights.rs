//! What KubeVirt's roles allow.

use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, Error};
use vireo_apiserver::auth::User;

use super::*;

const SECRET: Kind = Kind { group: "", version: "v1", kind: "Secret", plural: "secrets" };

fn is_forbidden<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Api(status)) if status.code == 403)
}

/// A user who has a ClusterRole in the namespace of the test.
async fn user_with(cluster: &Cluster, role: &str) -> Client {
    let subject = json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"});
    let role_ref = json!({"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": role});
    cluster.create(cluster::ROLE_BINDING, "jane", json!({"subjects": [subject], "roleRef": role_ref})).await;
    cluster.client_of(&User::named("jane", &["system:authenticated"]))
}

#[tokio::test]
async fn virt_controller_has_no_rights_but_those_of_its_controllers() {
    on_a_server(async |cluster| {
        let client = cluster.virt_controller();
        let api = |kind: Kind| kind.namespaced(&client, &cluster.namespace);
        for kind in [Kind::VMI, Kind::VM, Kind::REPLICA_SET, Kind::POOL, Kind::CONTROLLER_REVISION] {
            assert!(api(kind).list(&ListParams::default()).await.is_ok(), "{}", kind.plural);
        }
        assert!(is_forbidden(api(SECRET).list(&ListParams::default()).await));
        assert!(is_forbidden(Kind::NODE.all(&client).delete("x", &DeleteParams::default()).await));
        let patch = Patch::Merge(json!({"spec": {"replicas": 0}}));
        for kind in [Kind::REPLICA_SET, Kind::POOL] {
            let patched = api(kind).patch("x", &PatchParams::default(), &patch).await;
            assert!(is_forbidden(patched), "{}: only its status is virt-controller's", kind.plural);
        }
    })
    .await;
}

#[tokio::test]
async fn a_viewer_reads_and_does_not_write() {
    on_a_server(async |cluster| {
        cluster.create(Kind::VMI, "guest", json!({ "spec": vmi_spec() })).await;
        let client = user_with(cluster, "kubevirt.io:view").await;
        let vmis = Kind::VMI.namespaced(&client, &cluster.namespace);
        assert_eq!(vmis.list(&ListParams::default()).await.unwrap().items.len(), 1);
        assert!(is_forbidden(vmis.delete("guest", &DeleteParams::default()).await));
        let elsewhere = Kind::VMI.namespaced(&client, "default");
        assert!(is_forbidden(elsewhere.list(&ListParams::default()).await));
    })
    .await;
}

#[tokio::test]
async fn an_editor_writes_and_does_not_delete_collections() {
    on_a_server(async |cluster| {
        cluster.create(Kind::VMI, "guest", json!({ "spec": vmi_spec() })).await;
        let client = user_with(cluster, "kubevirt.io:edit").await;
        let vmis = Kind::VMI.namespaced(&client, &cluster.namespace);
        let patch = Patch::Merge(json!({"metadata": {"labels": {"tier": "web"}}}));
        assert!(vmis.patch("guest", &PatchParams::default(), &patch).await.is_ok());
        let all = vmis.delete_collection(&DeleteParams::default(), &ListParams::default()).await;
        assert!(is_forbidden(all));
        assert!(vmis.delete("guest", &DeleteParams::default()).await.is_ok());
    })
    .await;
}
