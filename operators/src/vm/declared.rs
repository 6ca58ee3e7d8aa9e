//! What an instance follows of its VM's template while it runs: hotpluggable volumes, media of CD-ROM drives among them, NICs, and
//! their links.

use serde_json::{Value, json};
use vireo_api::v1::{Disk, VirtualMachineInstance, VirtualMachineInstanceSpec, Volume, VolumeRequest};

use super::EPHEMERAL_ANNOTATION;
use super::life::Life;
use super::nics::NicChange;
use super::volumes::{has_drive, is_hotpluggable, name, remove_volume};

/// How the volumes and NICs of an instance change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveChange {
    removed: Vec<String>,
    added: Vec<(Volume, Option<Disk>)>,
    nics: NicChange,
    /// Volumes that are no longer those of the instance alone.
    shared: Vec<String>,
}

impl LiveChange {
    /// Makes the change. Making it again changes nothing.
    pub fn apply(&self, spec: &mut VirtualMachineInstanceSpec) {
        for name in &self.removed {
            let is_wanted = |volume: &&Volume| self.added.iter().any(|(added, _)| is_same(added, volume));
            if spec.volumes.iter().find(|volume| volume.name == *name).is_some_and(|one| !is_wanted(&one)) {
                remove_volume(spec, name);
            }
        }
        self.nics.apply(spec);
        for (volume, disk) in &self.added {
            if spec.volumes.iter().any(|has| has.name == volume.name) {
                continue;
            }
            spec.volumes.push(volume.clone());
            let disks = &mut spec.domain.devices.disks;
            if disks.iter().all(|has| has.name != volume.name) {
                disks.extend(disk.clone());
            }
        }
    }

    /// Makes the change of a template: NICs that are unplugged leave it. Making it again changes nothing.
    pub fn apply_to_template(&self, template: &mut VirtualMachineInstanceSpec) {
        self.nics.remove(template);
    }

    /// Whether the template changes, too.
    pub fn changes_template(&self) -> bool {
        self.nics.removes_any()
    }

    /// Takes the marks of volumes from an instance that are no longer its alone.
    pub fn unmark(&self, instance: &mut Value) {
        set_marks(instance, |name| !self.shared.iter().any(|shared| shared == name), None);
    }
}

/// Whether both have the same name and claim.
fn is_same(one: &Volume, other: &Volume) -> bool {
    let claim = |volume: &Volume| volume.claim().map(|claim| claim.name.to_owned());
    one.name == other.name && claim(one) == claim(other)
}

/// The names of volumes that were plugged into an instance alone, not into its VM.
fn ephemeral(instance: &VirtualMachineInstance) -> impl Iterator<Item = &str> {
    let names = instance.metadata.annotations.get(EPHEMERAL_ANNOTATION).map(String::as_str);
    names.unwrap_or_default().split(',').filter(|name| !name.is_empty())
}

/// Records in the annotations of an instance that a volume is plugged into it alone, or no longer is.
pub fn mark_ephemeral(instance: &mut Value, request: &VolumeRequest) {
    let name = name(request);
    set_marks(instance, |one| one != name, request.add_volume_options.is_some().then_some(name));
}

/// Keeps some of the names in the annotation, and adds one. Without names there is no annotation: alerts of KubeVirt look for it.
fn set_marks(instance: &mut Value, keep: impl Fn(&str) -> bool, added: Option<&str>) {
    let annotations = instance.pointer("/metadata/annotations");
    let before = annotations.and_then(|all| all.get(EPHEMERAL_ANNOTATION)).and_then(Value::as_str);
    let kept = before.unwrap_or_default().split(',').filter(|one| !one.is_empty() && keep(one));
    let names = kept.chain(added).collect::<Vec<_>>().join(",");
    if !names.is_empty() {
        instance["metadata"]["annotations"][EPHEMERAL_ANNOTATION] = json!(names);
    } else if let Some(annotations) =
        instance.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
    {
        annotations.remove(EPHEMERAL_ANNOTATION);
    }
}

