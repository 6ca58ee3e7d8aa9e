use std::collections::BTreeMap;

use super::shape::shapes;
use super::{
    AddVolumeOptions, Condition, ListMeta, ObjectMeta, RemoveVolumeOptions, VirtualMachineInstanceSpec,
};

shapes! {
    /// A virtual machine that exists also while it does not run. It contains the template of its VMI, which it starts
    /// and stops by its run strategy.
    pub struct VirtualMachine {
        /// API version: `kubevirt.io/v1`.
        pub api_version: String,
        /// Kind of the object: `VirtualMachine`.
        pub kind: String,
        /// Standard object metadata.
        pub metadata: ObjectMeta,
        /// Specification of the VirtualMachine.
        pub spec: VirtualMachineSpec,
        /// Most recently observed status of the VirtualMachine. Read-only.
        pub status: VirtualMachineStatus,
    }

    /// A list of VirtualMachines.
    pub struct VirtualMachineList {
        /// API version: `kubevirt.io/v1`.
        pub api_version: String,
        /// Kind of the object: `VirtualMachineList`.
        pub kind: String,
        /// Standard list metadata.
        pub metadata: ListMeta,
        /// The VirtualMachines.
        pub items: Vec<VirtualMachine> = "items",
    }

    /// Specification of a VirtualMachine.
    pub struct VirtualMachineSpec {
        /// Deprecated: use `runStrategy` instead. `true` equals `Always`, `false` equals `Halted`. Mutually exclusive
        /// with `runStrategy`.
        pub running: Option<bool>,
        /// When the VMI runs: `Always`, `Halted`, `Manual`, `RerunOnFailure` or `Once`. Mutually exclusive with
        /// `running`.
        pub run_strategy: Option<String>,
        /// Instance type whose resources are applied to the VMI.
        pub instancetype: Option<Matcher>,
        /// Preference whose values are applied where the template does not set a field.
        pub preference: Option<Matcher>,
        /// Template of the VMI that is created.
        pub template: Option<VirtualMachineInstanceTemplateSpec>,
        /// DataVolumes that are created with the VirtualMachine and deleted with it.
        pub data_volume_templates: Vec<DataVolumeTemplateSpec>,
        /// How changes of volumes are applied: `Replacement` or `Migration`.
        pub update_volumes_strategy: Option<String>,
    }

    /// Template of a VMI.
    pub struct VirtualMachineInstanceTemplateSpec {
        /// Labels and annotations of the VMI.
        pub metadata: ObjectMeta,
        /// Specification of the VMI.
        pub spec: VirtualMachineInstanceSpec,
    }

    /// Template of a DataVolume.
    pub struct DataVolumeTemplateSpec {
        /// API version. Has no effect: DataVolumes are of `cdi.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// Kind. Has no effect.
        pub kind: String,
        /// Name, labels and annotations of the DataVolume. A volume of the template of the VMI must refer to the name.
        pub metadata: ObjectMeta,
        /// Specification of the DataVolume, as CDI defines it.
        pub spec: serde_json::Value,
        /// Has no effect.
        pub status: Option<serde_json::Value>,
    }

    /// Refers to an instance type or a preference.
    pub struct Matcher {
        /// Name of the instance type or preference.
        pub name: String,
        /// Kind of the referent. Defaults to the cluster-scoped kind: `VirtualMachineClusterInstancetype` or
        /// `VirtualMachineClusterPreference`.
        pub kind: String,
        /// Name of the ControllerRevision that holds the state of the referent when it was first applied.
        pub revision_name: String,
        /// Name of a volume whose labels or annotations name the referent. Used if `name` is not set.
        pub infer_from_volume: String,
        /// What happens when the name cannot be inferred: `Reject` or `Ignore`. Defaults to `Reject`.
        pub infer_from_volume_failure_policy: Option<String>,
    }

    /// Most recently observed status of a VirtualMachine.
    pub struct VirtualMachineStatus {
        /// Name of the VirtualMachineSnapshot that is being taken.
        pub snapshot_in_progress: Option<String>,
        /// Name of the VirtualMachineRestore that is being performed.
        pub restore_in_progress: Option<String>,
        /// Whether the VMI exists.
        pub created: bool,
        /// Whether the VMI is running and ready.
        pub ready: bool,
        /// Human-readable status of the VM, such as `Stopped`, `Starting` or `Running`.
        pub printable_status: String,
        /// Conditions of the VirtualMachine, including those of its VMI.
        pub conditions: Vec<Condition>,
        /// Pending requests to start or stop the VM, oldest first.
        pub state_change_requests: Vec<StateChangeRequest>,
        /// Pending requests to add or remove volumes.
        pub volume_requests: Vec<VolumeRequest>,
        /// Whether each volume can be included in a snapshot.
        pub volume_snapshot_statuses: Vec<serde_json::Value>,
        /// Start failures since the last successful start, for the back-off of the next start.
        pub start_failure: Option<StartFailure>,
        /// State of a requested memory dump.
        pub memory_dump_request: Option<serde_json::Value>,
        /// Generation of the spec from which the VMI was created.
        pub observed_generation: Option<i64>,
        /// Current generation of the spec.
        pub desired_generation: Option<i64>,
        /// Run strategy that was last acted on.
        pub run_strategy: Option<String>,
        /// State of an update of volumes.
        pub volume_update_state: Option<serde_json::Value>,
        /// State of the tracking of changed blocks.
        pub changed_block_tracking: Option<serde_json::Value>,
        /// Instance type that is in use, with its revision.
        pub instancetype_ref: Option<serde_json::Value>,
        /// Preference that is in use, with its revision.
        pub preference_ref: Option<serde_json::Value>,
    }

    /// A request to start or stop a VM.
    pub struct StateChangeRequest {
        /// Requested action: `Start` or `Stop`.
        pub action: String,
        /// Parameters of the action: `paused: "true"` starts the VM paused.
        pub data: BTreeMap<String, String>,
        /// UID of the VMI that the request applies to.
        pub uid: Option<String>,
    }

    /// A request to add or remove a volume: one of its members is set.
    pub struct VolumeRequest {
        /// Options of the volume that is added.
        pub add_volume_options: Option<AddVolumeOptions>,
        /// Options of the volume that is removed.
        pub remove_volume_options: Option<RemoveVolumeOptions>,
    }

    /// Consecutive start failures of a VM.
    pub struct StartFailure {
        /// Number of consecutive failures.
        pub consecutive_fail_count: i64,
        /// UID of the VMI that failed last.
        pub last_failed_vmi_uid: Option<String> = "lastFailedVMIUID",
        /// Time before which the VM is not started again, in RFC 3339 form.
        pub retry_after_timestamp: Option<String>,
    }
}
