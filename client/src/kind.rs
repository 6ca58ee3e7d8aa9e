//! The kinds that Vireo's clients work with.

use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client};

/// A kind, and where its objects are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version.
    pub version: &'static str,
    /// As in manifests.
    pub kind: &'static str,
    /// As in paths.
    pub plural: &'static str,
}

const KUBEVIRT: (&str, &str) = ("kubevirt.io", "v1");
const POOL: (&str, &str) = ("pool.kubevirt.io", "v1beta1");
const INSTANCETYPE: (&str, &str) = ("instancetype.kubevirt.io", "v1beta1");
const CDI: (&str, &str) = ("cdi.kubevirt.io", "v1beta1");
const CORE: (&str, &str) = ("", "v1");

impl Kind {
    /// A kind of a group and version.
    pub const fn new(
        (group, version): (&'static str, &'static str),
        kind: &'static str,
        plural: &'static str,
    ) -> Self {
        Self { group, version, kind, plural }
    }

    /// VirtualMachineInstance.
    pub const VMI: Self = Self::new(KUBEVIRT, "VirtualMachineInstance", "virtualmachineinstances");
    /// VirtualMachine.
    pub const VM: Self = Self::new(KUBEVIRT, "VirtualMachine", "virtualmachines");
    /// VirtualMachineInstanceReplicaSet.
    pub const REPLICA_SET: Self =
        Self::new(KUBEVIRT, "VirtualMachineInstanceReplicaSet", "virtualmachineinstancereplicasets");
    /// VirtualMachinePool.
    pub const POOL: Self = Self::new(POOL, "VirtualMachinePool", "virtualmachinepools");
    /// VirtualMachineInstancetype.
    pub const INSTANCETYPE: Self =
        Self::new(INSTANCETYPE, "VirtualMachineInstancetype", "virtualmachineinstancetypes");
    /// VirtualMachineClusterInstancetype.
    pub const CLUSTER_INSTANCETYPE: Self =
        Self::new(INSTANCETYPE, "VirtualMachineClusterInstancetype", "virtualmachineclusterinstancetypes");
    /// VirtualMachinePreference.
    pub const PREFERENCE: Self =
        Self::new(INSTANCETYPE, "VirtualMachinePreference", "virtualmachinepreferences");
    /// VirtualMachineClusterPreference.
    pub const CLUSTER_PREFERENCE: Self =
        Self::new(INSTANCETYPE, "VirtualMachineClusterPreference", "virtualmachineclusterpreferences");
    /// KubeVirt.
    pub const KUBEVIRT: Self = Self::new(KUBEVIRT, "KubeVirt", "kubevirts");
    /// ControllerRevision.
    pub const CONTROLLER_REVISION: Self =
        Self::new(("apps", "v1"), "ControllerRevision", "controllerrevisions");
    /// ConfigMaps.
    pub const CONFIG_MAP: Self = Self::new(CORE, "ConfigMap", "configmaps");
    /// Secrets.
    pub const SECRET: Self = Self::new(CORE, "Secret", "secrets");
    /// ServiceAccounts.
    pub const SERVICE_ACCOUNT: Self = Self::new(CORE, "ServiceAccount", "serviceaccounts");
    /// Pod.
    pub const POD: Self = Self::new(CORE, "Pod", "pods");
    /// Node.
    pub const NODE: Self = Self::new(CORE, "Node", "nodes");
    /// Namespace.
    pub const NAMESPACE: Self = Self::new(CORE, "Namespace", "namespaces");
    /// NetworkAttachmentDefinition of Multus.
    pub const NETWORK: Self =
        Self::new(("k8s.cni.cncf.io", "v1"), "NetworkAttachmentDefinition", "network-attachment-definitions");
    /// PersistentVolumeClaim.
    pub const CLAIM: Self = Self::new(CORE, "PersistentVolumeClaim", "persistentvolumeclaims");
    /// PersistentVolume.
    pub const VOLUME: Self = Self::new(CORE, "PersistentVolume", "persistentvolumes");

    /// DataVolume, of CDI.
    pub const DATA_VOLUME: Self = Self::new(CDI, "DataVolume", "datavolumes");
    /// DataSource, of CDI.
    pub const DATA_SOURCE: Self = Self::new(CDI, "DataSource", "datasources");

    /// Whether the API server serves it.
    ///
    /// # Errors
    /// When it does not say so.
    pub async fn is_served(self, client: &Client) -> Result<bool, kube::Error> {
        match client.list_api_group_resources(&self.api_version()).await {
            Ok(served) => Ok(served.resources.iter().any(|resource| resource.name == self.plural)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// `group/version`, or the version alone in the core group.
    pub fn api_version(self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// `plural.group`, as in messages.
    pub fn resource_name(self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// As kube-rs describes it.
    pub fn api_resource(self) -> ApiResource {
        ApiResource {
            group: self.group.to_owned(),
            version: self.version.to_owned(),
            api_version: self.api_version(),
            kind: self.kind.to_owned(),
            plural: self.plural.to_owned(),
        }
    }

    /// All objects of the kind.
    pub fn all(self, client: &Client) -> Api<DynamicObject> {
        Api::all_with(client.clone(), &self.api_resource())
    }

    /// The objects of a namespace.
    pub fn namespaced(self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), namespace, &self.api_resource())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_those_of_the_api_types() {
        use vireo_api::v1;
        for (kind, api_version, name) in [
            (Kind::VMI, v1::API_VERSION, v1::VMI_KIND),
            (Kind::VM, v1::API_VERSION, v1::VM_KIND),
            (Kind::REPLICA_SET, v1::API_VERSION, v1::REPLICA_SET_KIND),
            (Kind::KUBEVIRT, v1::API_VERSION, v1::KUBEVIRT_KIND),
        ] {
            assert_eq!((kind.api_version().as_str(), kind.kind), (api_version, name));
        }
        assert_eq!(Kind::POOL.kind, v1::POOL_KIND);
        assert_eq!(Kind::INSTANCETYPE.api_version(), v1::INSTANCETYPE_VERSION);
        assert_eq!(Kind::NODE.api_version(), "v1");
    }
}
