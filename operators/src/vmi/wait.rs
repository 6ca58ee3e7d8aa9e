//! What an instance waits for before it gets a launcher Pod: its claims, and the DataVolumes that fill them.

use vireo_api::v1::VirtualMachineInstance;
use vireo_client::{Kind, ObjectKey};

use super::claims;
use crate::data_volume::Storage;

/// What an instance waits for, with the explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// A claim does not exist.
    NoClaim(String),
    /// A DataVolume is not filled.
    Filling(String),
    /// A DataVolume is filled once another Pod uses its claim.
    Consumer(String),
    /// A DataVolume has failed, so that there is nothing to wait for.
    Failed(String),
}

impl Wait {
    /// The reason of an instance whose DataVolume has failed; KubeVirt's.
    pub(super) const FAILED: &str = "FailedDataVolumeImport";
    /// The reason of a claim that does not exist; KubeVirt's.
    const NO_CLAIM: &str = "FailedPvcNotFound";
    /// The reason of a claim that nothing has bound; KubeVirt's.
    const NOT_BOUND: &str = "PvcNotBound";

    /// Why the instance is not as its specification says: reason and message.
    pub(super) fn failure(&self) -> Option<(&'static str, &str)> {
        match self {
            Self::NoClaim(message) => Some((Self::NO_CLAIM, message)),
            Self::Failed(message) => Some((Self::FAILED, message)),
            Self::Consumer(message) => Some((Self::NOT_BOUND, message)),
            Self::Filling(_) => None,
        }
    }

    /// Why its DataVolumes are not ready.
    pub(super) fn filling(&self) -> Option<&str> {
        match self {
            Self::Filling(message) | Self::Failed(message) => Some(message),
            Self::NoClaim(_) | Self::Consumer(_) => None,
        }
    }

    /// What is done for its DataVolumes meanwhile: reason and message.
    pub(super) fn provisioning(&self) -> Option<(&'static str, &str)> {
        match self {
            Self::Filling(message) => Some(("DataVolumeFilling", message)),
            Self::Consumer(message) => Some(("WaitForFirstConsumer", message)),
            Self::NoClaim(_) | Self::Failed(_) => None,
        }
    }

    /// What an instance waits for. Where its node agent finds claims, it waits for DataVolumes alone.
    pub(super) fn of(
        vmi: &VirtualMachineInstance,
        storage: &impl Storage,
        are_claims_mounted: bool,
    ) -> Option<Self> {
        let waits = claims::of(vmi).filter_map(|(_, claim)| {
            let key = ObjectKey::new(&vmi.metadata.namespace, claim.name);
            of_claim(&key, storage).filter(|wait| are_claims_mounted || !matches!(wait, Self::NoClaim(_)))
        });
        // What cannot pass comes first, then what others have to do something about.
        waits.min_by_key(|wait| match wait {
            Self::Failed(_) => 0,
            Self::NoClaim(_) => 1,
            Self::Consumer(_) => 2,
            Self::Filling(_) => 3,
        })
    }
}

