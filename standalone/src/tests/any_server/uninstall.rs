//! `vireo uninstall`, and the definition of KubeVirt objects.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use vireo_install::operator::update_definition;
use vireo_install::uninstall::{UninstallError, uninstall};

use super::workload_update::{Installation, eventually};
use super::*;

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn an_installation_is_uninstalled_when_virt_operator_has_removed_it() {
    on_a_server(async |cluster| {
        let installation = Installation::create(cluster).await;
        let api = installation.api();
        let set_finalizers = async |finalizers: Value| {
            let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
            api.patch("kubevirt", &PatchParams::default(), &patch).await.unwrap();
        };
        set_finalizers(json!(["kubevirt.io/foregroundDeleteKubeVirt"])).await;
        let kept = uninstall(&cluster.admin, true, LIMIT).await;
        assert_eq!(kept, Err(UninstallError::Exists("kubevirt".to_owned())));
        assert!(api.get("kubevirt").await.unwrap().metadata.deletion_timestamp.is_none());

        // As virt-operator does.
        let remove = async {
            eventually("it is deleted", async || {
                api.get("kubevirt").await.unwrap().metadata.deletion_timestamp.is_some()
            })
            .await;
            let condition = json!({"type": "Degraded", "status": "True", "reason": "DeletionInProgress",
                "message": "deleting objects"});
            installation.patch_status(json!({ "conditions": [condition] })).await;
            let limit = Duration::from_secs(5);
            let waited = uninstall(&cluster.admin, false, limit).await;
            let pending = "the KubeVirt object kubevirt/kubevirt is deleted: deleting objects".to_owned();
            assert_eq!(waited, Err(UninstallError::Timeout { limit, pending }));
            set_finalizers(json!([])).await;
        };
        let (removed, ()) = tokio::join!(uninstall(&cluster.admin, false, LIMIT), remove);
        assert_eq!(removed, Ok(()));
        assert_eq!(api.get_opt("kubevirt").await.unwrap().map(|left| left.metadata.name), None);
        assert_eq!(uninstall(&cluster.admin, true, LIMIT).await, Ok(()));
    })
    .await;
}

#[tokio::test]
async fn the_definition_of_kubevirt_objects_is_that_of_virt_operator() {
    on_a_server(async |cluster| {
        let current = vireo_install::resource::crd::kubevirt_definition();
        cluster.define(std::slice::from_ref(&current)).await;
        let api = cluster.all(cluster::DEFINITION);
        let get = async || serde_json::to_value(api.get("kubevirts.kubevirt.io").await.unwrap()).unwrap();
        let mut versions = current["spec"]["versions"].clone();
        let columns = versions[0]["additionalPrinterColumns"].clone();
        versions[0]["additionalPrinterColumns"] = json!([columns[0]]);
        let outdated = Patch::Merge(json!({"spec": {"versions": versions}}));
        api.patch("kubevirts.kubevirt.io", &PatchParams::default(), &outdated).await.unwrap();
        update_definition(&cluster.admin).await.unwrap();
        let updated = get().await;
        let found = updated["spec"]["versions"][0]["additionalPrinterColumns"].as_array().unwrap();
        assert!(found.len() > 1, "{found:?}");
        update_definition(&cluster.admin).await.unwrap();
        assert_eq!(
            get().await["metadata"]["resourceVersion"],
            updated["metadata"]["resourceVersion"],
            "it is up to date, and not written"
        );
    })
    .await;
}
