//! KubeVirt's feature gates.

/// Gates that KubeVirt no longer needs, of features that are always enabled here: it accepts them, and they change nothing there
/// either. Gates of graduated features that do not exist here are in none of these lists.
const GRADUATED: [&str; 13] = [
    "AutoResourceLimits",
    "BochsDisplayForEFIGuests",
    "CPUNodeDiscovery",
    "DisableCustomSELinuxPolicy",
    "DynamicPodInterfaceNaming",
    "ExpandDisks",
    "GPU",
    "NonRoot",
    "PSA",
    "VMPersistentState",
    "VideoConfig",
    "VmiMemoryOverheadReport",
    "VolumesUpdateStrategy",
];
/// Gate of devices of nodes.
pub(crate) const HOST_DEVICES: &str = "HostDevices";
/// Gate of `rebootPolicy`.
pub(crate) const REBOOT_POLICY: &str = "RebootPolicy";
/// Gate of `autoattachVSOCK`.
pub(crate) const VSOCK: &str = "VSOCK";
/// Gate of metrics of the host for guests.
pub(crate) const DOWNWARD_METRICS: &str = "DownwardMetrics";
/// Gates of features that are enabled here unless they are disabled.
pub(super) const ENABLED: [&str; 4] = [DOWNWARD_METRICS, HOST_DEVICES, REBOOT_POLICY, VSOCK];
/// Gates that have not graduated in KubeVirt, of features that are always enabled here.
const ALWAYS: [&str; 2] = ["DeclarativeHotplugVolumes", "HotplugVolumes"];

/// Whether what a gate enables is not available here.
pub fn has_no_effect(gate: &str) -> bool {
    !is_always_enabled(gate) && !ENABLED.contains(&gate)
}

/// Whether a gate cannot be disabled: what it enables is always available. What is not available needs no gate for that.
pub fn is_always_enabled(gate: &str) -> bool {
    GRADUATED.contains(&gate) || ALWAYS.contains(&gate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_of_features_that_are_not_available_have_no_effect() {
        for gate in GRADUATED.iter().chain(&ENABLED).chain(&ALWAYS) {
            assert!(!has_no_effect(gate), "{gate}");
        }
        for gate in [
            "Snapshot",
            "HostDisk",
            "CPUManager",
            "snapshot",
            "",
            "LiveMigration",
            "VMExport",
            "NetworkBindingPlugins",
        ] {
            assert!(has_no_effect(gate), "{gate}");
            assert!(!is_always_enabled(gate), "{gate}: there is nothing to disable");
        }
    }
}
