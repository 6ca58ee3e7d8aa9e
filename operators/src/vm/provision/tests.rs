use super::*;
use crate::data_volume::tests::Cluster;

fn vm(templates: &[&str]) -> VirtualMachine {
    let template = |name: &&str| {
        json!({"apiVersion": "cdi.kubevirt.io/v1alpha1", "metadata": {"name": name, "labels": {"a": "b"},
            "annotations": {"c": "d"}, "finalizers": ["x"], "ownerReferences": [{"uid": "y"}]},
            "spec": {"source": {"blank": {}}, "later": 1}})
    };
    let templates: Vec<Value> = templates.iter().map(template).collect();
    let vm = json!({"metadata": {"name": "web", "namespace": "n", "uid": "u1"},
        "spec": {"dataVolumeTemplates": templates}});
    serde_json::from_value(vm).unwrap()
}

fn cluster() -> Cluster {
    Cluster { has_cdi: true, ..Cluster::default() }
}

#[test]
fn a_vm_is_started_when_its_data_volumes_are_filled() {
    let (empty, vm, mut cluster) = (vm(&[]), vm(&["a", "b"]), cluster());
    assert_eq!(Provision::of(&empty, &cluster), Provision::Ready);
    assert_eq!(Provision::of(&vm, &cluster), Provision::Missing(vec![0, 1]));
    // A claim of its name is taken over by the DataVolume.
    cluster.add_claim("a", "Bound", None);
    assert_eq!(Provision::of(&vm, &cluster), Provision::Missing(vec![0, 1]));
    cluster.add_data_volume("a", json!({"phase": "Succeeded"}));
    assert_eq!(Provision::of(&vm, &cluster), Provision::Missing(vec![1]));
    for (status, expected) in [
        (json!({}), Provision::Filling("DataVolume b is not ready yet: Pending".to_owned())),
        (
            json!({"phase": "ImportInProgress", "progress": "50.0%"}),
            Provision::Filling("DataVolume b is not ready yet: ImportInProgress, 50.0%".to_owned()),
        ),
        (json!({"phase": "Failed"}), Provision::Failed("DataVolume b has failed".to_owned())),
        (json!({"phase": "WaitForFirstConsumer"}), Provision::Ready),
        (json!({"phase": "PendingPopulation"}), Provision::Ready),
        (json!({"phase": "Succeeded"}), Provision::Ready),
    ] {
        cluster.add_data_volume("b", status.clone());
        assert_eq!(Provision::of(&vm, &cluster), expected, "{status}");
    }
    cluster.add_data_volume("a", json!({"phase": "Pending"}));
    cluster.add_data_volume("b", json!({"phase": "Failed"}));
    assert!(matches!(Provision::of(&vm, &cluster), Provision::Failed(_)), "it does not pass");
}

#[test]
fn the_data_volume_of_an_earlier_vm_is_not_used() {
    let (vm, mut cluster) = (vm(&["a"]), cluster());
    cluster.add_data_volume("a", json!({"phase": "Succeeded"}));
    let being_deleted = Provision::Filling("DataVolume a is being deleted".to_owned());
    let metadata = |cluster: &mut Cluster, change: Value| {
        let found = cluster.data_volumes.get_mut("a").unwrap();
        let mut object = json!(found.metadata);
        json_patch::merge(&mut object, &change);
        found.metadata = serde_json::from_value(object).unwrap();
    };
    let owner =
        |uid: &str| json!({"ownerReferences": [{"kind": "VirtualMachine", "name": "web", "uid": uid}]});
    metadata(&mut cluster, owner("u0"));
    assert_eq!(Provision::of(&vm, &cluster), being_deleted);
    metadata(&mut cluster, owner("u1"));
    assert_eq!(Provision::of(&vm, &cluster), Provision::Ready);
    metadata(&mut cluster, json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
    assert_eq!(Provision::of(&vm, &cluster), being_deleted);
}

#[test]
fn without_cdi_claims_are_enough() {
    let (vm, mut cluster) = (vm(&["a"]), Cluster::default());
    let Provision::Unserved(why) = Provision::of(&vm, &cluster) else { panic!("there is no claim") };
    assert!(why.contains("does not serve cdi.kubevirt.io/v1beta1: install CDI"), "{why}");
    cluster.add_claim("a", "Bound", None);
    assert_eq!(Provision::of(&vm, &cluster), Provision::Ready);
}

#[test]
fn data_volumes_are_due_with_the_vm_unless_it_says_otherwise() {
    let mut vm = vm(&["a"]);
    let (missing, unserved) = (Provision::Missing(vec![0]), Provision::Unserved("no CDI".to_owned()));
    let no_cdi = (None, Some("no CDI".to_owned()));
    assert_eq!(missing.due(&vm, false, None), (Some(&[0][..]), None));
    assert_eq!(missing.due(&vm, false, Some("why")), (Some(&[0][..]), Some("why".to_owned())));
    assert_eq!(unserved.due(&vm, false, None), no_cdi);
    vm.metadata.annotations.insert(IMMEDIATE_ANNOTATION.to_owned(), "false".to_owned());
    assert_eq!(missing.due(&vm, false, Some("why")), (None, None));
    assert_eq!(unserved.due(&vm, false, None), (None, None));
    assert_eq!(missing.due(&vm, true, None), (Some(&[0][..]), None));
    assert_eq!(unserved.due(&vm, true, None), no_cdi);
}

#[test]
fn a_data_volume_is_its_template_with_its_vm() {
    let mut vm = vm(&["a"]);
    let template = vm.spec.data_volume_templates[0].clone();
    let made = data_volume(&vm, &template, spec(&vm, &template));
    let metadata = &made["metadata"];
    assert_eq!(
        (&made["apiVersion"], &made["kind"]),
        (&json!("cdi.kubevirt.io/v1beta1"), &json!("DataVolume"))
    );
    assert_eq!((&metadata["name"], &metadata["namespace"]), (&json!("a"), &json!("n")));
    assert_eq!(metadata["labels"], json!({"a": "b", "kubevirt.io/created-by": "u1"}));
    assert_eq!(metadata["annotations"], json!({"c": "d", "cdi.kubevirt.io/allowClaimAdoption": "true"}));
    assert_eq!(metadata["ownerReferences"].as_array().unwrap().len(), 1);
    assert_eq!(metadata["ownerReferences"][0]["uid"], "u1");
    assert_eq!(metadata["ownerReferences"][0]["controller"], true);
    assert!(metadata.get("finalizers").is_none());
    assert_eq!(made["spec"], template.spec);

    vm.spec.template.get_or_insert_default().spec.priority_class_name = "high".to_owned();
    assert_eq!(spec(&vm, &template)["priorityClassName"], "high");
    let own = DataVolumeTemplateSpec { spec: json!({"priorityClassName": "low"}), ..template };
    assert_eq!(spec(&vm, &own)["priorityClassName"], "low");
}

#[test]
fn a_volume_names_the_service_account() {
    let mut vm = vm(&[]);
    assert_eq!(account(&vm), "default");
    let volumes = json!([{"name": "x", "serviceAccount": {"serviceAccountName": "robot"}}, {"name": "y"}]);
    vm.spec.template.get_or_insert_default().spec.volumes = serde_json::from_value(volumes).unwrap();
    assert_eq!(account(&vm), "robot");
}
