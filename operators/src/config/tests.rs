use serde_json::{Value, json};

use super::*;

fn read(configuration: Value) -> (ClusterConfig, Vec<Problem>) {
    ClusterConfig::read(&serde_json::from_value(configuration).unwrap())
}

/// The configuration that settings make of the default one.
fn config(set: impl FnOnce(&mut ClusterConfig)) -> ClusterConfig {
    let mut config = ClusterConfig::default();
    set(&mut config);
    config
}

/// A seccomp profile of launcher Pods.
fn seccomp(profile: Value) -> Value {
    json!({"seccompConfiguration": {"virtualMachineInstanceProfile": {"customProfile": profile}}})
}

#[test]
fn every_setting_is_read() {
    let amd64 = |settings: Value| json!({"architectureConfiguration": {"amd64": settings}});
    let developer = |settings: Value| json!({ "developerConfiguration": settings });
    for (given, expected) in [
        (json!({}), config(|_| {})),
        (json!({"machineType": "pc-q35-9.0"}), config(|one| one.machine_type = "pc-q35-9.0".to_owned())),
        (
            amd64(json!({"machineType": "pc-q35-9.0"})),
            config(|one| one.machine_type = "pc-q35-9.0".to_owned()),
        ),
        (
            json!({"machineType": "q35", "architectureConfiguration": {"amd64": {"machineType": "pc-q35-9.0"}}}),
            config(|_| {}),
        ),
        (
            amd64(json!({"emulatedMachines": ["q35"]})),
            config(|one| one.emulated_machines = vec!["q35".to_owned()]),
        ),
        (json!({"emulatedMachines": ["q35"]}), config(|one| one.emulated_machines = vec!["q35".to_owned()])),
        (json!({"minCPUModel": "Haswell"}), config(|_| {})),
        (
            json!({"autoCPULimitNamespaceLabelSelector": {"matchLabels": {"a": "b"}}}),
            config(|one| {
                let match_labels = [("a".to_owned(), "b".to_owned())].into();
                one.auto_cpu_limit = Some(LabelSelector { match_labels, ..LabelSelector::default() });
            }),
        ),
        (json!({"roleAggregationStrategy": "Manual"}), config(|_| {})),
        (
            json!({"instancetype": {"referencePolicy": "expandAll"}}),
            config(|one| one.reference_policy = ReferencePolicy::ExpandAll),
        ),
        (json!({"ksmConfiguration": {"nodeLabelSelector": {}}}), config(|_| {})),
        (
            developer(json!({"disabledFeatureGates": ["VSOCK", "NUMA"]})),
            config(|one| one.disabled_gates = vec!["VSOCK"]),
        ),
        (
            developer(json!({"pvcTolerateLessSpaceUpToPercent": 0, "minimumReservePVCBytes": 0})),
            config(|_| {}),
        ),
        (
            developer(
                json!({"logVerbosity": {"virtLauncher": 4, "virtOperator": 9, "nodeVerbosity": {"a": 6}}}),
            ),
            config(|one| {
                one.launcher_verbosity = Some(4);
                one.components.operator_verbosity = Some(9);
            }),
        ),
        (json!({"virtualMachineInstancesPerNode": 50}), config(|_| {})),
        (json!({"smbios": {"manufacturer": "Example", "sku": "1"}}), config(|_| {})),
        (json!({"cpuModel": "Skylake-Client"}), config(|one| one.cpu_model = "Skylake-Client".to_owned())),
        (json!({"cpuRequest": "500m"}), config(|one| one.cpu_request = Some(Quantity("500m".to_owned())))),
        (json!({"cpuRequest": "100m"}), config(|_| {})),
        (
            json!({"evictionStrategy": "External"}),
            config(|one| one.eviction_strategy = "External".to_owned()),
        ),
        (json!({"imagePullPolicy": "Always"}), config(|one| one.image_pull_policy = "Always".to_owned())),
        (json!({"defaultRuntimeClass": "kata"}), config(|one| one.runtime_class = Some("kata".to_owned()))),
        (json!({"selinuxLauncherType": "a.t"}), config(|one| one.selinux_type = Some("a.t".to_owned()))),
        (
            seccomp(json!({"localhostProfile": "vms/a.json"})),
            config(|one| one.seccomp_profile = Some("vms/a.json".to_owned())),
        ),
        (seccomp(json!({"runtimeDefaultProfile": true})), config(|_| {})),
        (
            json!({"vmStateStorageClass": "fast"}),
            config(|one| one.state_storage_class = Some("fast".to_owned())),
        ),
        (json!({"additionalGuestMemoryOverheadRatio": "1.5"}), config(|one| one.overhead_ratio = 1.5)),
        (json!({"network": {"defaultNetworkInterface": "masquerade"}}), config(|_| {})),
        (json!({"virtualMachineOptions": {"disableSerialConsoleLog": {}}}), config(|_| {})),
        (json!({"supportContainerResources": [{"type": "virtiofs"}]}), config(|_| {})),
        (developer(json!({"cpuAllocationRatio": 4})), config(|one| one.cpu_allocation_ratio = 4)),
        (developer(json!({"memoryOvercommit": 150})), config(|one| one.memory_overcommit = 150)),
        (developer(json!({"useEmulation": true})), config(|one| one.use_emulation = true)),
        (
            developer(json!({"nodeSelectors": {"rack": "1"}})),
            config(|one| one.node_selectors = [("rack".to_owned(), "1".to_owned())].into()),
        ),
        (developer(json!({"featureGates": ["LiveMigration"]})), config(|_| {})),
    ] {
        assert_eq!(read(given.clone()), (expected, vec![]), "{given}");
    }
}

