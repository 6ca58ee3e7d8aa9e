use std::collections::BTreeMap;

use super::shape::shapes;
use super::{
    AddVolumeOptions, Condition, ListMeta, ObjectMeta, RemoveVolumeOptions, VirtualMachineInstanceSpec,
};

shapes! {
    /// A machine that somebody owns: there also while it does not run, and started and stopped by its run strategy.
    pub struct VirtualMachine {
        /// `kubevirt.io/v1`.
        pub api_version: String,
        /// `VirtualMachine`.
        pub kind: String,
        /// Name, labels and so on.
        pub metadata: ObjectMeta,
        /// What is wanted.
        pub spec: VirtualMachineSpec,
        /// What was observed.
        pub status: VirtualMachineStatus,
    }

    /// Several of them, as a list request answers.
    pub struct VirtualMachineList {
        /// `kubevirt.io/v1`.
        pub api_version: String,
        /// `VirtualMachineList`.
        pub kind: String,
        /// About the list itself.
        pub metadata: ListMeta,
        /// The machines.
        pub items: Vec<VirtualMachine> = "items",
    }

    /// What is wanted of a machine.
    pub struct VirtualMachineSpec {
        /// Deprecated: `true` is `runStrategy: Always`, `false` is `Halted`.
        pub running: Option<bool>,
        /// `Always`, `Halted`, `Manual`, `RerunOnFailure` or `Once`. Not together with `running`.
        pub run_strategy: Option<String>,
        /// The instance type whose resources it gets.
        pub instancetype: Option<Matcher>,
        /// The preference that fills what the template leaves open.
        pub preference: Option<Matcher>,
        /// What every instance of it is made from.
        pub template: Option<VirtualMachineInstanceTemplateSpec>,
        /// Volumes to make with it: CDI `DataVolume`s.
        pub data_volume_templates: Vec<serde_json::Value>,
        /// `Replacement` or `Migration`.
        pub update_volumes_strategy: Option<String>,
    }

    /// What instances are made from.
    pub struct VirtualMachineInstanceTemplateSpec {
        /// Labels and annotations of the instance.
        pub metadata: ObjectMeta,
        /// Its spec.
        pub spec: VirtualMachineInstanceSpec,
    }

    /// Names an instance type or a preference.
    pub struct Matcher {
        /// Its name.
        pub name: String,
        /// `VirtualMachineClusterInstancetype`, ...
        pub kind: String,
        /// The `ControllerRevision` that holds it as it was when it was chosen.
        pub revision_name: String,
        /// The volume that says which one.
        pub infer_from_volume: String,
        /// `Reject` or `Ignore`.
        pub infer_from_volume_failure_policy: Option<String>,
    }

    /// What was observed of a machine.
    pub struct VirtualMachineStatus {
        /// The snapshot being taken.
        pub snapshot_in_progress: Option<String>,
        /// The restore being done.
        pub restore_in_progress: Option<String>,
        /// Whether there is an instance.
        pub created: bool,
        /// Whether the instance is ready.
        pub ready: bool,
        /// For people: `Stopped`, `Running`, ...
        pub printable_status: String,
        /// Its conditions; those of its instance among them.
        pub conditions: Vec<Condition>,
        /// What users asked for and was not done yet, the oldest first.
        pub state_change_requests: Vec<StateChangeRequest>,
        /// Volumes to plug and unplug.
        pub volume_requests: Vec<VolumeRequest>,
        /// Which volumes could be part of a snapshot.
        pub volume_snapshot_statuses: Vec<serde_json::Value>,
        /// Starts that failed one after the other.
        pub start_failure: Option<StartFailure>,
        /// A memory dump under way or done.
        pub memory_dump_request: Option<serde_json::Value>,
        /// The generation that the instance was made from.
        pub observed_generation: Option<i64>,
        /// The generation of the machine now.
        pub desired_generation: Option<i64>,
        /// The run strategy that was last acted on.
        pub run_strategy: Option<String>,
        /// Volumes being moved.
        pub volume_update_state: Option<serde_json::Value>,
        /// Incremental backup.
        pub changed_block_tracking: Option<serde_json::Value>,
        /// The instance type in use.
        pub instancetype_ref: Option<serde_json::Value>,
        /// The preference in use.
        pub preference_ref: Option<serde_json::Value>,
    }

    /// A start or a stop that a user asked for.
    pub struct StateChangeRequest {
        /// `Start` or `Stop`.
        pub action: String,
        /// `paused: "true"` starts with halted processors.
        pub data: BTreeMap<String, String>,
        /// The instance to stop.
        pub uid: Option<String>,
    }

    /// A volume to plug in or out: one of the two.
    pub struct VolumeRequest {
        /// To plug in.
        pub add_volume_options: Option<AddVolumeOptions>,
        /// To plug out.
        pub remove_volume_options: Option<RemoveVolumeOptions>,
    }

    /// Starts that failed one after the other.
    pub struct StartFailure {
        /// How many.
        pub consecutive_fail_count: i64,
        /// The instance that failed last.
        pub last_failed_vmi_uid: Option<String> = "lastFailedVMIUID",
        /// RFC 3339: not before this the next start.
        pub retry_after_timestamp: Option<String>,
    }
}
