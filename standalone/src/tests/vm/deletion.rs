//! However a VM goes, nothing of it stays for ever.

use super::*;

impl Controlled {
    async fn delete(&self, path: &str, policy: &str) {
        let options = json!({"kind": "DeleteOptions", "propagationPolicy": policy});
        let (code, answer) = self.world.ask("DELETE", path, options).await;
        assert_eq!(code, 200, "{answer}");
    }

    /// Deletes the VM with this finalizer and without the controller's, as a user can.
    fn delete_without_finalizer(&self, finalizer: Option<&str>) {
        let deleted = objects::change(&self.world.server.store, &self.stored_vm().unwrap(), |value| {
            meta::of(value).insert("finalizers".to_owned(), json!(Vec::from_iter(finalizer)));
            objects::mark_for_deletion(value, None, None) == objects::Deletion::Held
        });
        deleted.unwrap();
    }
}

#[tokio::test]
async fn nothing_of_a_vm_stays_however_it_is_deleted() {
    for (policy, finalizer) in
        [("Background", None), ("Foreground", Some(meta::FOREGROUND)), ("Orphan", Some(meta::ORPHAN))]
    {
        for by_hand in [false, true] {
            let mut vm = Controlled::new("Always").await;
            vm.end_deleted_vmis();
            vm.runs().await;
            match by_hand {
                true => vm.delete_without_finalizer(finalizer),
                false => vm.delete(VM, policy).await,
            }
            vm.until(&format!("{policy} {by_hand}: the VM is gone"), || vm.vm().is_null()).await;
            if policy == "Orphan" {
                let vmi = vm.vmi().unwrap();
                assert_eq!(vmi.value()["status"]["phase"], "Running");
                assert!(!meta::is_being_deleted(&vmi.value()));
                let vmi = vmi.value();
                let owners = vmi["metadata"]["ownerReferences"].as_array();
                assert!(owners.is_none_or(Vec::is_empty), "{owners:?}");
                vm.delete(VMI, "Background").await;
            }
            vm.until(&format!("{policy} {by_hand}: the VMI is gone"), || vm.vmi().is_none()).await;
        }
    }
}

#[tokio::test]
async fn an_orphan_is_adopted_by_the_next_vm_of_its_name() {
    let mut vm = Controlled::new("Always").await;
    vm.end_deleted_vmis();
    vm.runs().await;
    let first = vm.uid();
    vm.delete(VM, "Orphan").await;
    vm.until("the VM is gone", || vm.vm().is_null()).await;
    vm.create_vm("Always").await;
    vm.is_shown_as("Running").await;
    let vmi = vm.vmi().unwrap();
    assert_eq!(meta::text(&vmi.value(), "uid"), first, "the guest goes on");
    assert_eq!(vmi.value()["metadata"]["ownerReferences"][0]["uid"], vm.vm()["metadata"]["uid"]);
    assert!(!vm.reasons().contains("FailedCreate"));
    vm.delete(VM, "Background").await;
    vm.until("both are gone", || vm.vmi().is_none() && vm.vm().is_null()).await;
}

#[tokio::test]
async fn a_vmi_that_lost_its_vm_while_no_controller_ran_goes() {
    let mut vm = Controlled::new("Always").await;
    vm.runs().await;
    vm.tasks.shutdown().await;
    let removed = objects::change(&vm.world.server.store, &vm.stored_vm().unwrap(), |_| false);
    removed.unwrap();
    // A VM of the same name does not own what the first one did.
    vm.create_vm("Halted").await;
    vm.control();
    vm.end_deleted_vmis();
    vm.until("the VMI is gone", || vm.vmi().is_none()).await;
    vm.is_shown_as("Stopped").await;
}

#[tokio::test]
async fn a_vm_that_is_not_accepted_any_more_has_a_status_and_can_be_deleted() {
    let mut vm = Controlled::new("Always").await;
    vm.end_deleted_vmis();
    vm.runs().await;
    vm.change(&vm.stored_vm().unwrap(), |value| {
        value["spec"]["runStrategy"] = json!("Sometimes");
        value["spec"]["instancetype"] = json!({"name": "gone"});
    });
    let fails = || {
        let vm = vm.vm();
        let conditions = vm["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|one| one["type"] == "Failure")
    };
    vm.until("the failure is shown", fails).await;
    // Metadata can still be written, the spec only as it is accepted.
    vm.patch_vm(json!({"metadata": {"labels": {"a": "b"}}})).await;
    let (code, refused) = vm.world.patch(VM, "merge", json!({"spec": {"runStrategy": "Never"}})).await;
    assert_eq!(code, 422, "{refused}");
    // Nor does it keep its VMI.
    vm.delete(VMI, "Background").await;
    vm.until("the VMI is gone", || vm.vmi().is_none()).await;
    assert_eq!(meta::finalizers(&vm.vm()), [FINALIZER]);
    vm.delete(VM, "Background").await;
    vm.until("the VM is gone", || vm.vm().is_null()).await;
}
