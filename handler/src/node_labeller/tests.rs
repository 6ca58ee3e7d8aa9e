use super::*;

/// What KVM reports on a node whose CPUs are those of this model, and more.
fn kvm_like(model: &str, more: &[&'static str]) -> KvmFacts {
    let catalog = Catalog::read();
    let model = catalog.models.iter().find(|known| known.name == model).unwrap();
    KvmFacts { features: model.features.iter().chain(more).copied().collect(), ..KvmFacts::default() }
}

fn of(vendor: &'static str, kvm: KvmFacts) -> Facts {
    Facts { vendor: Some(vendor), kvm: Some(kvm), is_realtime: false }
}

/// The names in the labels that begin so.
fn names<'a>(labels: &'a Labels, prefix: &str) -> Vec<&'a str> {
    labels.keys().filter_map(|label| label.strip_prefix(prefix)).collect()
}

fn default_labels(facts: &Facts) -> Labels {
    labels(facts, &ObsoleteModels::default())
}

#[test]
fn a_node_with_kvm_has_the_models_whose_features_kvm_reports() {
    let mut kvm = kvm_like("Haswell-noTSX", &["hypervisor", "vme", "vmx"]);
    kvm.hyperv = BTreeSet::from(["base", "synic"]);
    kvm.tsc = Some(Tsc { hertz: 2_500_000_000, is_scalable: true });
    let labels = default_labels(&of("Intel", kvm));
    let has = |label: &str| labels.get(label).map(String::as_str) == Some("true");
    for name in ["Haswell-noTSX", "Haswell-v2", "Nehalem", "Westmere", "IvyBridge"] {
        assert!(has(&format!("cpu-model.node.kubevirt.io/{name}")), "{name}");
        assert!(has(&format!("cpu-model-migration.node.kubevirt.io/{name}")), "{name}");
    }
    for name in ["Haswell", "Broadwell", "Haswell-noTSX-IBRS", "EPYC", "Conroe", "qemu64-v1"] {
        assert!(!has(&format!("cpu-model.node.kubevirt.io/{name}")), "{name}");
    }
    assert!(has("cpu-feature.node.kubevirt.io/avx2") && has("cpu-feature.node.kubevirt.io/vmx"));
    assert!(
        has("cpu-feature.node.kubevirt.io/lahf_lm") && has("cpu-feature.node.kubevirt.io/lahf-lm"),
        "by libvirt's name and by QEMU's"
    );
    assert!(!has("cpu-feature.node.kubevirt.io/rtm"));
    assert_eq!(names(&labels, HOST_MODEL_LABELS), ["Haswell-noTSX"], "not by the version");
    assert_eq!(names(&labels, HOST_MODEL_FEATURE_LABELS), ["hypervisor", "vmx"]);
    assert_eq!(names(&labels, HYPERV_LABELS), ["base", "synic"]);
    assert_eq!(names(&labels, CPU_VENDOR_LABELS), ["Intel"]);
    assert_eq!(labels["cpu-timer.node.kubevirt.io/tsc-frequency"], "2500000000");
    assert_eq!(labels["cpu-timer.node.kubevirt.io/tsc-scalable"], "true");
    assert!(has("scheduling.node.kubevirt.io/tsc-frequency-2500000000"));
    assert!(!has(REALTIME_LABEL) && !has(OBSOLETE_HOST_MODEL_LABEL));
}