/// Whether something of the template gets into a running instance with its restart alone: the medium of a CD-ROM drive that the
/// instance lacks, or that a NIC is another one or gone.
pub(super) fn needs_restart(
    template: &VirtualMachineInstanceSpec,
    instance: Option<&VirtualMachineInstance>,
) -> bool {
    alive(instance).is_some_and(|instance| {
        missing(template, instance).any(|volume| lacks_drive(volume, template, instance))
            || super::nics::needs_restart(template, instance)
    })
}

/// How the volumes and NICs of a running instance have to change, if they do. `started_with` is the spec of the template at its
/// start, if that is known.
pub(super) fn change(
    template: &VirtualMachineInstanceSpec,
    instance: Option<&VirtualMachineInstance>,
    started_with: Option<&VirtualMachineInstanceSpec>,
) -> Option<LiveChange> {
    let instance = alive(instance)?;
    let (has, wanted) = (&instance.spec.volumes, &template.volumes);
    let removed = has.iter().filter(|volume| is_removed(volume, template, instance));
    let added = missing(template, instance).filter(|volume| !lacks_drive(volume, template, instance));
    // A volume that the template has got, too, follows it from then on.
    let is_shared = |name: &&str| {
        let of_instance = has.iter().find(|volume| volume.name == *name);
        of_instance.is_none_or(|volume| wanted.iter().any(|other| is_same(volume, other)))
    };
    let change = LiveChange {
        removed: removed.map(|volume| volume.name.clone()).collect(),
        added: added.map(|volume| (volume.clone(), disk(volume, template).cloned())).collect(),
        nics: NicChange::of(template, instance, started_with),
        shared: ephemeral(instance).filter(is_shared).map(str::to_owned).collect(),
    };
    (change != LiveChange::default()).then_some(change)
}

fn alive(instance: Option<&VirtualMachineInstance>) -> Option<&VirtualMachineInstance> {
    instance.filter(|one| Life::of(Some(one)) == Life::Alive)
}

/// Whether a volume of an instance has to be unplugged.
fn is_removed(
    volume: &Volume,
    template: &VirtualMachineInstanceSpec,
    instance: &VirtualMachineInstance,
) -> bool {
    is_hotpluggable(volume)
        && ephemeral(instance).all(|name| name != volume.name)
        && !template.volumes.iter().any(|other| is_same(volume, other))
}

/// The hotpluggable volumes of a template that an instance does not have, or has with another claim.
fn missing<'t>(
    template: &'t VirtualMachineInstanceSpec,
    instance: &VirtualMachineInstance,
) -> impl Iterator<Item = &'t Volume> {
    let stays = |volume: &Volume| {
        let same_name = instance.spec.volumes.iter().find(|other| other.name == volume.name);
        same_name.is_some_and(|other| !is_removed(other, template, instance))
    };
    template.volumes.iter().filter(move |volume| is_hotpluggable(volume) && !stays(volume))
}

/// The disk of a volume in a template.
fn disk<'t>(volume: &Volume, template: &'t VirtualMachineInstanceSpec) -> Option<&'t Disk> {
    template.domain.devices.disks.iter().find(|disk| disk.name == volume.name)
}

/// Whether a volume of a template is the medium of a CD-ROM drive that an instance does not have.
fn lacks_drive(
    volume: &Volume,
    template: &VirtualMachineInstanceSpec,
    instance: &VirtualMachineInstance,
) -> bool {
    let is_medium = disk(volume, template).is_some_and(|disk| disk.cdrom.is_some());
    is_medium && !has_drive(&instance.spec, &volume.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_leave_no_empty_annotations() {
        let change = LiveChange { shared: vec!["data".to_owned()], ..LiveChange::default() };
        for instance in [json!({}), json!({"metadata": {"name": "a"}})] {
            let mut unmarked = instance.clone();
            change.unmark(&mut unmarked);
            assert_eq!(unmarked, instance);
        }
        let add: VolumeRequest =
            serde_json::from_value(json!({"addVolumeOptions": {"name": "data"}})).unwrap();
        let mut marked = json!({"metadata": {"name": "a"}});
        mark_ephemeral(&mut marked, &add);
        assert_eq!(marked, json!({"metadata": {"name": "a", "annotations": {EPHEMERAL_ANNOTATION: "data"}}}));
        change.unmark(&mut marked);
        assert_eq!(marked, json!({"metadata": {"name": "a", "annotations": {}}}));
    }
}
