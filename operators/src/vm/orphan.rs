//! VMIs whose VM is gone: it was deleted with `--cascade=orphan`, or its finalizer was removed.

use vireo_api::v1::{ObjectMeta, OwnerReference};

use super::FINALIZER;
use crate::revision::owner_reference;

/// Whether a VM owns the VMI of its name.
pub fn owns(vm: &ObjectMeta, vmi: &ObjectMeta) -> bool {
    vmi.owner_references.iter().any(|owner| owner.uid == vm.uid)
}

/// Whether [`FINALIZER`] keeps a VMI that is being deleted although it has no VM any more. `vm` is the VM of its name.
pub fn is_abandoned(vmi: &ObjectMeta, vm: Option<&ObjectMeta>) -> bool {
    has_finalizer(vmi) && vmi.deletion_timestamp.is_some() && !vm.is_some_and(|vm| owns(vm, vmi))
}

/// The reference by which a VM takes over a VMI that an earlier VM of its name left behind. A VMI that no VM ever owned
/// stays its creator's: it lacks [`FINALIZER`].
pub fn adopt(vm: &ObjectMeta, vmi: &ObjectMeta) -> Option<OwnerReference> {
    let stays = |metadata: &ObjectMeta| metadata.deletion_timestamp.is_none();
    let is_controlled = vmi.owner_references.iter().any(|owner| owner.controller == Some(true));
    let adopts = vm.name == vmi.name && stays(vm) && stays(vmi) && has_finalizer(vmi) && !is_controlled;
    adopts.then(|| owner_reference(vm))
}

fn has_finalizer(vmi: &ObjectMeta) -> bool {
    vmi.finalizers.iter().any(|one| one == FINALIZER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(uid: &str) -> ObjectMeta {
        ObjectMeta { name: "web".to_owned(), uid: uid.to_owned(), ..ObjectMeta::default() }
    }

    fn deleted(metadata: &ObjectMeta) -> ObjectMeta {
        ObjectMeta { deletion_timestamp: Some("2026-01-01T00:00:00Z".to_owned()), ..metadata.clone() }
    }

    fn owned(vm: &ObjectMeta) -> ObjectMeta {
        ObjectMeta {
            finalizers: vec![FINALIZER.to_owned()],
            owner_references: vec![owner_reference(vm)],
            ..named("instance")
        }
    }

    #[test]
    fn a_vmi_is_abandoned_without_the_vm_that_owns_it() {
        let (vm, other) = (named("vm"), named("another"));
        let vmi = owned(&vm);
        assert!(!is_abandoned(&vmi, None), "it is not being deleted");
        assert!(!is_abandoned(&deleted(&vmi), Some(&deleted(&vm))), "the VM counts its end");
        assert!(is_abandoned(&deleted(&vmi), None));
        assert!(is_abandoned(&deleted(&vmi), Some(&other)), "a name alone does not own");
        let orphan = ObjectMeta { owner_references: Vec::new(), ..vmi };
        assert!(is_abandoned(&deleted(&orphan), Some(&vm)));
        assert!(!is_abandoned(&deleted(&named("free")), None), "nothing keeps it");
    }

    #[test]
    fn a_vm_adopts_only_what_a_vm_left_behind() {
        let (vm, other) = (named("vm"), named("another"));
        let orphan = ObjectMeta { owner_references: Vec::new(), ..owned(&other) };
        assert_eq!(adopt(&vm, &orphan).map(|owner| owner.uid), Some("vm".to_owned()));
        assert_eq!(adopt(&vm, &owned(&other)), None, "another owns it");
        assert_eq!(adopt(&vm, &named("instance")), None, "no VM made it");
        assert_eq!(adopt(&deleted(&vm), &orphan), None);
        assert_eq!(adopt(&vm, &deleted(&orphan)), None);
        assert_eq!(adopt(&ObjectMeta { name: "db".to_owned(), ..vm }, &orphan), None);
    }
}