#[test]
fn a_model_needs_no_feature_that_qemu_leaves_out_on_kvm() {
    let mut kvm = kvm_like("EPYC", &[]);
    for feature in ["monitor", "svm", "npt", "nrip-save"] {
        kvm.features.remove(feature);
    }
    let models = |kvm| {
        let labels = default_labels(&of("AMD", kvm));
        names(&labels, HOST_MODEL_LABELS).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(models(kvm.clone()), ["EPYC"]);
    kvm.features.remove("sha-ni");
    assert_eq!(models(kvm), ["Opteron_G3"], "it lacks what EPYC and Opteron_G4 have");
}

#[test]
fn a_node_without_kvm_has_what_qemu_emulates() {
    let labels = default_labels(&Facts { vendor: Some("AMD"), kvm: None, is_realtime: true });
    let models = names(&labels, CPU_MODEL_LABELS);
    assert!(models.contains(&"Nehalem") && models.contains(&"Westmere-v1"), "{models:?}");
    assert!(!models.contains(&"Haswell") && !models.contains(&"kvm64"), "{models:?}");
    assert!(names(&labels, CPU_FEATURE_LABELS).contains(&"avx2"));
    let of_kvm = [HOST_MODEL_LABELS, HYPERV_LABELS, CPU_TIMER_LABELS, TSC_FREQUENCY_LABELS];
    assert!(of_kvm.iter().all(|prefix| names(&labels, prefix).is_empty()));
    assert_eq!((labels[REALTIME_LABEL].as_str(), names(&labels, MACHINE_TYPE_LABELS)), ("true", vec!["q35"]));
}

#[test]
fn obsolete_models_have_no_label() {
    let facts = of("Intel", kvm_like("Haswell-noTSX", &[]));
    let setting = |name: &str, is_obsolete| BTreeMap::from([(name.to_owned(), is_obsolete)]);
    let labels = labels(&facts, &ObsoleteModels::configured(&setting("Haswell-noTSX", true)));
    assert!(!names(&labels, CPU_MODEL_LABELS).contains(&"Haswell-noTSX"));
    assert!(!names(&labels, CPU_MODEL_MIGRATION_LABELS).contains(&"Haswell-noTSX"));
    assert_eq!(names(&labels, HOST_MODEL_LABELS), ["Haswell-noTSX"]);
    assert_eq!(labels[OBSOLETE_HOST_MODEL_LABEL], "true");
    let labels = super::labels(&facts, &ObsoleteModels::configured(&setting("kvm64", false)));
    assert!(names(&labels, CPU_MODEL_LABELS).contains(&"kvm64"));
}

#[test]
fn models_that_are_older_than_the_minimum_have_no_label() {
    let facts = of("Intel", kvm_like("Skylake-Client", &[]));
    let at_least = |minimum: &str| labels(&facts, &ObsoleteModels::default().at_least(minimum));
    let all = names(&at_least(""), CPU_MODEL_LABELS).len();
    let with = at_least("Haswell");
    let models = names(&with, CPU_MODEL_LABELS);
    for name in ["Haswell", "Haswell-noTSX", "Broadwell", "Broadwell-noTSX", "Skylake-Client"] {
        assert!(models.contains(&name), "{name}: {models:?}");
    }
    for name in ["Nehalem", "Westmere", "SandyBridge", "IvyBridge", "Penryn"] {
        assert!(!models.contains(&name), "{name}: {models:?}");
        assert!(!names(&with, CPU_MODEL_MIGRATION_LABELS).contains(&name), "{name}");
    }
    let of_another_vendor = names(&at_least("EPYC"), CPU_MODEL_LABELS).len();
    assert_eq!((of_another_vendor, names(&at_least("Absent"), CPU_MODEL_LABELS).len()), (all, all));
    let old = of("Intel", kvm_like("IvyBridge", &[]));
    let labels = labels(&old, &ObsoleteModels::default().at_least("Haswell"));
    assert_eq!(labels[OBSOLETE_HOST_MODEL_LABEL], "true");
}

/// Kubernetes' syntax: a DNS subdomain, and a name of at most 63 characters.
#[test]
fn every_label_is_valid() {
    let catalog = Catalog::read();
    let features = catalog.features.iter().map(|feature| feature.name).collect();
    let hyperv = BTreeSet::from(["reenlightenment"]);
    let tsc = Some(Tsc { hertz: u64::MAX, is_scalable: false });
    let facts =
        Facts { vendor: Some("Hygon"), kvm: Some(KvmFacts { features, hyperv, tsc }), is_realtime: true };
    let labels = default_labels(&facts);
    assert!(names(&labels, CPU_MODEL_LABELS).len() > 100, "a CPU that can all");
    let is_word = |text: &str| {
        let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = text.as_bytes();
        let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
        text.len() <= 63 && is_end(bytes.first()) && is_end(bytes.last()) && bytes.iter().all(inner)
    };
    for (label, value) in &labels {
        let (domain, name) = label.split_once('/').unwrap();
        assert!(is_word(name) && is_word(value) && domain.ends_with("kubevirt.io"), "{label}: {value}");
    }
}

#[test]
fn labels_that_no_longer_apply_go_and_those_of_others_stay() {
    let labels = Labels::from([("cpu-model.node.kubevirt.io/Nehalem".to_owned(), "true".to_owned())]);
    let others = json!({"disk": "ssd", "kubevirt.io/schedulable": "true", "kubevirt.io/sev": "true",
        "kubevirt.io/realtime-tested": "yes"});
    let mut node = json!({"metadata": {"labels": others}});
    for label in
        ["cpu-feature.node.kubevirt.io/rtm", "kubevirt.io/realtime", "cpu-vendor.node.kubevirt.io/AMD"]
    {
        node["metadata"]["labels"][label] = json!("true");
    }
    let skipped = {
        let mut node = node.clone();
        node["metadata"]["annotations"] = json!({SKIP_LABELLER_ANNOTATION: ""});
        node
    };
    apply(&mut node, &labels);
    let mut expected = others;
    expected["cpu-model.node.kubevirt.io/Nehalem"] = json!("true");
    assert_eq!(node["metadata"]["labels"], expected);
    let applied = node.clone();
    apply(&mut node, &labels);
    assert_eq!(node, applied, "again");

    let mut node = skipped.clone();
    apply(&mut node, &labels);
    assert_eq!(node, skipped, "the administrator writes the labels");
    let mut node = json!({"metadata": {}});
    apply(&mut node, &labels);
    assert_eq!(node["metadata"]["labels"], json!(labels));
}
