//! The resources of KubeVirt.

use std::sync::Arc;

use vireo_api::v1::KUBEVIRT_KIND;
use vireo_apiserver::resource::{Column, Resource, Row, Scale, Text, texts};
use vireo_operators::admission::{instancetype, pool, replicaset, vm, vmi};

use super::causes;
use super::schema::{DEFINITIONS, INSTALLATION};

const READY: &str = ".status.conditions[?(@.type=='Ready')].status";

/// A kind that `kubectl get all` shows.
fn among_all(row: Resource) -> Resource {
    Resource { categories: texts(&["all"]), ..row }
}

fn kubevirt(kind: &'static str) -> Resource {
    among_all(Resource::new("kubevirt.io", "v1", kind, &DEFINITIONS))
}

/// An instance type or a preference.
fn chosen(kind: &'static str) -> Resource {
    Resource::new("instancetype.kubevirt.io", "v1beta1", kind, &DEFINITIONS)
}

/// A set of `what`, which can be scaled.
fn set(of: Resource, what: &str) -> Resource {
    let said = |text: &str| Text::from(text.replace("{}", what));
    let described = |column, text| Column { description: said(text), ..column };
    Resource {
        status: true,
        columns: vec![
            described(Column::number("Desired", ".spec.replicas"), "Number of desired {}."),
            described(
                Column::number("Current", ".status.replicas"),
                "Number of managed {} that are neither final nor being deleted.",
            ),
            described(
                Column::number("Ready", ".status.readyReplicas"),
                "Number of managed {} that are ready to receive traffic.",
            ),
            Column::age(),
        ],
        scale: Some(Scale {
            wanted: "/spec/replicas".into(),
            there: "/status/replicas".into(),
            selector: Some("/status/labelSelector".into()),
        }),
        ..of
    }
}

/// VirtualMachineInstances.
pub static VMIS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmi", "vmis"]),
        status: true,
        columns: vec![
            Column::age(),
            Column::text("Phase", ".status.phase").described("Current phase of the VMI."),
            Column::text("IP", ".status.interfaces[0].ipAddress")
                .described("First IP address of the first interface."),
            Column::text("NodeName", ".status.nodeName").described("Name of the node where the VMI runs."),
            Column::text("Ready", READY).described("Status of the Ready condition."),
            Column::text("Live-Migratable", ".status.conditions[?(@.type=='LiveMigratable')].status")
                .wide()
                .described("Status of the LiveMigratable condition."),
            Column::text("Paused", ".status.conditions[?(@.type=='Paused')].status")
                .wide()
                .described("Status of the Paused condition."),
        ],
        admit: |new, old| causes(vmi::admit(new, old)),
        ..kubevirt("VirtualMachineInstance")
    })
});

/// VirtualMachines.
pub static VMS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vm", "vms"]),
        status: true,
        columns: vec![
            Column::age(),
            Column::text("Status", ".status.printableStatus").described("Human-readable status of the VM."),
            Column::text("Ready", READY).described("Status of the Ready condition."),
        ],
        admit: |new, old| causes(vm::admit(new, old)),
        ..kubevirt("VirtualMachine")
    })
});

/// VirtualMachineInstanceReplicaSets.
pub static REPLICA_SETS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmirs", "vmirss"]),
        admit: |new, old| causes(replicaset::admit(new, old)),
        ..set(kubevirt("VirtualMachineInstanceReplicaSet"), "VirtualMachineInstances")
    })
});

/// VirtualMachinePools.
pub static POOLS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmpool", "vmpools"]),
        admit: |new, old| causes(pool::admit(new, old)),
        ..set(
            among_all(Resource::new("pool.kubevirt.io", "v1beta1", "VirtualMachinePool", &DEFINITIONS)),
            "VirtualMachines",
        )
    })
});

/// VirtualMachineInstancetypes.
pub static INSTANCETYPES: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vminstancetype", "vminstancetypes", "vmf", "vmfs"]),
        admit: |new, _| causes(instancetype::instancetype(new)),
        ..among_all(chosen("VirtualMachineInstancetype"))
    })
});

/// VirtualMachineClusterInstancetypes.
pub static CLUSTER_INSTANCETYPES: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmclusterinstancetype", "vmclusterinstancetypes", "vmcf", "vmcfs"]),
        namespaced: false,
        admit: |new, _| causes(instancetype::cluster_instancetype(new)),
        ..chosen("VirtualMachineClusterInstancetype")
    })
});

/// VirtualMachinePreferences.
pub static PREFERENCES: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmpref", "vmprefs", "vmp", "vmps"]),
        admit: |new, _| causes(instancetype::preference(new)),
        ..among_all(chosen("VirtualMachinePreference"))
    })
});

/// VirtualMachineClusterPreferences.
pub static CLUSTER_PREFERENCES: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["vmcp", "vmcps"]),
        namespaced: false,
        admit: |new, _| causes(instancetype::cluster_preference(new)),
        ..chosen("VirtualMachineClusterPreference")
    })
});

/// KubeVirts, which only clusters have.
pub static KUBEVIRTS: Row = Row::new(|| {
    Arc::new(Resource {
        short_names: texts(&["kv", "kvs"]),
        status: true,
        columns: vec![
            Column::age(),
            Column::text("Phase", ".status.phase").described("Current phase of the installation."),
        ],
        ..among_all(Resource::new("kubevirt.io", "v1", KUBEVIRT_KIND, &INSTALLATION))
    })
});

/// All of them that are not about the installation.
pub fn rows() -> Vec<Arc<Resource>> {
    let rows = [
        &VMIS,
        &VMS,
        &REPLICA_SETS,
        &POOLS,
        &INSTANCETYPES,
        &CLUSTER_INSTANCETYPES,
        &PREFERENCES,
        &CLUSTER_PREFERENCES,
    ];
    rows.into_iter().map(|row| Arc::clone(row)).collect()
}
