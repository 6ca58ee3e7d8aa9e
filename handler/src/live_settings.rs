//! The settings of the KubeVirt object that are for node agents, as they are now.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Client;
use kube::runtime::watcher::Config;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Notify;
use vireo_api::names::NAMESPACE;
use vireo_api::spec::{Field, PermittedHostDevices, is_smbios_text};
use vireo_api::v1;
use vireo_client::informer::{Cached, Change, Informer};
use vireo_client::rate_limit::{RateLimit, RateLimiter};
use vireo_client::tls::{TlsPolicy, TlsSettings};
use vireo_client::{Kind, program};

use crate::launcher::pod::ClaimSpace;
use crate::node_labeller::ObsoleteModels;

/// The settings in a KubeVirt object. What cannot be read is as if it were not set: virt-operator names it.
#[derive(Debug, Clone, Default, PartialEq)]
struct Values {
    obsolete: BTreeMap<String, bool>,
    min_cpu_model: String,
    permitted: Arc<PermittedHostDevices>,
    instances: Option<usize>,
    smbios: v1::SMBiosConfiguration,
    claim_space: ClaimSpace,
    /// Whether guests give no free pages back.
    keep_free_pages: bool,
    /// Labels of nodes on which equal pages are merged.
    ksm: Option<v1::LabelSelector>,
    tls: TlsSettings,
    limit: Option<RateLimit>,
    /// Verbosity of the logs of node agents, by their nodes.
    verbosity: BTreeMap<String, u32>,
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
    let developer = &configuration["developerConfiguration"];
    let tls = v1::TLSConfiguration::deserialize(&configuration["tlsConfiguration"]);
    let client = v1::ReloadableComponentConfiguration::deserialize(&configuration["handlerConfiguration"]);
    let verbosity = BTreeMap::deserialize(&developer["logVerbosity"]["nodeVerbosity"]);
    let values = Values {
        obsolete: BTreeMap::deserialize(&configuration["obsoleteCPUModels"]).unwrap_or_default(),
        min_cpu_model: configuration["minCPUModel"].as_str().unwrap_or_default().to_owned(),
        permitted: Arc::new(permitted),
        instances: instances.and_then(|count| count.try_into().ok()),
        smbios,
        claim_space: ClaimSpace::read(developer),
        keep_free_pages: configuration["virtualMachineOptions"]["disableFreePageReporting"].is_object(),
        ksm: Option::deserialize(&configuration["ksmConfiguration"]["nodeLabelSelector"]).ok().flatten(),
        tls: match configuration["tlsConfiguration"].is_null() {
            true => TlsSettings::default(),
            false => {
                tls.ok().and_then(|tls| TlsSettings::read(&tls).ok()).unwrap_or_else(TlsSettings::strictest)
            }
        },
        limit: client.ok().and_then(|client| RateLimit::read(Some(&client)).ok()).flatten(),
        verbosity: verbosity.unwrap_or_default(),
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

    /// Has the client, the servers and the log of the node agent of a node follow its settings until it is dropped, while
    /// [`run`](Self::run) watches them.
    pub async fn follow(&self, node: &str, limiter: &RateLimiter, policy: &TlsPolicy) {
        let changed = Arc::new(Notify::new());
        let wake = Arc::clone(&changed);
        self.on_change(move || wake.notify_one());
        loop {
            let values = self.values();
            limiter.set(values.limit);
            policy.set(values.tls);
            program::set_verbosity(values.verbosity.get(node).copied());
            changed.notified().await;
        }
    }

    /// Whether guests give no free pages back.
    pub(crate) fn keeps_free_pages(&self) -> bool {
        self.values().keep_free_pages
    }

    /// Whether equal pages are to be merged on a node with these labels.
    pub(crate) fn merges_pages(&self, labels: &BTreeMap<String, String>) -> bool {
        self.values().ksm.is_some_and(|selector| selector.chooses(labels))
    }

    /// How much of a claim's file system its disk takes.
    pub(crate) fn claim_space(&self) -> ClaimSpace {
        self.values().claim_space
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
    fn pages_are_merged_on_nodes_that_are_selected() {
        let merges = |selector: Value| {
            let live = LiveSettings::of_a_test(json!({"ksmConfiguration": {"nodeLabelSelector": selector}}));
            live.merges_pages(&[("rack".to_owned(), "1".to_owned())].into())
        };
        let rack = |number: &str| json!({"matchLabels": {"rack": number}});
        assert_eq!([Value::Null, json!({}), rack("1"), rack("2")].map(merges), [false, true, true, false]);
    }

    #[test]
    fn what_cannot_be_read_is_not_set() {
        let odd = settings(json!({"obsoleteCPUModels": ["Nehalem"], "permittedHostDevices": ["x"],
            "minCPUModel": 1, "virtualMachineInstancesPerNode": 0,
            "ksmConfiguration": {"nodeLabelSelector": 1}, "tlsConfiguration": {"minTLSVersion": "1.3"},
            "handlerConfiguration": {"restClient": {"rateLimiter": {"tokenBucketRateLimiter": {"qps": -1}}}},
            "developerConfiguration": {"pvcTolerateLessSpaceUpToPercent": 101, "minimumReservePVCBytes": -1,
                "logVerbosity": {"nodeVerbosity": ["a"]}}, "smbios": {"sku": "a\nb", "family": "x".repeat(257)}}));
        assert_eq!(odd.values, Values { tls: TlsSettings::strictest(), ..Values::default() });
        let client =
            json!({"restClient": {"rateLimiter": {"tokenBucketRateLimiter": {"qps": 5, "burst": 10}}}});
        let even = settings(json!({"minCPUModel": "Haswell", "virtualMachineInstancesPerNode": 7,
            "smbios": {"sku": "a b"}, "tlsConfiguration": {"minTLSVersion": "VersionTLS13"},
            "handlerConfiguration": client.clone(), "ksmConfiguration": {"nodeLabelSelector": {}},
            "virtualMachineOptions": {"disableFreePageReporting": {}},
            "developerConfiguration": {"pvcTolerateLessSpaceUpToPercent": 0, "minimumReservePVCBytes": 1,
                "logVerbosity": {"nodeVerbosity": {"a": 6}}}}));
        let smbios = v1::SMBiosConfiguration { sku: "a b".to_owned(), ..v1::SMBiosConfiguration::default() };
        let tls = serde_json::from_value(json!({"minTLSVersion": "VersionTLS13"})).unwrap();
        let expected = Values {
            min_cpu_model: "Haswell".to_owned(),
            instances: Some(7),
            smbios,
            claim_space: ClaimSpace { tolerated: 0, reserved: 1 },
            keep_free_pages: true,
            ksm: Some(v1::LabelSelector::default()),
            tls: TlsSettings::read(&tls).unwrap(),
            limit: RateLimit::read(Some(&serde_json::from_value(client).unwrap())).unwrap(),
            verbosity: [("a".to_owned(), 6)].into(),
            ..Values::default()
        };
        assert!(expected.limit.is_some());
        assert_eq!(even.values, expected);
    }
}
