//! KubeVirt's resources: served by standalone itself, by other servers from our CustomResourceDefinitions.

use axum::http::Request;
use kube::Error;

use super::*;
use vireo_install::resource::crd::custom_resource_definitions;

/// A replica set without VMIs.
async fn set(cluster: &Cluster, replicas: i64) -> Value {
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": vmi_spec()});
    let spec =
        json!({"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template});
    cluster.create(Kind::REPLICA_SET, "web", json!({ "spec": spec })).await
}

async fn get(cluster: &Cluster, path: &str, accept: &str) -> Value {
    let request = Request::get(path).header("Accept", accept).body(Vec::new()).unwrap();
    cluster.admin.request(request).await.unwrap()
}

#[tokio::test]
async fn every_resource_is_discovered() {
    on_a_server(async |cluster| {
        for definition in custom_resource_definitions() {
            let spec = &definition["spec"];
            let (group, version) = (spec["group"].as_str().unwrap(), &spec["versions"][0]);
            let api_version = format!("{group}/{}", version["name"].as_str().unwrap());
            let served = cluster.admin.list_api_group_resources(&api_version).await.unwrap();
            let served = serde_json::to_value(served.resources).unwrap();
            let named =
                |name: &str| served.as_array().unwrap().iter().find(|one| one["name"] == name).cloned();
            let plural = spec["names"]["plural"].as_str().unwrap();
            let found = named(plural).unwrap();
            assert_eq!(found["kind"], spec["names"]["kind"]);
            assert_eq!(found["shortNames"], spec["names"]["shortNames"]);
            assert_eq!(found["namespaced"], spec["scope"] == "Namespaced");
            for subresource in version["subresources"].as_object().unwrap().keys() {
                assert!(named(&format!("{plural}/{subresource}")).is_some(), "{plural}/{subresource}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn spec_and_status_are_written_apart() {
    on_a_server(async |cluster| {
        let created = set(cluster, 0).await;
        assert_eq!(created["metadata"]["generation"], 1);
        let both = json!({"spec": {"replicas": 2}, "status": {"replicas": 5}});
        let patched = cluster.patch(Kind::REPLICA_SET, "web", both).await;
        assert_eq!(
            (&patched["spec"]["replicas"], &patched["metadata"]["generation"]),
            (&json!(2), &json!(2))
        );
        assert_ne!(patched["status"]["replicas"], 5);
        let patched = cluster.patch_status(Kind::REPLICA_SET, "web", json!({"replicas": 1})).await;
        assert_eq!(
            (&patched["status"]["replicas"], &patched["metadata"]["generation"]),
            (&json!(1), &json!(2))
        );
    })
    .await;
}

#[tokio::test]
async fn the_scale_of_a_set_is_a_subresource() {
    on_a_server(async |cluster| {
        set(cluster, 3).await;
        let status = json!({"replicas": 2, "labelSelector": "app=web"});
        cluster.patch_status(Kind::REPLICA_SET, "web", status).await;
        let scale = cluster.api(Kind::REPLICA_SET).get_scale("web").await.unwrap();
        let scale = serde_json::to_value(scale).unwrap();
        assert_eq!(scale["spec"]["replicas"], 3);
        assert_eq!(
            (&scale["status"]["replicas"], &scale["status"]["selector"]),
            (&json!(2), &json!("app=web"))
        );
    })
    .await;
}

#[tokio::test]
async fn a_table_has_the_columns_of_the_resource() {
    on_a_server(async |cluster| {
        set(cluster, 3).await;
        let path = format!(
            "/apis/kubevirt.io/v1/namespaces/{}/virtualmachineinstancereplicasets",
            cluster.namespace
        );
        let table = get(cluster, &path, "application/json;as=Table;v=v1;g=meta.k8s.io").await;
        let columns = table["columnDefinitions"].as_array().unwrap();
        let columns: Vec<_> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
        assert_eq!(columns, ["Name", "Desired", "Current", "Ready", "Age"]);
        let cells = &table["rows"][0]["cells"];
        assert_eq!((&cells[0], &cells[1], &cells[2]), (&json!("web"), &json!(3), &Value::Null));
    })
    .await;
}

#[tokio::test]
async fn a_field_of_a_wrong_type_is_refused() {
    on_a_server(async |cluster| {
        let wrong = json!({"spec": {"domain": {"memory": {"guest": "64Mi"}, "cpu": {"cores": "many"}, "devices": {}}}});
        let refused = cluster.try_create(Kind::VMI, "guest", wrong).await;
        let Err(Error::Api(status)) = refused else { panic!("{refused:?}") };
        assert_eq!(status.code, 422, "{status:?}");
        assert!(status.message.contains("cores"), "{}", status.message);
    })
    .await;
}