#[test]
fn settings_that_are_not_valid_are_named_and_left_at_their_defaults() {
    let amd64 = |settings: Value| json!({"architectureConfiguration": {"amd64": settings}});
    let developer = |settings: Value| json!({ "developerConfiguration": settings });
    let support = |resources: Value| json!({"supportContainerResources": [{"type": "container-disk", "resources": resources}]});
    for (given, field, message) in [
        (
            json!({"minCPUModel": "host-model"}),
            "minCPUModel",
            "Invalid value: \"host-model\": must be a CPU model of QEMU",
        ),
        (
            json!({"virtualMachineInstancesPerNode": 0}),
            "virtualMachineInstancesPerNode",
            "Invalid value: 0: must be greater than or equal to 1",
        ),
        (
            json!({"smbios": {"family": "a\nb"}}),
            "smbios.family",
            "Invalid value: \"a\\nb\": must be one line of at most 256 bytes",
        ),
        (
            json!({"emulatedMachines": ["virt"]}),
            "emulatedMachines[0]",
            "Unsupported value: \"virt\": supported values: \"q35*\", \"pc-q35*\"",
        ),
        (json!({"machineType": "pc"}), "machineType", "Unsupported value: \"pc\": supported values: \"q35\""),
        (
            amd64(json!({"machineType": "virt"})),
            "architectureConfiguration.amd64.machineType",
            "Unsupported value: \"virt\": supported values: \"q35\"",
        ),
        (
            amd64(json!({"emulatedMachines": ["q35*", "virt*"]})),
            "architectureConfiguration.amd64.emulatedMachines[1]",
            "Unsupported value: \"virt*\": supported values: \"q35*\", \"pc-q35*\"",
        ),
        (
            amd64(json!({"emulatedMachines": ["pc-q35-9.*"]})),
            "architectureConfiguration.amd64.emulatedMachines",
            "Invalid value: \"pc-q35-9.*\": must match the machine type of VMIs that set none, which is q35",
        ),
        (
            json!({"cpuModel": "a b"}),
            "cpuModel",
            "Invalid value: \"a b\": must be host-model, host-passthrough or a CPU model of QEMU",
        ),
        (
            json!({"cpuModel": "Skylake"}),
            "cpuModel",
            "Invalid value: \"Skylake\": must be host-model, host-passthrough or a CPU model of QEMU",
        ),
        (
            json!({"minCPUModel": "Haswel"}),
            "minCPUModel",
            "Invalid value: \"Haswel\": must be a CPU model of QEMU",
        ),
        (json!({"cpuRequest": "0"}), "cpuRequest", "Invalid value: \"0\": must be above 0 and at most 254"),
        (json!({"cpuRequest": 255}), "cpuRequest", "Invalid value: \"255\": must be above 0 and at most 254"),
        (
            developer(json!({"nodeSelectors": {"": "1"}})),
            "developerConfiguration.nodeSelectors",
            "Invalid value: \"\": name part must be non-empty",
        ),
        (
            json!({"evictionStrategy": ""}),
            "evictionStrategy",
            "Unsupported value: \"\": supported values: \"External\", \"LiveMigrate\", \"LiveMigrateIfPossible\", \"None\"",
        ),
        (
            json!({"imagePullPolicy": "Sometimes"}),
            "imagePullPolicy",
            "Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ),
        (
            json!({"defaultRuntimeClass": "Kata!"}),
            "defaultRuntimeClass",
            "Invalid value: \"Kata!\": must be the name of a RuntimeClass",
        ),
        (
            json!({"selinuxLauncherType": "a:b"}),
            "selinuxLauncherType",
            "Invalid value: \"a:b\": must be a type of at most 255 letters, digits, '_', '.' and '-'",
        ),
        (
            seccomp(json!({"localhostProfile": "../a"})),
            "seccompConfiguration.virtualMachineInstanceProfile.customProfile.localhostProfile",
            "Invalid value: \"../a\": must be a relative path without '..'",
        ),
        (
            seccomp(json!({"localhostProfile": "a//b"})),
            "seccompConfiguration.virtualMachineInstanceProfile.customProfile.localhostProfile",
            "Invalid value: \"a//b\": must be a relative path without '..'",
        ),
        (
            seccomp(json!({"localhostProfile": "a", "runtimeDefaultProfile": true})),
            "seccompConfiguration.virtualMachineInstanceProfile.customProfile.localhostProfile",
            "Invalid value: \"a\": must not be set with runtimeDefaultProfile",
        ),
        (
            json!({"vmStateStorageClass": "Fast!"}),
            "vmStateStorageClass",
            "Invalid value: \"Fast!\": must be the name of a StorageClass",
        ),
        (
            json!({"additionalGuestMemoryOverheadRatio": "NaN"}),
            "additionalGuestMemoryOverheadRatio",
            "Invalid value: \"NaN\": must be a number above 0, such as 1.5",
        ),
        (
            json!({"instancetype": {"referencePolicy": "Expand"}}),
            "instancetype.referencePolicy",
            "Unsupported value: \"Expand\": supported values: \"reference\", \"expand\", \"expandAll\"",
        ),
        (
            json!({"tlsConfiguration": {"minTLSVersion": "VersionTLS13", "ciphers": ["a"]}}),
            "tlsConfiguration.ciphers",
            "Forbidden: must not be set where minTLSVersion is empty or VersionTLS13",
        ),
        (
            json!({"handlerConfiguration": {"restClient": {"rateLimiter": {"tokenBucketRateLimiter": {"qps": 1}}}}}),
            "handlerConfiguration.restClient.rateLimiter.tokenBucketRateLimiter.burst",
            "Invalid value: 0: must be greater than or equal to 1",
        ),
        (
            json!({"roleAggregationStrategy": "None"}),
            "roleAggregationStrategy",
            "Unsupported value: \"None\": supported values: \"AggregateToDefault\", \"Manual\"",
        ),
        (
            developer(json!({"pvcTolerateLessSpaceUpToPercent": 101})),
            "developerConfiguration.pvcTolerateLessSpaceUpToPercent",
            "Invalid value: 101: must be from 0 to 100",
        ),
        (
            developer(json!({"logVerbosity": {"nodeVerbosity": {"a": 10}}})),
            "developerConfiguration.logVerbosity.nodeVerbosity.a",
            "Invalid value: 10: must be less than or equal to 9",
        ),
        (
            json!({"network": {"defaultNetworkInterface": "slirp"}}),
            "network.defaultNetworkInterface",
            "Unsupported value: \"slirp\": supported values: \"bridge\", \"masquerade\"",
        ),
        (
            developer(json!({"cpuAllocationRatio": 0})),
            "developerConfiguration.cpuAllocationRatio",
            "Invalid value: 0: must be greater than or equal to 1",
        ),
        (
            developer(json!({"memoryOvercommit": -1})),
            "developerConfiguration.memoryOvercommit",
            "Invalid value: -1: must be greater than or equal to 1",
        ),
        (
            support(json!({"requests": {"cpu": "1"}})),
            "supportContainerResources[0].resources.requests.cpu",
            "Invalid value: \"1\": must be less than or equal to the limit",
        ),
        (
            support(json!({"limits": {"memory": "much"}})),
            "supportContainerResources[0].resources.limits.memory",
            "Invalid value: \"much\": must be a quantity",
        ),
        (
            support(json!({"limits": {"example.com/x": "1"}})),
            "supportContainerResources[0].resources.limits.example.com/x",
            "only cpu and memory are supported",
        ),
        (
            json!({"supportContainerResources": [{}]}),
            "supportContainerResources[0].type",
            "Required value: name the containers",
        ),
    ] {
        let (config, problems) = read(given.clone());
        let found: Vec<_> = problems.iter().map(|one| (one.field.as_str(), one.message.as_str())).collect();
        assert_eq!(found, [(format!("spec.configuration.{field}").as_str(), message)], "{given}");
        assert_eq!(config, ClusterConfig::default(), "{given}");
    }
}

#[test]
fn machine_types_match_patterns() {
    for (pattern, machine, fits) in [
        ("q35", "q35", true),
        ("q35", "q35-1", false),
        ("q35*", "q35", true),
        ("pc-q35*", "pc-q35-9.0", true),
        ("pc-q35-*.1", "pc-q35-9.1", true),
        ("pc-q35-*.1", "pc-q35-9.0", false),
        ("pc-*-rhel*.0", "pc-q35-rhel9.4.0", true),
        ("pc-*-rhel*.0", "pc-q35-9.4.0", false),
        ("pc*5*5", "pc-5", false),
    ] {
        assert_eq!(matches(pattern, machine), fits, "{pattern} {machine}");
    }
}

#[test]
fn nics_are_on_bridges_by_default_only_where_these_are_permitted() {
    let network = |permitted: bool| {
        read(
            json!({"network": {"defaultNetworkInterface": "bridge", "permitBridgeInterfaceOnPodNetwork": permitted}}),
        )
    };
    let (config, problems) = network(true);
    assert_eq!((config.default_binding, problems.len()), ("bridge", 0));
    let (config, problems) = network(false);
    assert_eq!(config.default_binding, "masquerade");
    assert!(!config.permit_bridge_on_pod_network);
    let fields: Vec<&str> = problems.iter().map(|one| one.field.as_str()).collect();
    assert_eq!(fields, ["spec.configuration.network.defaultNetworkInterface"]);
}