/// What whoever needs a claim waits for.
pub(crate) fn of_claim(key: &ObjectKey, storage: &impl Storage) -> Option<Wait> {
    let claim = storage.claim(key);
    // Only a claim that a DataVolume controls is filled by it.
    let name = match &claim {
        Some(claim) => claim.data_volume()?,
        None => &key.name,
    };
    let data_volume = storage.data_volume(&ObjectKey::new(&key.namespace, name));
    match (&claim, data_volume) {
        (_, Some(data_volume)) if data_volume.has_failed() => data_volume.failure().map(Wait::Failed),
        (Some(_), Some(data_volume)) if data_volume.is_filled() => None,
        // A launcher that were the consumer could start with the claim while it is empty.
        (_, Some(data_volume)) if data_volume.waits_for_consumer() && !data_volume.is_provisioning() => {
            Some(Wait::Consumer(format!("DataVolume {name} waits for the first consumer of its claim")))
        }
        (_, Some(data_volume)) => {
            let why = data_volume
                .failure()
                .unwrap_or_else(|| format!("DataVolume {name} is not ready yet: {}", data_volume.progress()));
            Some(Wait::Filling(why))
        }
        (Some(_), None) if storage.serves_data_volumes() => {
            Some(Wait::Filling(format!("DataVolume {name} of PVC {key} does not exist")))
        }
        (Some(_), None) => None,
        (None, None) => {
            let mut why = format!("PVC {key} does not exist, waiting for it to appear");
            if !storage.serves_data_volumes() {
                why.push_str("; the cluster has no DataVolumes: it does not serve ");
                why.push_str(&Kind::DATA_VOLUME.api_version());
            }
            Some(Wait::NoClaim(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::data_volume::tests::Cluster;

    fn wait(volumes: Value, cluster: &Cluster) -> Option<Wait> {
        let vmi = json!({"metadata": {"name": "x", "namespace": "n"}, "spec": {"volumes": volumes}});
        Wait::of(&serde_json::from_value(vmi).unwrap(), cluster, true)
    }

    fn of_data_volume(cluster: &Cluster) -> Option<Wait> {
        wait(json!([{"name": "root", "dataVolume": {"name": "d"}}]), cluster)
    }

    fn filling(text: &str) -> Option<Wait> {
        Some(Wait::Filling(text.to_owned()))
    }

    #[test]
    fn an_instance_waits_until_its_data_volume_is_filled() {
        let mut cluster = Cluster { has_cdi: true, ..Cluster::default() };
        let absent = "PVC n/d does not exist, waiting for it to appear".to_owned();
        assert_eq!(of_data_volume(&cluster), Some(Wait::NoClaim(absent)));
        cluster.add_data_volume("d", json!({}));
        assert_eq!(of_data_volume(&cluster), filling("DataVolume d is not ready yet: Pending"));
        cluster.add_claim("d", "Bound", Some("d"));
        cluster.add_data_volume("d", json!({"phase": "ImportInProgress", "progress": "7.5%"}));
        assert_eq!(
            of_data_volume(&cluster),
            filling("DataVolume d is not ready yet: ImportInProgress, 7.5%")
        );
        let claim = json!([{"name": "root", "persistentVolumeClaim": {"claimName": "d"}}]);
        assert_eq!(wait(claim, &cluster), of_data_volume(&cluster), "it is the same claim");
        cluster.add_data_volume("d", json!({"phase": "Succeeded"}));
        assert_eq!(of_data_volume(&cluster), None);
        cluster.add_data_volume("d", json!({"phase": "PendingPopulation"}));
        assert_eq!(of_data_volume(&cluster), None, "the launcher is the consumer");
        cluster.add_data_volume("d", json!({"phase": "WaitForFirstConsumer"}));
        let waits = of_data_volume(&cluster).unwrap();
        assert_eq!(waits.failure().unwrap().0, "PvcNotBound");
        cluster.add_data_volume("d", json!({"phase": "Failed"}));
        assert_eq!(of_data_volume(&cluster), Some(Wait::Failed("DataVolume d has failed".to_owned())));
        cluster.data_volumes.clear();
        assert_eq!(of_data_volume(&cluster), filling("DataVolume d of PVC n/d does not exist"));
    }

    #[test]
    fn a_claim_of_somebody_else_is_ready_as_it_is() {
        let mut cluster = Cluster { has_cdi: true, ..Cluster::default() };
        cluster.add_claim("d", "Pending", None);
        cluster.add_data_volume("d", json!({"phase": "Pending"}));
        assert_eq!(of_data_volume(&cluster), None);
    }

    #[test]
    fn without_data_volumes_in_the_cluster_claims_are_enough() {
        let mut cluster = Cluster::default();
        let Some(Wait::NoClaim(why)) = of_data_volume(&cluster) else { panic!("it waits") };
        assert!(why.ends_with("it does not serve cdi.kubevirt.io/v1beta1"), "{why}");
        cluster.add_claim("d", "Bound", Some("d"));
        assert_eq!(of_data_volume(&cluster), None);
        assert_eq!(
            wait(json!([{"name": "a", "dataVolume": {"name": "x", "hotpluggable": true}}]), &cluster),
            None
        );
    }

    #[test]
    fn what_cannot_pass_comes_first() {
        let mut cluster = Cluster { has_cdi: true, ..Cluster::default() };
        cluster.add_data_volume("a", json!({}));
        cluster.add_data_volume("c", json!({"phase": "Failed"}));
        let volume = |name: &&str| json!({"name": name, "dataVolume": {"name": name}});
        let found = |names: &[&str]| wait(names.iter().map(volume).collect(), &cluster).unwrap();
        assert!(matches!(found(&["a", "b", "c"]), Wait::Failed(_)));
        assert!(matches!(found(&["a", "b"]), Wait::NoClaim(_)));
        let vmi = json!({"metadata": {"namespace": "n"}, "spec": {"volumes": [volume(&"b")]}});
        let of_node_agent = Wait::of(&serde_json::from_value(vmi).unwrap(), &cluster, false);
        assert_eq!(of_node_agent, None, "the node agent looks for claims");
    }
}
