//! Volumes in VMs and VMIs as JSON: the rest of an object stays as it was written.

use serde_json::{Value, json};
use vireo_api::v1::{VirtualMachineInstance, VirtualMachineInstanceSpec, VolumeRequest};

use super::volumes::apply;

/// The kind of object that has the spec of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecOwner {
    /// A VM, in its template.
    Vm,
    /// A VMI.
    Vmi,
}

impl SpecOwner {
    /// Where the spec is in the object, as a JSON pointer.
    pub(super) const fn pointer(self) -> &'static str {
        match self {
            Self::Vm => "/spec/template/spec",
            Self::Vmi => "/spec",
        }
    }
}

/// Applies a request to the spec in an object.
pub fn plug(object: &mut Value, owner: SpecOwner, request: &VolumeRequest) {
    set_volumes_and_nics(object, owner, |spec| apply(request, spec));
}

/// Changes volumes, disks, NICs and their states of the spec in an object. Other fields stay, whatever `change` makes of them.
pub fn set_volumes_and_nics(
    object: &mut Value,
    owner: SpecOwner,
    change: impl FnOnce(&mut VirtualMachineInstanceSpec),
) {
    let Some(spec) = object.pointer_mut(owner.pointer()) else { return };
    // Stored objects were decoded when they were admitted.
    let Ok(before) = serde_json::from_value::<VirtualMachineInstanceSpec>(spec.clone()) else { return };
    let mut after = before.clone();
    change(&mut after);
    if after == before {
        return;
    }
    set_nics(spec, &before, &after);
    let after = json!(after);
    let list = |pointer: &str| after.pointer(pointer).cloned().unwrap_or_else(|| json!([]));
    spec["volumes"] = list("/volumes");
    // Empty objects on the way may have been left out.
    spec["domain"]["devices"]["disks"] = list("/domain/devices/disks");
}

/// Changes which NICs a spec has, with their networks, and their states.
fn set_nics(spec: &mut Value, before: &VirtualMachineInstanceSpec, after: &VirtualMachineInstanceSpec) {
    let has = |spec: &VirtualMachineInstanceSpec, name: Option<&str>| {
        spec.domain.devices.interfaces.iter().any(|nic| Some(nic.name.as_str()) == name)
    };
    let name = |one: &Value| one.get("name").and_then(Value::as_str).map(str::to_owned);
    let is_removed = |one: &Value| has(before, name(one).as_deref()) && !has(after, name(one).as_deref());
    if let Some(networks) = spec.pointer_mut("/networks").and_then(Value::as_array_mut) {
        networks.retain(|network| !is_removed(network));
        let added = after.networks.iter().filter(|network| !has(before, Some(&network.name)));
        networks.extend(added.map(|network| json!(network)));
    }
    let interfaces = spec.pointer_mut("/domain/devices/interfaces").and_then(Value::as_array_mut);
    let Some(interfaces) = interfaces else { return };
    interfaces.retain(|nic| !is_removed(nic));
    for nic in &after.domain.devices.interfaces {
        match interfaces.iter_mut().find(|one| name(one).as_ref() == Some(&nic.name)) {
            Some(one) if !nic.state.is_empty() => one["state"] = json!(nic.state),
            Some(_) => {}
            None => interfaces.push(json!(nic)),
        }
    }
}

/// Reads a VMI for a cache, with of its spec only the names and claims of its volumes, by which it is known which of them
/// are plugged, the names of its CD-ROM drives, its NICs with their states, and the networks of Multus.
///
/// # Errors
/// When it is not a VMI.
pub fn with_volumes(mut object: Value) -> Result<VirtualMachineInstance, serde_json::Error> {
    let volumes = object.pointer("/spec/volumes").and_then(Value::as_array);
    let volumes: Vec<Value> = volumes.into_iter().flatten().filter_map(identity).collect();
    let disks = object.pointer("/spec/domain/devices/disks").and_then(Value::as_array);
    let drives: Vec<Value> = disks.into_iter().flatten().filter_map(drive).collect();
    let interfaces = object.pointer("/spec/domain/devices/interfaces").and_then(Value::as_array);
    let nics: Vec<Value> = interfaces.into_iter().flatten().filter_map(nic).collect();
    let devices = json!({"disks": drives, "interfaces": nics});
    let networks = object.pointer("/spec/networks").and_then(Value::as_array);
    let networks = networks.into_iter().flatten().filter(|network| network.get("multus").is_some());
    let networks: Vec<Value> = networks.cloned().collect();
    object["spec"] = json!({ "volumes": volumes, "networks": networks, "domain": { "devices": devices } });
    serde_json::from_value(object)
}

