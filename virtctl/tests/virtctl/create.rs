use serde_json::json;
use vireo_api::decode;
use vireo_api::v1::{Matcher, Shape as _, VirtualMachine, VirtualMachineInstance};

use crate::handler::{finish, virtctl};

/// What `virtctl create` prints, and its errors.
async fn create(words: &[&str]) -> (Option<i32>, String, String) {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let output = finish(virtctl(&scratch, &[&["create"], words].concat())).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The VM it prints, which has no field that the API does not know.
async fn vm(words: &[&str]) -> VirtualMachine {
    let (code, printed, stderr) = create(&[&["vm"], words].concat()).await;
    assert_eq!(code, Some(0), "{words:?}: {stderr}");
    let documents = decode::documents(&printed).expect("YAML");
    let [document] = documents.as_slice() else { panic!("{} documents in {printed}", documents.len()) };
    let decoded = decode::object::<VirtualMachine>(document.clone());
    assert_eq!(decoded.mistyped(), [], "{printed}");
    let mut unknown_fields = Vec::new();
    decoded.object.unknown_fields("", &mut unknown_fields);
    assert_eq!(unknown_fields, [], "{printed}");
    decoded.object
}

#[tokio::test]
async fn a_vm_has_the_settings_of_the_flags() {
    let password = tempfile::NamedTempFile::new().expect("a scratch file");
    std::fs::write(password.path(), "sec: ret\n").expect("a scratch file");
    let password = password.path().to_string_lossy().into_owned();
    let vm = vm(&[
        "--name=web",
        "-n=prod",
        "--run-strategy=Halted",
        "--memory=2Gi",
        "--termination-grace-period=7",
        "--volume-containerdisk=src:oci:/images/debian,bootorder:2",
        "--volume-containerdisk=src:oci:/images/a:b,name:tools,bootorder:1",
        "--cloud-init=configdrive",
        "--user=ada",
        "--ssh-key=ssh-ed25519 AAA ada",
        &format!("--password-file={password}"),
        "--cloud-init-network-data=dmVyc2lvbjogMg==",
    ])
    .await;
    assert_eq!((vm.metadata.name.as_str(), vm.metadata.namespace.as_str()), ("web", "prod"));
    assert_eq!(vm.spec.run_strategy.as_deref(), Some("Halted"));
    let template = vm.spec.template.unwrap_or_default();
    let mut vmi = VirtualMachineInstance {
        api_version: vireo_api::v1::API_VERSION.to_owned(),
        kind: vireo_api::v1::VMI_KIND.to_owned(),
        metadata: vm.metadata,
        ..VirtualMachineInstance::default()
    };
    vmi.metadata.uid = "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1".to_owned();
    vmi.spec = template.spec;
    let vm = vireo_api::spec::Vm::try_from(&vmi).expect("the API runs it");
    assert_eq!(vm.memory().guest(), vireo_api::spec::Bytes::mebibytes(2048));
    let mut order: Vec<_> = vm.disks().iter().map(|disk| (disk.config().boot_order, disk.name())).collect();
    order.sort_unstable();
    assert_eq!(order, [(None, "cloudinitdisk"), (Some(1), "tools"), (Some(2), "web-containerdisk-0")]);
    let source = vmi.spec.volumes[2].cloud_init_config_drive.clone().expect("a config drive");
    assert_eq!(source.network_data_base64, "dmVyc2lvbjogMg==");
    let config: serde_json::Value = serde_saphyr::from_str(&source.user_data).expect("YAML");
    assert!(source.user_data.starts_with("#cloud-config\n"));
    let expected = serde_json::json!({
        "user": "ada", "password": "sec: ret", "chpasswd": {"expire": false},
        "ssh_authorized_keys": ["ssh-ed25519 AAA ada"],
    });
    assert_eq!(config, expected);
}

#[tokio::test]
async fn defaults_are_those_of_upstream() {
    let (one, other) = (vm(&[]).await, vm(&[]).await);
    assert!(one.metadata.name.starts_with("vm-") && one.metadata.name.len() == 8, "{}", one.metadata.name);
    assert_ne!(one.metadata.name, other.metadata.name);
    assert_eq!(one.spec.run_strategy.as_deref(), Some("Always"));
    let spec = one.spec.template.unwrap_or_default().spec;
    assert_eq!(spec.termination_grace_period_seconds, Some(180));
    let guest = |memory: Option<Box<vireo_api::v1::Memory>>| {
        memory.and_then(|memory| memory.guest).map(|guest| guest.0)
    };
    assert_eq!(guest(spec.domain.memory).as_deref(), Some("512Mi"));
    // An instance type says how much memory there is.
    let sized = vm(&["--instancetype=virtualmachineinstancetype/small", "--preference=linux"]).await;
    let chosen = sized.spec.instancetype.unwrap_or_default();
    assert_eq!((chosen.kind.as_str(), chosen.name.as_str()), ("VirtualMachineInstancetype", "small"));
    let chosen = sized.spec.preference.unwrap_or_default();
    assert_eq!((chosen.kind.as_str(), chosen.name.as_str()), ("", "linux"));
    assert_eq!(guest(sized.spec.template.unwrap_or_default().spec.domain.memory), None);
}

#[tokio::test]
async fn a_claim_becomes_a_disk_of_its_name() {
    let vm = vm(&["--volume-pvc=src:data,bootorder:1", "--volume-pvc=src:more,name:other"]).await;
    let spec = vm.spec.template.unwrap_or_default().spec;
    let claims: Vec<_> = spec
        .volumes
        .iter()
        .map(|volume| {
            (volume.name.as_str(), volume.persistent_volume_claim.clone().unwrap_or_default().claim_name)
        })
        .collect();
    assert_eq!(claims, [("data", "data".to_owned()), ("other", "more".to_owned())]);
    let disks = &spec.domain.devices.disks;
    assert_eq!(
        disks.iter().map(|disk| (disk.name.as_str(), disk.boot_order)).collect::<Vec<_>>(),
        [("data", Some(1))]
    );
}

#[tokio::test]
async fn answer_files_are_of_a_config_map_or_a_secret() {
    for (words, map, secret) in [
        ("--volume-sysprep=src:answers", Some("answers"), None),
        ("--volume-sysprep=src:answers,type:configmap", Some("answers"), None),
        ("--volume-sysprep=src:answers,type:secret", None, Some("answers")),
    ] {
        let spec = vm(&[words]).await.spec.template.unwrap_or_default().spec;
        let volume = spec.volumes.iter().find(|volume| volume.name == "sysprepdisk").expect(words);
        let sysprep = volume.sysprep.clone().unwrap_or_default();
        let names = [sysprep.config_map, sysprep.secret].map(|reference| reference.map(|one| one.name));
        assert_eq!(names, [map, secret].map(|name| name.map(str::to_owned)), "{words}");
    }
}

#[tokio::test]
async fn instance_type_and_preference_are_inferred_from_a_claim() {
    let asked = async |words: &[&str]| {
        let spec = vm(&[&["--volume-pvc=src:data", "--volume-pvc=src:more"], words].concat()).await.spec;
        let reported = |matcher: Option<Matcher>| {
            let matcher = matcher?;
            assert_eq!((matcher.name.as_str(), matcher.kind.as_str()), ("", ""));
            Some((matcher.infer_from_volume, matcher.infer_from_volume_failure_policy))
        };
        let memory = spec.template.unwrap_or_default().spec.domain.memory.is_some();
        (reported(spec.instancetype), reported(spec.preference), memory)
    };
    let optional = |volume: &str| Some((volume.to_owned(), Some("Ignore".to_owned())));
    let required = |volume: &str| Some((volume.to_owned(), None));
    assert_eq!(asked(&[]).await, (optional("data"), optional("data"), true));
    assert_eq!(asked(&["--memory=1Gi"]).await, (None, optional("data"), true));
    assert_eq!(asked(&["--infer-instancetype"]).await, (required("data"), optional("data"), false));
    assert_eq!(asked(&["--infer-instancetype=false", "--infer-preference=false"]).await, (None, None, true));
    let from = ["--infer-instancetype-from=more", "--infer-preference-from=more"];
    assert_eq!(asked(&from).await, (required("more"), required("more"), false));
    let boots = ["--volume-pvc=src:boots,bootorder:1"];
    assert_eq!(asked(&boots).await, (optional("boots"), optional("boots"), true));
}

#[tokio::test]
async fn disks_are_filled_by_templates_of_data_volumes() {
    let vm = vm(&[
        "--name=web",
        "--volume-import=type:http,url:https://a:8080/b,extraheaders:X: 1;Y: 2,size:1Gi,name:root,bootorder:1",
        "--volume-import=type:ds,src:images/debian",
        "--volume-import=type:snapshot,src:backups/web,name:old",
        "--volume-datasource=src:debian,size:2Gi",
        "--volume-clone-pvc=src:images/data",
        "--volume-blank=size:3Gi",
    ])
    .await;
    let storage = |size: &str| json!({"resources": {"requests": {"storage": size}}});
    let mut templates = vm.spec.data_volume_templates.clone();
    let generated = std::mem::replace(&mut templates[1].metadata.name, "generated".to_owned());
    assert!(generated.starts_with("imported-volume-") && generated.len() == 21, "{generated}");
    let templates: Vec<_> =
        templates.iter().map(|template| (template.metadata.name.as_str(), template.spec.clone())).collect();
    let http = json!({"url": "https://a:8080/b", "extraHeaders": ["X: 1", "Y: 2"]});
    let reference = |namespace: Option<&str>| match namespace {
        Some(namespace) => json!({"kind": "DataSource", "name": "debian", "namespace": namespace}),
        None => json!({"kind": "DataSource", "name": "debian"}),
    };
    let of = |namespace: &str, name: &str| json!({"namespace": namespace, "name": name});
    assert_eq!(
        templates,
        [
            ("root", json!({"source": {"http": http}, "storage": storage("1Gi")})),
            ("generated", json!({"sourceRef": reference(Some("images")), "storage": {}})),
            ("old", json!({"source": {"snapshot": of("backups", "web")}, "storage": {}})),
            ("web-ds-debian", json!({"sourceRef": reference(None), "storage": storage("2Gi")})),
            ("web-pvc-data", json!({"source": {"pvc": of("images", "data")}, "storage": {}})),
            ("web-blank-0", json!({"source": {"blank": {}}, "storage": storage("3Gi")})),
        ]
    );
    let spec = vm.spec.template.expect("a template").spec;
    let volumes: Vec<_> =
        spec.volumes.iter().filter_map(|volume| Some((&*volume.name, volume.claim()?.name))).collect();
    let names = ["root", &*generated, "old", "web-ds-debian", "web-pvc-data", "web-blank-0"];
    assert_eq!(volumes, names.map(|name| (name, name)));
    let [disk] = spec.domain.devices.disks.as_slice() else { panic!("{:?}", spec.domain.devices.disks) };
    assert_eq!((disk.name.as_str(), disk.boot_order), ("root", Some(1)));
}

#[tokio::test]
async fn what_cannot_be_is_refused_by_its_flag() {
    for (words, said) in [
        (&["--memory=lots"][..], "--memory"),
        (&["--volume-containerdisk=name:x"], "--volume-containerdisk: src: required value"),
        (&["--volume-containerdisk=src:oci:/a,size:1Gi"], "\"size\""),
        (&["--volume-containerdisk=src:oci:/a,bootorder:0"], "bootorder"),
        (
            &["--volume-containerdisk=src:oci:/a,name:b", "--volume-containerdisk=src:oci:/a,name:b"],
            "already",
        ),
        (
            &[
                "--volume-containerdisk=src:oci:/a,bootorder:1",
                "--volume-containerdisk=src:oci:/b,bootorder:1",
            ],
            "already",
        ),
        (&["--cloud-init-user-data=%"], "base64"),
        (&["--cloud-init=none", "--user=ada"], "--cloud-init"),
        (&["--password-file=/absent/at/all"], "--password-file"),
        (&["--instancetype=pod/x"], "--instancetype"),
        (&["--volume-import=size:1Gi"], "--volume-import: type: required value: one of blank, ds, gcs"),
        (&["--volume-import=type:tape"], "\"tape\" is none of blank, ds"),
        (&["--volume-import=type:blank"], "size: required value"),
        (&["--volume-import=type:http,size:1Gi"], "url: required value"),
        (&["--volume-import=type:http,size:1Gi,url:http://a/b,src:a"], "unknown key \"src\""),
        (&["--volume-import=type:pvc,src:a"], "NAMESPACE/NAME"),
        (&["--volume-import=type:ds,src:a/b/c"], "neither NAME nor NAMESPACE/NAME"),
        (&["--volume-import=type:registry,size:1Gi"], "one of url and imagestream"),
        (&["--volume-blank=size:much"], "--volume-blank"),
        (&["--volume-clone-pvc=src:/b"], "--volume-clone-pvc: src"),
        (&["--infer-instancetype"], "--infer-instancetype: at least one volume"),
        (&["--infer-preference-from=disk"], "--infer-preference-from: volume \"disk\" not found"),
        (&["--infer-preference", "--volume-containerdisk=src:oci:/a"], "is not a claim"),
        (&["--access-cred=type:ssh,src:keys"], "--ssh-key"),
        (&["--name=Not_a_name"], "metadata.name"),
        (&["--volume-containerdisk=src:oci:a"], "spec.volumes[0].containerDisk.image"),
        (&["--volume-sysprep=src:No_name"], "spec.volumes[0].sysprep.configMap.name"),
    ] {
        let (code, printed, reported) = create(&[&["vm"], words].concat()).await;
        assert_eq!((code, printed.as_str()), (Some(1), ""), "{words:?}: {reported}");
        assert!(reported.contains(said), "{words:?}: {reported}");
    }
    for words in [
        &["vm", "--memory=1Gi", "--instancetype=small"][..],
        &["vm", "--memory=1Gi", "--infer-instancetype"],
        &["vm", "--infer-preference", "--infer-preference-from=data"],
        &["vm", "--run-strategy=Sometimes"],
        &["instancetype", "--cpu=0", "--memory=1Gi"],
        &["instancetype", "--cpu=1"],
        &["preference", "--cpu-topology=round"],
    ] {
        assert_eq!(create(words).await.0, Some(2), "{words:?}");
    }
    let (code, _, reported) = create(&["instancetype", "--cpu=1", "--memory=1Gi", "--gpu=name:a"]).await;
    assert!(code == Some(1) && reported.contains("--gpu: devicename: required value"), "{reported}");
}
