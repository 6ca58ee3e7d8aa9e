//! KubeVirt objects: which of their settings are valid, and which have no effect.

use std::fmt;

use serde_json::Value;
use vireo_api::decode;
use vireo_api::v1::{KubeVirt, Shape as _};
use vireo_client::tls;

use super::vm::{mistyped, without_status};
use crate::Problem;
use crate::certificates::Strategy;
use crate::config::{ClusterConfig, PULL_POLICIES, SUPPORTED_TYPES, feature_gates};
use crate::workload_update;

/// Deletes VMs and VMIs with the installation.
pub const REMOVE_WORKLOADS: &str = "RemoveWorkloads";
/// Keeps the installation while there are VMs or VMIs; the default.
pub const BLOCK_UNINSTALL: &str = "BlockUninstallIfWorkloadsExist";
/// Types of patches.
const PATCHES: [&str; 3] = ["json", "merge", "strategic"];

/// Reads a KubeVirt object.
///
/// # Errors
/// What is not valid in it.
pub fn validate(object: &Value) -> Result<KubeVirt, Vec<Problem>> {
    let decoded = decode::object::<KubeVirt>(without_status(object));
    let mut problems = mistyped(decoded.mistyped());
    let kubevirt = decoded.object;
    let spec = &kubevirt.spec;
    let mut one_of = |field: String, given: &str, supported: &[&str]| {
        if !given.is_empty() && !supported.contains(&given) {
            problems.push(Problem::unsupported_value(field, given, supported));
        }
    };
    let strategies = [BLOCK_UNINSTALL, REMOVE_WORKLOADS];
    one_of("spec.imagePullPolicy".to_owned(), &spec.image_pull_policy, &PULL_POLICIES);
    one_of("spec.uninstallStrategy".to_owned(), &spec.uninstall_strategy, &strategies);
    for (index, patch) in spec.customize_components.patches.iter().enumerate() {
        one_of(format!("spec.customizeComponents.patches[{index}].type"), &patch.r#type, &PATCHES);
    }
    for (index, patch) in spec.customize_components.patches.iter().enumerate() {
        let field = format!("spec.customizeComponents.patches[{index}]");
        let needed = [
            ("resourceType", &patch.resource_type),
            ("resourceName", &patch.resource_name),
            ("type", &patch.r#type),
        ];
        for (name, value) in needed {
            if value.is_empty() {
                problems.push(Problem::required(format!("{field}.{name}"), "must be set"));
            }
        }
        if serde_json::from_str::<Value>(&patch.patch).is_err() {
            problems.push(Problem::invalid(format!("{field}.patch"), "must be JSON"));
        }
    }
    if spec.infra.as_ref().is_some_and(|infra| infra.replicas == Some(0)) {
        problems.push(Problem::invalid("spec.infra.replicas", "must be greater than or equal to 1"));
    }
    problems.extend(ClusterConfig::read(&spec.configuration).1);
    problems.extend(Strategy::new(spec).err().unwrap_or_default());
    problems.extend(workload_update::Strategy::new(spec).err().unwrap_or_default());
    if problems.is_empty() { Ok(kubevirt) } else { Err(problems) }
}

/// A setting without effect. Its [`Display`](fmt::Display) is for lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithoutEffect {
    field: String,
    /// The value without effect, of several in the field.
    value: Option<String>,
}

impl WithoutEffect {
    /// A warning of it.
    pub fn warning(&self) -> String {
        match &self.value {
            Some(value) => format!("{}: {value:?} has no effect", self.field),
            None => format!("{}: has no effect", self.field),
        }
    }
}

impl fmt::Display for WithoutEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.field)?;
        self.value.as_ref().map_or(Ok(()), |value| write!(f, " {value:?}"))
    }
}

