//! The settings of the KubeVirt object that are for node agents, as they are now.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Client;
use kube::runtime::watcher::Config;
use serde::Deserialize;
use serde_json::Value;
use vireo_api::spec::{Field, PermittedHostDevices, is_smbios_text};
use vireo_api::v1;
use vireo_client::Kind;
use vireo_client::informer::{Cached, Change, Informer};

use crate::node_labeller::ObsoleteModels;

/// The namespace of the KubeVirt object.
const NAMESPACE: &str = "kubevirt";

/// The settings in a KubeVirt object. What cannot be read is as if it were not set: virt-operator names it.
#[derive(Debug, Clone, Default, PartialEq)]
struct Values {
    obsolete: BTreeMap<String, bool>,
    min_cpu_model: String,
    permitted: Arc<PermittedHostDevices>,
    instances: Option<usize>,
    smbios: v1::SMBiosConfiguration,
}

/// Those of one object, and since when there is that: the oldest of several counts.
#[derive(Debug, Default)]
struct Settings {
    created: Option<String>,
    values: Values,
}

#[expect(clippy::unnecessary_wraps, reason = "an informer reads objects that may not be readable")]
fn read(object: Value) -> Result<Settings, serde_json::Error> {
    let configuration = &object["spec"]["configuration"];
    let created = object["metadata"]["creationTimestamp"].as_str().map(str::to_owned);
    let permitted = v1::PermittedHostDevices::deserialize(&configuration["permittedHostDevices"]);
    let permitted = PermittedHostDevices::read(&permitted.unwrap_or_default(), &Field::new("")).0;
    let instances = configuration["virtualMachineInstancesPerNode"].as_u64().filter(|count| *count > 0);
    let mut smbios = v1::SMBiosConfiguration::deserialize(&configuration["smbios"]).unwrap_or_default();
    let v1::SMBiosConfiguration { manufacturer, product, version, sku, family, .. } = &mut smbios;
    for text in [manufacturer, product, version, sku, family] {
        if !is_smbios_text(text) {
            text.clear();
        }
    }
    let values = Values {
        obsolete: BTreeMap::deserialize(&configuration["obsoleteCPUModels"]).unwrap_or_default(),
        min_cpu_model: configuration["minCPUModel"].as_str().unwrap_or_default().to_owned(),
        permitted: Arc::new(permitted),
        instances: instances.and_then(|count| count.try_into().ok()),
        smbios,
    };
    Ok(Settings { created, values })
}

/// Whether a setting changed: the status of the object changes more often.
fn is_of_setting(change: &Change<Settings>) -> bool {
    let of = |one: &Option<Arc<Cached<Settings>>>| {
        one.as_ref().map(|one| one.value.values.clone()).unwrap_or_default()
    };
    of(&change.before) != of(&change.after)
}

/// The settings as they are now. Without a KubeVirt object they are the defaults.
#[derive(Debug, Clone)]
pub struct LiveSettings(Source);

#[derive(Debug, Clone)]
enum Source {
    Fixed(Box<Values>),
    Watched(Arc<Informer<Settings>>),
}

impl LiveSettings {
    /// Those of a cluster without a KubeVirt object.
    pub fn fixed() -> Self {
        Self(Source::Fixed(Box::default()))
    }

    /// Those of a configuration that does not change.
    #[cfg(test)]
    pub(crate) fn of_a_test(configuration: Value) -> Self {
        let object = serde_json::json!({"spec": {"configuration": configuration}});
        Self(Source::Fixed(Box::new(read(object).unwrap().values)))
    }

    /// Those of the KubeVirt object of a cluster, which [`run`](Self::run) watches.
    pub fn watched(client: &Client) -> Self {
        let installations = Kind::KUBEVIRT.namespaced(client, NAMESPACE);
        Self(Source::Watched(Informer::new(installations, Config::default(), read)))
    }

    /// Watches until it is dropped.
    pub async fn run(&self) {
        match &self.0 {
            Source::Watched(installations) => installations.run().await,
            Source::Fixed(_) => std::future::pending().await,
        }
    }

    /// Waits until they are known.
    pub(crate) async fn synced(&self) {
        if let Source::Watched(installations) = &self.0 {
            installations.synced().await;
        }
    }

    /// Calls back after each change of a setting.
    pub(crate) fn on_change(&self, changed: impl Fn() + Send + Sync + 'static) {
        let Source::Watched(installations) = &self.0 else { return };
        installations.on_change(move |change| {
            if is_of_setting(change) {
                changed();
            }
        });
    }

    /// CPU models that no guest should have.
    pub(crate) fn obsolete_models(&self) -> ObsoleteModels {
        let values = self.values();
        ObsoleteModels::configured(&values.obsolete).at_least(&values.min_cpu_model)
    }

    /// Devices of nodes that guests may have.
    pub(crate) fn permitted_host_devices(&self) -> Arc<PermittedHostDevices> {
        self.values().permitted
    }

    /// How many VMIs a node can have.
    pub(crate) fn instances_per_node(&self) -> Option<usize> {
        self.values().instances
    }

    /// What guests read about their system, where it is not as usual.
    pub(crate) fn smbios(&self) -> v1::SMBiosConfiguration {
        self.values().smbios
    }

    fn values(&self) -> Values {
        let installations = match &self.0 {
            Source::Fixed(values) => return Values::clone(values),
            Source::Watched(installations) => installations.namespace(NAMESPACE),
        };
        let oldest = installations.into_iter().min_by_key(|one| (one.created.clone(), one.key.clone()));
        oldest.map(|one| one.values.clone()).unwrap_or_default()
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
        let odd = settings(json!({"obsoleteCPUModels": ["Nehalem"], "permittedHostDevices": ["x"],
            "minCPUModel": 1, "virtualMachineInstancesPerNode": 0, "smbios": {"sku": "a\nb", "family": "x".repeat(257)}}));
        assert_eq!(odd.values, Values::default());
        let even = settings(json!({"minCPUModel": "Haswell", "virtualMachineInstancesPerNode": 7,
            "smbios": {"sku": "a b"}}));
        let smbios = v1::SMBiosConfiguration { sku: "a b".to_owned(), ..v1::SMBiosConfiguration::default() };
        let expected =
            Values { min_cpu_model: "Haswell".to_owned(), instances: Some(7), smbios, ..Values::default() };
        assert_eq!(even.values, expected);
    }
}
