//! KubeVirt's feature gates.

/// Gates that KubeVirt no longer needs: it accepts them, and they change nothing there either.
const GRADUATED: [&str; 25] = [
    "AutoResourceLimits",
    "BochsDisplayForEFIGuests",
    "CPUNodeDiscovery",
    "ClusterProfiler",
    "DisableCustomSELinuxPolicy",
    "DynamicPodInterfaceNaming",
    "ExpandDisks",
    "GPU",
    "HotplugNICs",
    "LibvirtHooksServerAndClient",
    "LiveMigration",
    "MigrationPriorityQueue",
    "NUMA",
    "NetworkBindingPlugins",
    "NonRoot",
    "PSA",
    "PersistentReservation",
    "SRIOVLiveMigration",
    "VMExport",
    "VMLiveUpdateFeatures",
    "VMPersistentState",
    "VideoConfig",
    "VmiMemoryOverheadReport",
    "VolumeMigration",
    "VolumesUpdateStrategy",
];
/// Gates of features that are always enabled here.
const ENABLED: [&str; 3] = ["HostDevices", "RebootPolicy", "VSOCK"];

/// Whether what a gate enables is not available here.
pub fn has_no_effect(gate: &str) -> bool {
    !GRADUATED.contains(&gate) && !ENABLED.contains(&gate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_of_features_that_are_not_available_have_no_effect() {
        for gate in GRADUATED.iter().chain(&ENABLED) {
            assert!(!has_no_effect(gate), "{gate}");
        }
        for gate in ["Snapshot", "HostDisk", "CPUManager", "snapshot", ""] {
            assert!(has_no_effect(gate), "{gate}");
        }
    }
}
