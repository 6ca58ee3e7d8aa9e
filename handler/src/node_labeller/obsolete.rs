//! CPU models that no guest should have, although nodes can run them: the setting `obsoleteCPUModels`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::Client;
use kube::runtime::watcher::Config;
use serde::Deserialize;
use serde_json::Value;
use vireo_client::Kind;
use vireo_client::informer::{Cached, Change, Informer};

/// The namespace of the KubeVirt object.
const NAMESPACE: &str = "kubevirt";
/// KubeVirt's; each also as version 1.
const DEFAULT: [&str; 17] = [
    "486",
    "Conroe",
    "Opteron_G1",
    "Opteron_G2",
    "athlon",
    "core2duo",
    "coreduo",
    "kvm32",
    "kvm64",
    "n270",
    "pentium",
    "pentium2",
    "pentium3",
    "pentiumpro",
    "phenom",
    "qemu32",
    "qemu64",
];

/// Names of CPU models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObsoleteModels(BTreeSet<String>);

impl Default for ObsoleteModels {
    fn default() -> Self {
        Self(DEFAULT.iter().flat_map(|name| [(*name).to_owned(), format!("{name}-v1")]).collect())
    }
}

impl ObsoleteModels {
    /// The default with the models that are set to true, and without those that are set to false.
    pub fn configured(models: &BTreeMap<String, bool>) -> Self {
        let mut obsolete = Self::default();
        for (name, is_obsolete) in models {
            match is_obsolete {
                true => drop(obsolete.0.insert(name.clone())),
                false => drop(obsolete.0.remove(name)),
            }
        }
        obsolete
    }

    pub(super) fn contains(&self, model: &str) -> bool {
        self.0.contains(model)
    }
}

/// Of a KubeVirt object, what matters here. What cannot be read is as if it were not set: virt-operator names it.
#[derive(Debug)]
struct Configured {
    created: Option<String>,
    models: BTreeMap<String, bool>,
}

#[expect(clippy::unnecessary_wraps, reason = "an informer reads objects that may not be readable")]
fn read(object: Value) -> Result<Configured, serde_json::Error> {
    let models = &object["spec"]["configuration"]["obsoleteCPUModels"];
    let created = object["metadata"]["creationTimestamp"].as_str().map(str::to_owned);
    Ok(Configured { created, models: BTreeMap::deserialize(models).unwrap_or_default() })
}

/// Whether the setting changed: the status of the object changes more often.
fn is_of_setting(change: &Change<Configured>) -> bool {
    let models = |one: &Option<Arc<Cached<Configured>>>| {
        one.as_ref().map(|one| one.models.clone()).unwrap_or_default()
    };
    models(&change.before) != models(&change.after)
}

/// The obsolete models as they are configured now.
#[derive(Debug, Clone)]
pub struct LiveObsoleteModels(Option<Arc<Informer<Configured>>>);

impl LiveObsoleteModels {
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

    /// Calls back after each change of the setting.
    pub(crate) fn on_change(&self, changed: impl Fn() + Send + Sync + 'static) {
        let Some(installations) = &self.0 else { return };
        installations.on_change(move |change| {
            if is_of_setting(change) {
                changed();
            }
        });
    }

    /// Those of the oldest KubeVirt object.
    pub(crate) fn current(&self) -> ObsoleteModels {
        let installations = self.0.iter().flat_map(|installations| installations.namespace(NAMESPACE));
        let oldest = installations.min_by_key(|one| (one.created.clone(), one.key.clone()));
        oldest.map(|one| ObsoleteModels::configured(&one.models)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_client::ObjectKey;

    use super::*;

    #[test]
    fn only_the_setting_is_a_change() {
        let key = || ObjectKey::new(NAMESPACE, "kubevirt");
        let object = |models: &[&str]| {
            let models = models.iter().map(|name| ((*name).to_owned(), true)).collect();
            let value = Configured { created: None, models };
            Some(Arc::new(Cached { key: key(), uid: String::new(), revision: 1, owner: None, value }))
        };
        let changed = |before, after| is_of_setting(&Change { key: key(), before, after });
        assert!(!changed(None, object(&[])) && !changed(object(&["Nehalem"]), object(&["Nehalem"])));
        assert!(changed(object(&["Nehalem"]), object(&[])) && changed(object(&["Nehalem"]), None));
    }

    #[test]
    fn the_setting_adds_to_the_default_and_takes_from_it() {
        let of = |models: Value| {
            let object = json!({"spec": {"configuration": {"obsoleteCPUModels": models}}});
            ObsoleteModels::configured(&read(object).unwrap().models)
        };
        let changed = of(json!({"Nehalem": true, "kvm64": false}));
        let has = |name| changed.contains(name);
        assert!(has("Nehalem") && !has("kvm64") && has("kvm64-v1") && has("qemu64"));
        assert_eq!(of(json!(null)), ObsoleteModels::default());
        assert_eq!(of(json!(["Nehalem"])), ObsoleteModels::default(), "what is no map");
    }
}