/// The settings that have no effect.
pub fn without_effect(kubevirt: &KubeVirt) -> Vec<WithoutEffect> {
    let spec = &kubevirt.spec;
    let mut unknown = Vec::new();
    spec.unknown_fields("spec", &mut unknown);
    let unknown = unknown.into_iter().map(|one| WithoutEffect { field: one.field, value: None });
    let has_replicas = spec.workloads.as_ref().is_some_and(|workloads| workloads.replicas.is_some());
    let replicas =
        has_replicas.then(|| WithoutEffect { field: "spec.workloads.replicas".to_owned(), value: None });
    let configuration = &spec.configuration;
    let value = |field: &str, value: &String| WithoutEffect {
        field: format!("spec.configuration.{field}"),
        value: Some(value.clone()),
    };
    let developer = configuration.developer_configuration.as_ref();
    let gates = developer.into_iter().flat_map(|developer| &developer.feature_gates);
    let gates = gates
        .filter(|gate| feature_gates::has_no_effect(gate))
        .map(|gate| value("developerConfiguration.featureGates", gate));
    let disabled = developer.into_iter().flat_map(|developer| &developer.disabled_feature_gates);
    let disabled = disabled
        .filter(|gate| feature_gates::is_always_enabled(gate))
        .map(|gate| value("developerConfiguration.disabledFeatureGates", gate));
    let ciphers = configuration.tls_configuration.iter().flat_map(|tls| &tls.ciphers);
    let ciphers = ciphers
        .filter(|cipher| tls::is_unavailable(cipher))
        .map(|cipher| value("tlsConfiguration.ciphers", cipher));
    let containers = configuration.support_container_resources.iter().enumerate();
    let containers = containers.filter(|(_, one)| !SUPPORTED_TYPES.contains(&one.r#type.as_str()));
    let containers = containers.map(|(index, one)| WithoutEffect {
        field: format!("spec.configuration.supportContainerResources[{index}].type"),
        value: Some(one.r#type.clone()),
    });
    let methods = spec.workload_update_strategy.workload_update_methods.iter();
    let methods = methods.filter(|method| *method == workload_update::LIVE_MIGRATE);
    let methods = methods.map(|method| WithoutEffect {
        field: "spec.workloadUpdateStrategy.workloadUpdateMethods".to_owned(),
        value: Some(method.clone()),
    });
    unknown
        .chain(replicas)
        .chain(gates)
        .chain(disabled)
        .chain(ciphers)
        .chain(containers)
        .chain(methods)
        .collect()
}

/// Warnings of settings that are deprecated.
pub fn deprecated(kubevirt: &KubeVirt) -> Vec<String> {
    let configuration = &kubevirt.spec.configuration;
    let set = [
        ("machineType", !configuration.machine_type.is_empty()),
        ("emulatedMachines", !configuration.emulated_machines.is_empty()),
    ];
    let warning = |(name, _): &(&str, bool)| {
        let instead = format!("spec.configuration.architectureConfiguration.amd64.{name}");
        format!("spec.configuration.{name} is deprecated, please use {instead} instead.")
    };
    set.iter().filter(|(_, is_set)| *is_set).map(warning).collect()
}

/// Whether VMs and VMIs keep an installation from being deleted.
pub fn blocks_uninstall(kubevirt: &KubeVirt) -> bool {
    kubevirt.spec.uninstall_strategy != REMOVE_WORKLOADS
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problems(spec: Value) -> Vec<String> {
        let problems = validate(&json!({"metadata": {"name": "kubevirt"}, "spec": spec})).err();
        problems.unwrap_or_default().into_iter().map(|problem| problem.field).collect()
    }

    #[test]
    fn settings_are_valid_or_named() {
        assert_eq!(problems(json!({})), [""; 0]);
        let patches = PATCHES.map(|kind| {
            json!({"resourceType": "Deployment", "resourceName": "virt-api", "patch": "{}", "type": kind})
        });
        let valid = json!({"imagePullPolicy": "Never", "uninstallStrategy": REMOVE_WORKLOADS,
            "customizeComponents": {"patches": patches}, "infra": {"replicas": 1}});
        assert_eq!(problems(valid), [""; 0]);
        for (spec, field) in [
            (json!({"imagePullPolicy": "Sometimes"}), "spec.imagePullPolicy"),
            (json!({"uninstallStrategy": "Never"}), "spec.uninstallStrategy"),
            (json!({"infra": {"replicas": 0}}), "spec.infra.replicas"),
            (
                json!({"workloadUpdateStrategy": {"batchEvictionSize": 0}}),
                "spec.workloadUpdateStrategy.batchEvictionSize",
            ),
            (
                json!({"certificateRotateStrategy": {"selfSigned": {"ca": {"duration": "long"}}}}),
                "spec.certificateRotateStrategy.selfSigned.ca.duration",
            ),
            (
                json!({"customizeComponents": {"patches": [
                    {"resourceType": "a", "resourceName": "b", "patch": "{}", "type": "apply"}]}}),
                "spec.customizeComponents.patches[0].type",
            ),
            (
                json!({"customizeComponents": {"patches": [{"resourceType": "a", "resourceName": "b", "patch": "{}"}]}}),
                "spec.customizeComponents.patches[0].type",
            ),
            (
                json!({"customizeComponents": {"patches": [{"resourceType": "a", "resourceName": "b", "patch": "-", "type": "json"}]}}),
                "spec.customizeComponents.patches[0].patch",
            ),
            (
                json!({"customizeComponents": {"patches": [{"resourceType": "a", "patch": "{}", "type": "json"}]}}),
                "spec.customizeComponents.patches[0].resourceName",
            ),
            (
                json!({"configuration": {"developerConfiguration": {"logVerbosity": {"virtAPI": 10}}}}),
                "spec.configuration.developerConfiguration.logVerbosity.virtAPI",
            ),
        ] {
            assert_eq!(problems(spec), [field]);
        }
    }

    /// KubeVirt's settings that have no effect here, with a value of each.
    fn not_honoured() -> Value {
        json!({
            "architectureConfiguration": {"amd64": {"ovmfPath": "/ovmf"}, "arm64": {}, "ppc64le": {}, "s390x": {},
                "defaultArchitecture": "amd64"},
            "changedBlockTrackingLabelSelectors": {"namespaceLabelSelector": {}},
            "commonInstancetypesDeployment": {"enabled": true},
            "developerConfiguration": {"clusterProfiler": true,
                "diskVerification": {"memoryLimit": "2G"}, "minimumClusterTSCFrequency": 1,
                "logVerbosity": {"virtSynchronizationController": 3}},
            "hypervisors": [{"name": "kvm"}],
            "liveUpdateConfiguration": {"maxCpuSockets": 4},
            "mediatedDevicesConfiguration": {"mediatedDeviceTypes": ["a"]},
            "memBalloonStatsPeriod": 10,
            "migrations": {"parallelMigrationsPerCluster": 5},
            "network": {"binding": {"passt": {}}, "permitSlirpInterface": true},
            "ovmfPath": "/ovmf",
            "supportedGuestAgentVersions": ["4.*"],
            "virtualMachineOptions": {"disableSerialConsoleLog": {}},
            "vmRolloutStrategy": "LiveUpdate",
        })
    }

    /// The paths of the leaves, and of objects and lists that are as a whole not honoured.
    fn named(configuration: &Value) -> Vec<String> {
        let kubevirt = validate(&json!({"spec": {"configuration": configuration}})).unwrap();
        without_effect(&kubevirt).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_setting_of_kubevirt_is_honoured_or_named() {
        let all = not_honoured();
        // Of these, others are honoured.
        let nested =
            ["architectureConfiguration", "developerConfiguration", "network", "virtualMachineOptions"];
        let deeper = ["amd64", "logVerbosity"];
        let at = "spec.configuration";
        let mut expected = Vec::new();
        for (name, value) in all.as_object().unwrap() {
            if !nested.contains(&name.as_str()) {
                expected.push(format!("{at}.{name}"));
                continue;
            }
            for (inner, value) in value.as_object().unwrap() {
                match deeper.contains(&inner.as_str()) {
                    true => expected.extend(
                        value.as_object().unwrap().keys().map(|leaf| format!("{at}.{name}.{inner}.{leaf}")),
                    ),
                    false => expected.push(format!("{at}.{name}.{inner}")),
                }
            }
        }
        let mut found = named(&all);
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        let client =
            json!({"restClient": {"rateLimiter": {"tokenBucketRateLimiter": {"qps": 1.5, "burst": 2}}}});
        let honoured = json!({
            "additionalGuestMemoryOverheadRatio": "1.5",
            "apiConfiguration": client, "controllerConfiguration": client, "handlerConfiguration": client,
            "webhookConfiguration": client,
            "autoCPULimitNamespaceLabelSelector": {"matchLabels": {"a": "b"}},
            "instancetype": {"referencePolicy": "expand"}, "ksmConfiguration": {"nodeLabelSelector": {}},
            "roleAggregationStrategy": "Manual",
            "tlsConfiguration": {"minTLSVersion": "VersionTLS12", "ciphers": ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]},
            "architectureConfiguration": {"amd64": {"machineType": "q35", "emulatedMachines": ["q35*"]}},
            "cpuModel": "Haswell", "cpuRequest": "100m", "defaultRuntimeClass": "a",
            "developerConfiguration": {"cpuAllocationRatio": 2, "featureGates": ["ExpandDisks"],
                "disabledFeatureGates": ["VSOCK", "Snapshot", "LiveMigration"],
                "minimumReservePVCBytes": 1, "pvcTolerateLessSpaceUpToPercent": 10,
                "logVerbosity": {"virtAPI": 2, "virtController": 2, "virtHandler": 2, "virtLauncher": 3,
                    "virtOperator": 3, "nodeVerbosity": {"node-1": 3}}, "memoryOvercommit": 150,
                "nodeSelectors": {"a": "b"}, "useEmulation": true},
            "emulatedMachines": ["q35"], "evictionStrategy": "None", "imagePullPolicy": "Always",
            "machineType": "q35", "minCPUModel": "Haswell",
            "network": {"defaultNetworkInterface": "masquerade", "permitBridgeInterfaceOnPodNetwork": true},
            "obsoleteCPUModels": {"Haswell": true},
            "permittedHostDevices": {"pciHostDevices": [{"pciVendorSelector": "1:2", "resourceName": "a.b/c",
                "externalResourceProvider": true}]},
            "seccompConfiguration": {"virtualMachineInstanceProfile": {"customProfile": {"localhostProfile": "a"}}},
            "selinuxLauncherType": "container_t",
            "smbios": {"manufacturer": "a", "product": "b", "version": "c", "sku": "d", "family": "e"},
            "supportContainerResources": [{"type": "container-disk", "resources": {}}],
            "virtualMachineInstancesPerNode": 10,
            "virtualMachineOptions": {"disableFreePageReporting": {}},
            "vmStateStorageClass": "a",
        });
        assert_eq!(named(&honoured), [""; 0]);
    }

    #[test]
    fn settings_without_effect_are_named() {
        let spec = json!({
            "workloadUpdateStrategy": {"workloadUpdateMethods": ["Evict", "LiveMigrate"]}, "workloads": {"replicas": 2}, "imageTag": "1",
            "certificateRotateStrategy": {"selfSigned": {"caOverlapInterval": "24h"}},
            "configuration": {"machineType": "q35", "emulatedMachines": ["q35"], "vmRolloutStrategy": "Stage",
                "architectureConfiguration": {"arm64": {}},
                "tlsConfiguration": {"minTLSVersion": "VersionTLS12", "ciphers": [
                    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_RSA_WITH_AES_128_CBC_SHA"]},
                "supportContainerResources": [{"type": "container-disk"}, {"type": "virtiofs"}],
                "developerConfiguration": {
                    "useEmulation": true, "featureGates": ["LiveMigration", "Snapshot", "Sidecar"],
                    "disabledFeatureGates": ["ExpandDisks", "VSOCK", "Snapshot"]}},
        });
        let kubevirt = validate(&json!({ "spec": spec })).unwrap();
        let without_effect = without_effect(&kubevirt);
        let mut warnings: Vec<_> = without_effect.iter().map(WithoutEffect::warning).collect();
        warnings.sort();
        assert_eq!(
            warnings,
            [
                "spec.certificateRotateStrategy.selfSigned.caOverlapInterval: has no effect",
                "spec.configuration.architectureConfiguration.arm64: has no effect",
                "spec.configuration.developerConfiguration.disabledFeatureGates: \"ExpandDisks\" has no effect",
                "spec.configuration.developerConfiguration.featureGates: \"LiveMigration\" has no effect",
                "spec.configuration.developerConfiguration.featureGates: \"Sidecar\" has no effect",
                "spec.configuration.developerConfiguration.featureGates: \"Snapshot\" has no effect",
                "spec.configuration.supportContainerResources[1].type: \"virtiofs\" has no effect",
                "spec.configuration.tlsConfiguration.ciphers: \"TLS_RSA_WITH_AES_128_CBC_SHA\" has no effect",
                "spec.configuration.vmRolloutStrategy: has no effect",
                "spec.workloadUpdateStrategy.workloadUpdateMethods: \"LiveMigrate\" has no effect",
                "spec.workloads.replicas: has no effect",
            ]
        );
        assert_eq!(deprecated(&kubevirt).len(), 2);
        assert!(deprecated(&kubevirt)[0].starts_with("spec.configuration.machineType is deprecated"));
        assert_eq!(deprecated(&KubeVirt::default()), [""; 0]);
        let listed: Vec<_> = without_effect.iter().map(ToString::to_string).collect();
        assert!(listed.contains(&"spec.workloads.replicas".to_owned()), "{listed:?}");
        let gate = "spec.configuration.developerConfiguration.featureGates \"Snapshot\"".to_owned();
        assert!(listed.contains(&gate), "{listed:?}");
    }
}
