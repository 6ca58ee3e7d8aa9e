//! The settings of the KubeVirt object that are for node agents, as they are now.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Client;
use kube::runtime::watcher::Config;
use serde::Deserialize;
use serde_json::Value;
use vireo_api::spec::{Field, PermittedHostDevices};
use vireo_api::v1;
use vireo_client::Kind;
use vireo_client::informer::{Cached, Change, Informer};

use crate::node_labeller::ObsoleteModels;

/// The namespace of the KubeVirt object.
const NAMESPACE: &str = "kubevirt";

/// Of a KubeVirt object, what matters here. What cannot be read is as if it were not set: virt-operator names it.
#[derive(Debug, Default)]
struct Settings {
    created: Option<String>,
    obsolete: BTreeMap<String, bool>,
    permitted: Arc<PermittedHostDevices>,
}

#[expect(clippy::unnecessary_wraps, reason = "an informer reads objects that may not be readable")]
fn read(object: Value) -> Result<Settings, serde_json::Error> {
    let configuration = &object["spec"]["configuration"];
    let created = object["metadata"]["creationTimestamp"].as_str().map(str::to_owned);
    let obsolete = BTreeMap::deserialize(&configuration["obsoleteCPUModels"]).unwrap_or_default();
    let permitted = v1::PermittedHostDevices::deserialize(&configuration["permittedHostDevices"]);
    let permitted = PermittedHostDevices::read(&permitted.unwrap_or_default(), &Field::new("")).0;
    Ok(Settings { created, obsolete, permitted: Arc::new(permitted) })
}

/// Whether a setting changed: the status of the object changes more often.
fn is_of_setting(change: &Change<Settings>) -> bool {
    let of = |one: &Option<Arc<Cached<Settings>>>| {
        one.as_ref().map(|one| (one.obsolete.clone(), Arc::clone(&one.permitted))).unwrap_or_default()
    };
    of(&change.before) != of(&change.after)
}

/// The settings as they are now. Without a KubeVirt object they are the defaults.
#[derive(Debug, Clone)]
pub struct LiveSettings(Option<Arc<Informer<Settings>>>);

impl LiveSettings {
    /// Those of a cluster without a KubeVirt object.
    pub fn fixed() -> Self {
        Self(None)
    }

    /// Those of the KubeVirt object of a cluster, which [`run`](Self::run) watches.
    pub fn watched(client: &Client) -> Self {
        let installations = Kind::KUBEVIRT.namespaced(client, NAMESPACE);
        Self(Some(Informer::new(installations, Config::default(), read)))
    }

    /// Watches until it is dropped.
    pub async fn run(&self) {
        match &self.0 {
            Some(installations) => installations.run().await,
            None => std::future::pending().await,
        }
    }

    /// Waits until they are known.
    pub(crate) async fn synced(&self) {
        if let Some(installations) = &self.0 {
            installations.synced().await;
        }
    }

    /// Calls back after each change of a setting.
    pub(crate) fn on_change(&self, changed: impl Fn() + Send + Sync + 'static) {
        let Some(installations) = &self.0 else { return };
        installations.on_change(move |change| {
            if is_of_setting(change) {
                changed();
            }
        });
    }

    /// CPU models that no guest should have.
    pub(crate) fn obsolete_models(&self) -> ObsoleteModels {
        self.oldest().map(|one| ObsoleteModels::configured(&one.obsolete)).unwrap_or_default()
    }

    /// Devices of nodes that guests may have.
    pub(crate) fn permitted_host_devices(&self) -> Arc<PermittedHostDevices> {
        self.oldest().map(|one| Arc::clone(&one.permitted)).unwrap_or_default()
    }

    fn oldest(&self) -> Option<Arc<Cached<Settings>>> {
        let installations = self.0.iter().flat_map(|installations| installations.namespace(NAMESPACE));
        installations.min_by_key(|one| (one.created.clone(), one.key.clone()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_client::ObjectKey;

    use super::*;

    fn settings(configuration: Value) -> Settings {
        read(json!({"spec": {"configuration": configuration}})).unwrap()
    }

    #[test]
    fn only_settings_are_a_change() {
        let key = || ObjectKey::new(NAMESPACE, "kubevirt");
        let object = |configuration: Value| {
            let value = settings(configuration);
            Some(Arc::new(Cached { key: key(), uid: String::new(), revision: 1, owner: None, value }))
        };
        let changed = |before, after| is_of_setting(&Change { key: key(), before, after });
        let models = || object(json!({"obsoleteCPUModels": {"Nehalem": true}}));
        let devices = [json!({"pciVendorSelector": "1:2", "resourceName": "a.b/c"})];
        let devices = || object(json!({"permittedHostDevices": {"pciHostDevices": devices}}));
        assert!(!changed(None, object(json!({}))));
        assert!(!changed(models(), models()) && !changed(devices(), devices()));
        assert!(changed(models(), object(json!({}))) && changed(devices(), None));
    }

    #[test]
    fn what_cannot_be_read_is_not_set() {
        let odd = settings(json!({"obsoleteCPUModels": ["Nehalem"], "permittedHostDevices": ["x"]}));
        assert_eq!(odd.obsolete, BTreeMap::new());
        assert_eq!(*odd.permitted, PermittedHostDevices::default());
    }
}