fn nic(interface: &Value) -> Option<Value> {
    let text = |field: &str| interface.get(field).and_then(Value::as_str);
    let mut kept = json!({"name": text("name")?, "state": text("state").unwrap_or_default()});
    // Multus is asked for it.
    let is_on_secondary = ["bridge", "sriov"].iter().any(|binding| interface.get(*binding).is_some());
    if let Some(mac) = text("macAddress").filter(|_| is_on_secondary) {
        kept["macAddress"] = json!(mac);
    }
    Some(kept)
}

fn drive(disk: &Value) -> Option<Value> {
    disk.get("cdrom")?.as_object()?;
    Some(json!({"name": disk.get("name")?.as_str()?, "cdrom": {}}))
}

fn identity(volume: &Value) -> Option<Value> {
    let mut kept = json!({"name": volume.get("name")?.as_str()?});
    let claims =
        [("persistentVolumeClaim", "claimName"), ("dataVolume", "name"), ("memoryDump", "claimName")];
    for (source, of) in claims {
        if let Some(claim) = volume.get(source) {
            let name = claim.get(of).and_then(Value::as_str).unwrap_or_default();
            let hotpluggable = claim.get("hotpluggable").and_then(Value::as_bool).unwrap_or_default();
            kept[source] = json!({of: name, "hotpluggable": hotpluggable});
        }
    }
    Some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_volumes_and_disks_change() {
        let add: VolumeRequest = serde_json::from_value(json!({"addVolumeOptions": {
            "name": "data", "disk": {"name": "data", "disk": {"bus": "scsi"}},
            "volumeSource": {"persistentVolumeClaim": {"claimName": "c", "hotpluggable": true}},
        }}))
        .unwrap();
        let remove: VolumeRequest =
            serde_json::from_value(json!({"removeVolumeOptions": {"name": "data"}})).unwrap();
        let before = json!({"spec": {
            "domain": {"devices": {"rng": {}}, "memory": {"guest": "064Mi"}}, "later": 1,
        }});
        let mut value = before.clone();
        plug(&mut value, SpecOwner::Vmi, &add);
        assert_eq!(value["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "c");
        assert_eq!(value["spec"]["domain"]["devices"]["disks"][0]["name"], "data");
        assert_eq!(
            (&value["spec"]["later"], &value["spec"]["domain"]["memory"]["guest"]),
            (&json!(1), &json!("064Mi"))
        );
        let once = value.clone();
        plug(&mut value, SpecOwner::Vmi, &add);
        assert_eq!(value, once, "again");
        plug(&mut value, SpecOwner::Vmi, &remove);
        assert_eq!(
            (&value["spec"]["volumes"], &value["spec"]["domain"]["devices"]["disks"]),
            (&json!([]), &json!([]))
        );
        let emptied = value.clone();
        plug(&mut value, SpecOwner::Vm, &add);
        assert_eq!(value, emptied, "it has no template");
    }

    #[test]
    fn links_change_where_they_have_a_state() {
        let interfaces = json!([{"name": "a", "masquerade": {}}, {"name": "b", "state": "up", "later": 1}]);
        let mut value =
            json!({"spec": {"template": {"spec": {"domain": {"devices": {"interfaces": interfaces}}}}}});
        let set = |value: &mut Value, state: &str| {
            set_volumes_and_nics(value, SpecOwner::Vm, |spec| {
                spec.domain.devices.interfaces[1].state = state.to_owned();
            });
            value.pointer("/spec/template/spec/domain/devices/interfaces").cloned()
        };
        let with = |state: &str| {
            Some(json!([{"name": "a", "masquerade": {}}, {"name": "b", "state": state, "later": 1}]))
        };
        assert_eq!(set(&mut value, "down"), with("down"));
        assert_eq!(set(&mut value, "up"), with("up"));
    }

    #[test]
    fn nics_come_and_go_with_their_networks() {
        let before = json!({"spec": {"domain": {"devices": {"interfaces": [
            {"name": "a", "masquerade": {}}, {"name": "b", "bridge": {}, "state": "absent", "later": 1}]}},
            "networks": [{"name": "a", "pod": {}, "later": 1}, {"name": "b", "multus": {"networkName": "lan"}}]}});
        let mut value = before.clone();
        set_volumes_and_nics(&mut value, SpecOwner::Vmi, |spec| {
            let (mut nic, mut network) = (spec.domain.devices.interfaces.remove(1), spec.networks.remove(1));
            nic.state.clear();
            (nic.name, network.name) = ("c".to_owned(), "c".to_owned());
            spec.domain.devices.interfaces.push(nic);
            spec.networks.push(network);
        });
        let spec = &value["spec"];
        assert_eq!(
            spec["domain"]["devices"]["interfaces"],
            json!([{"name": "a", "masquerade": {}}, {"name": "c", "bridge": {}, "later": 1}])
        );
        let networks =
            json!([{"name": "a", "pod": {}, "later": 1}, {"name": "c", "multus": {"networkName": "lan"}}]);
        assert_eq!(spec["networks"], networks);
    }

    #[test]
    fn what_is_empty_may_be_absent() {
        let add: VolumeRequest = serde_json::from_value(json!({"addVolumeOptions": {
            "name": "data", "disk": {"name": "data"},
            "volumeSource": {"persistentVolumeClaim": {"claimName": "c", "hotpluggable": true}},
        }}))
        .unwrap();
        let mut value = json!({"spec": {}});
        plug(&mut value, SpecOwner::Vmi, &add);
        assert_eq!(value["spec"]["domain"]["devices"]["disks"][0]["name"], "data");
    }

    #[test]
    fn a_cache_keeps_what_tells_volumes_apart() {
        let vmi = with_volumes(json!({"metadata": {"name": "web"}, "status": {"phase": "Running"}, "spec": {
            "domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": [
                {"name": "drive", "cdrom": {"bus": "sata"}}, {"name": "data", "disk": {}}, {"name": 7, "cdrom": {}},
            ], "interfaces": [
                {"name": "a", "masquerade": {}, "macAddress": "02:00:00:00:00:01", "state": "down"},
                {"name": "b", "bridge": {}, "macAddress": "02:00:00:00:00:02", "model": "virtio"}, {"name": 7, "state": "down"},
            ]}},
            "networks": [{"name": "a", "pod": {}}, {"name": "b", "multus": {"networkName": "lan"}}],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "c", "hotpluggable": true}},
                {"name": "init", "cloudInitNoCloud": {"userData": "#cloud-config"}},
                {"name": "filled", "dataVolume": {"name": "debian"}},
                {"name": 7},
            ],
        }}))
        .unwrap();
        assert_eq!((vmi.status.phase.as_str(), &vmi.spec.domain.memory), ("Running", &None));
        let names: Vec<&str> = vmi.spec.volumes.iter().map(|volume| volume.name.as_str()).collect();
        assert_eq!(names, ["data", "init", "filled"]);
        let claims: Vec<_> = vmi.spec.volumes.iter().filter_map(|volume| volume.claim()).collect();
        let claims: Vec<_> = claims.iter().map(|claim| (claim.name, claim.hotpluggable)).collect();
        assert_eq!(claims, [("c", true), ("debian", false)]);
        assert_eq!(json!(vmi.spec.volumes[1]), json!({"name": "init"}));
        assert_eq!(json!(vmi.spec.domain.devices.disks), json!([{"name": "drive", "cdrom": {}}]));
        assert_eq!(
            json!(vmi.spec.domain.devices.interfaces),
            json!([{"name": "a", "state": "down"}, {"name": "b", "macAddress": "02:00:00:00:00:02"}])
        );
        assert_eq!(json!(vmi.spec.networks), json!([{"name": "b", "multus": {"networkName": "lan"}}]));
    }
}
