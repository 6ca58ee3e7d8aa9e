//! The rules for volumes.

use serde_json::{Value, json};
use vireo_api::spec::Cause::{Duplicate, Invalid, NotSupported, Required, TooMany};
use vireo_vmconfig::{BlockSize, DiskBus};

use super::manifest::with_spec;
use super::rules::each_is_refused;

#[test]
fn volumes() {
    let source = |source: Value| {
        let mut volume = json!({"name": "more"});
        super::manifest::merge(&mut volume, source);
        json!({"volumes": ["+", volume]})
    };
    let cloud = |data: Value| source(json!({"cloudInitNoCloud": data}));
    let drive = |data: Value| source(json!({"cloudInitConfigDrive": data}));
    let claim = |claim: Value| source(json!({"persistentVolumeClaim": claim}));
    let host = |disk: Value| source(json!({"hostDisk": disk}));
    let layer = |claim: Value| source(json!({"ephemeral": {"persistentVolumeClaim": claim}}));
    let mut rows = vec![
        (
            json!({"volumes": ["+", {"name": "root", "emptyDisk": {"capacity": "1Gi"}}]}),
            "[2].name",
            Duplicate,
        ),
        (json!({"volumes": ["+", {"name": "A", "emptyDisk": {"capacity": "1Gi"}}]}), "[2].name", Invalid),
        (source(json!({})), "[2]", Required),
        (
            source(json!({"emptyDisk": {"capacity": "1Gi"}, "hostDisk": {"path": "/x", "type": "Disk"}})),
            "[2]",
            Invalid,
        ),
        (source(json!({"containerDisk": {}})), "[2].containerDisk.image", Required),
        (
            source(json!({"containerDisk": {"image": "docker-archive:/x"}})),
            "[2].containerDisk.image",
            NotSupported,
        ),
        (source(json!({"containerDisk": {"image": "oci:x"}})), "[2].containerDisk.image", Invalid),
        (
            source(json!({"containerDisk": {"image": "oci:/x", "path": "disk.img"}})),
            "[2].containerDisk.path",
            Invalid,
        ),
        (
            source(json!({"containerDisk": {"image": "oci:/x", "imagePullSecret": "S"}})),
            "[2].containerDisk.imagePullSecret",
            Invalid,
        ),
        (
            source(json!({"containerDisk": {"image": "oci:/x", "imagePullPolicy": "never"}})),
            "[2].containerDisk.imagePullPolicy",
            NotSupported,
        ),
        (source(json!({"emptyDisk": {}})), "[2].emptyDisk.capacity", Required),
        (source(json!({"emptyDisk": {"capacity": "0"}})), "[2].emptyDisk.capacity", Invalid),
        (source(json!({"emptyDisk": {"capacity": "1Ei"}})), "[2].emptyDisk.capacity", Invalid),
        (cloud(json!({})), "[2].cloudInitNoCloud", Required),
        (cloud(json!({"userData": "x".repeat(2049)})), "[2].cloudInitNoCloud.userData", Invalid),
        (cloud(json!({"userDataBase64": "%"})), "[2].cloudInitNoCloud.userDataBase64", Invalid),
        (
            cloud(json!({"userData": "x", "userDataBase64": "eA=="})),
            "[2].cloudInitNoCloud.userDataBase64",
            Invalid,
        ),
        (
            cloud(json!({"userData": "x", "networkDataBase64": "%"})),
            "[2].cloudInitNoCloud.networkDataBase64",
            Invalid,
        ),
        (cloud(json!({"secretRef": {}})), "[2].cloudInitNoCloud.secretRef.name", Required),
        (cloud(json!({"secretRef": {"name": "a/b"}})), "[2].cloudInitNoCloud.secretRef.name", Invalid),
        (
            cloud(json!({"secretRef": {"name": "s"}, "userData": "x"})),
            "[2].cloudInitNoCloud.secretRef",
            Invalid,
        ),
        (drive(json!({})), "[2].cloudInitConfigDrive", Required),
        (drive(json!({"networkData": "x".repeat(2049)})), "[2].cloudInitConfigDrive.networkData", Invalid),
        (drive(json!({"userDataBase64": "%"})), "[2].cloudInitConfigDrive.userDataBase64", Invalid),
        (
            drive(json!({"networkData": "x", "networkDataSecretRef": {"name": "s"}})),
            "[2].cloudInitConfigDrive.networkDataSecretRef",
            Invalid,
        ),
        (
            source(json!({"cloudInitNoCloud": {"userData": "x"}, "cloudInitConfigDrive": {"userData": "x"}})),
            "[2]",
            Invalid,
        ),
        (host(json!({"type": "Disk"})), "[2].hostDisk.path", Required),
        (host(json!({"path": "/a/../b", "type": "Disk"})), "[2].hostDisk.path", Invalid),
        (host(json!({"path": "/a"})), "[2].hostDisk.type", Invalid),
        (host(json!({"path": "/a", "type": "Disk", "capacity": "1Gi"})), "[2].hostDisk.capacity", Invalid),
        (host(json!({"path": "/a", "type": "DiskOrCreate"})), "[2].hostDisk.capacity", Required),
        (claim(json!({})), "[2].persistentVolumeClaim.claimName", Required),
        (claim(json!({"claimName": "../x"})), "[2].persistentVolumeClaim.claimName", Invalid),
        (source(json!({"ephemeral": {}})), "[2].ephemeral.persistentVolumeClaim", Required),
        (layer(json!({})), "[2].ephemeral.persistentVolumeClaim.claimName", Required),
        (layer(json!({"claimName": "A"})), "[2].ephemeral.persistentVolumeClaim.claimName", Invalid),
        (
            layer(json!({"claimName": "a", "hotpluggable": true})),
            "[2].ephemeral.persistentVolumeClaim.hotpluggable",
            NotSupported,
        ),
        (source(json!({"dataVolume": {}})), "[2].dataVolume.name", Required),
        (source(json!({"dataVolume": {"name": "A"}})), "[2].dataVolume.name", Invalid),
        (
            source(json!({"dataVolume": {"name": "a"}, "persistentVolumeClaim": {"claimName": "a"}})),
            "[2]",
            Invalid,
        ),
    ];
    for (directory, field) in [
        (json!({"path": "/etc/app"}), ""),
        (json!({"path": "etc"}), ".path"),
        (json!({"path": "/var/run/kubevirt-private/x"}), ".path"),
        (json!({"path": "/var/run"}), ".path"),
        (json!({"path": "/dev"}), ".path"),
        (json!({"path": "/sys/fs"}), ".path"),
        (json!({"path": "/etc/../proc"}), ".path"),
        (json!({"path": "/etc/app", "readOnly": false}), ".readOnly"),
    ] {
        let mut change = source(json!({"containerPath": directory}));
        if !field.is_empty() {
            let name = change["volumes"][1]["name"].clone();
            change["domain"] = json!({"devices": {"filesystems": [{"name": name, "virtiofs": {}}]}});
        }
        rows.push((change, format!("[2].containerPath{field}").leak(), Invalid));
    }
    rows.push((
        json!({"volumes": ["+", {"name": "one", "downwardMetrics": {}}, {"name": "two", "downwardMetrics": {}}],
            "domain": {"devices": {"disks": ["+", {"name": "one", "disk": {"bus": "virtio"}}, {"name": "two", "disk": {"bus": "virtio"}}]}}}),
        "[3].downwardMetrics",
        Invalid,
    ));
    let dump = |of: Value| source(json!({ "memoryDump": of }));
    rows.extend([
        (dump(json!({})), "[2].memoryDump.claimName", Required),
        (dump(json!({"claimName": "A"})), "[2].memoryDump.claimName", Invalid),
        (dump(json!({"claimName": "a", "readOnly": true})), "[2].memoryDump.readOnly", Invalid),
        (
            json!({"volumes": ["+", {"name": "one", "memoryDump": {"claimName": "a"}},
                {"name": "two", "memoryDump": {"claimName": "b"}}]}),
            "[3].memoryDump",
            Invalid,
        ),
        (
            json!({"domain": {"devices": {"disks": ["+", {"name": "one"}]}},
                "volumes": ["+", {"name": "one", "memoryDump": {"claimName": "a"}}]}),
            "[2].memoryDump",
            Invalid,
        ),
    ]);
    each_is_refused(with_spec, "spec.volumes", rows);
}

#[test]
fn volumes_that_are_shared_as_file_systems() {
    let shared = |filesystems: Value, volume: Value| {
        let mut more = json!({"name": "more"});
        super::manifest::merge(&mut more, volume);
        json!({"domain": {"devices": {"filesystems": filesystems}}, "volumes": ["+", more]})
    };
    let one = || json!([{"name": "more", "virtiofs": {}}]);
    for (volume, read_only) in [
        (json!({"configMap": {"name": "c"}}), true),
        (json!({"persistentVolumeClaim": {"claimName": "c"}}), false),
        (json!({"dataVolume": {"name": "c"}}), false),
        (json!({"persistentVolumeClaim": {"claimName": "c", "readOnly": true}}), true),
        (json!({"containerPath": {"path": "/etc/app/"}}), true),
        (json!({"containerPath": {"path": "/devices"}}), true),
        (json!({"containerPath": {"path": "/var/run/secrets/cloud"}}), true),
    ] {
        let vm =
            with_spec(shared(one(), volume.clone())).unwrap_or_else(|report| panic!("{volume}: {report}"));
        let [filesystem] = vm.filesystems() else { panic!("{volume}: {:?}", vm.filesystems()) };
        assert_eq!((filesystem.name(), filesystem.is_read_only()), ("more", read_only), "{volume}");
        assert!(vm.disks().iter().all(|disk| disk.name() != "more"), "{volume}");
    }
    let map = || json!({"configMap": {"name": "c"}});
    let twice = json!([{"name": "more", "virtiofs": {}}, {"name": "more", "virtiofs": {}}]);
    let mut of_a_disk = shared(one(), map());
    of_a_disk["domain"]["devices"]["disks"] = json!(["+", {"name": "more"}]);
    let many: Vec<Value> =
        (0..17).map(|number| json!({"name": format!("f{number}"), "virtiofs": {}})).collect();
    let maps: Vec<Value> =
        (0..17).map(|number| json!({"name": format!("f{number}"), "configMap": {"name": "c"}})).collect();
    let mut too_many = json!({"domain": {"devices": {"filesystems": many}}, "volumes": ["+"]});
    too_many["volumes"].as_array_mut().unwrap().extend(maps);
    each_is_refused(
        with_spec,
        "spec.domain.devices.filesystems",
        vec![
            (shared(one(), json!({"emptyDisk": {"capacity": "1Gi"}})), "[0].name", Invalid),
            (
                shared(one(), json!({"persistentVolumeClaim": {"claimName": "c", "hotpluggable": true}})),
                "[0].name",
                Invalid,
            ),
            (shared(json!([{"name": "more"}]), map()), "[0].virtiofs", Required),
            (shared(twice, map()), "[1].name", Duplicate),
            (of_a_disk, "[0].name", Invalid),
            (too_many, "", TooMany),
        ],
    );
}

#[test]
fn volumes_with_projected_files() {
    let source = |source: Value| {
        let mut volume = source;
        volume["name"] = json!("files");
        json!({"volumes": ["+", volume]})
    };
    let map = |map: Value| source(json!({"configMap": map}));
    let downward = |file: Value| source(json!({"downwardAPI": {"fields": [file]}}));
    let field = |path: &str| downward(json!({"path": "a", "fieldRef": {"fieldPath": path}}));
    let path = |path: &str| downward(json!({"path": path, "fieldRef": {"fieldPath": "metadata.name"}}));
    let at = "[2].downwardAPI.fields[0]";
    let name = json!({"path": "a", "fieldRef": {"fieldPath": "metadata.name"}});
    let account = |name: &str| json!({"name": name, "serviceAccount": {"serviceAccountName": "robot"}});
    let below = |more: &str| -> &'static str { format!("{at}{more}").leak() };
    let rows = vec![
        (map(json!({})), "[2].configMap.name", Required),
        (map(json!({"name": "../x"})), "[2].configMap.name", Invalid),
        (map(json!({"name": "x", "volumeLabel": "l".repeat(33)})), "[2].configMap.volumeLabel", Invalid),
        (map(json!({"name": "x", "volumeLabel": "\u{e4}"})), "[2].configMap.volumeLabel", Invalid),
        (source(json!({"secret": {}})), "[2].secret.secretName", Required),
        (
            source(json!({"secret": {"secretName": "x", "volumeLabel": "\n"}})),
            "[2].secret.volumeLabel",
            Invalid,
        ),
        (source(json!({"serviceAccount": {}})), "[2].serviceAccount.serviceAccountName", Required),
        (
            json!({"volumes": ["+", account("a")], "serviceAccountName": "other"}),
            "[2].serviceAccount.serviceAccountName",
            Invalid,
        ),
        (json!({"volumes": ["+", account("a"), account("b")]}), "[3].serviceAccount", Invalid),
        (source(json!({"sysprep": {}})), "[2].sysprep", Required),
        (
            source(json!({"sysprep": {"configMap": {"name": "a"}, "secret": {"name": "a"}}})),
            "[2].sysprep",
            Invalid,
        ),
        (source(json!({"sysprep": {"secret": {}}})), "[2].sysprep.secret.name", Required),
        (downward(json!({"path": "a"})), at, Required),
        (path(""), below(".path"), Required),
        (path("/a"), below(".path"), Invalid),
        (path("a/../b"), below(".path"), Invalid),
        (path("a//b"), below(".path"), Invalid),
        (path("a\nb"), below(".path"), Invalid),
        (field(""), below(".fieldRef.fieldPath"), Required),
        (field("spec.nodeName"), below(".fieldRef.fieldPath"), NotSupported),
        (field("metadata.labels['']"), below(".fieldRef.fieldPath"), NotSupported),
        (field("metadata.name['x']"), below(".fieldRef.fieldPath"), NotSupported),
        (
            downward(json!({"path": "a", "fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v2"}})),
            below(".fieldRef.apiVersion"),
            NotSupported,
        ),
        (
            downward(json!({"path": "a", "mode": 512, "fieldRef": {"fieldPath": "metadata.name"}})),
            below(".mode"),
            Invalid,
        ),
        (
            downward(json!({"path": "a", "resourceFieldRef": {"resource": "limits.cpu"}})),
            below(".resourceFieldRef.containerName"),
            Required,
        ),
        (
            source(json!({"downwardAPI": {"fields": [name, name]}})),
            "[2].downwardAPI.fields[1].path",
            Duplicate,
        ),
        (source(json!({"configMap": {"name": "a"}, "secret": {"secretName": "a"}})), "[2]", Invalid),
    ];
    each_is_refused(with_spec, "spec.volumes", rows);
}

#[test]
fn volumes_that_are_plugged_in() {
    let hotpluggable = |disk: Value, devices: Value| {
        let mut disk = disk;
        disk["name"] = json!("data");
        let volume =
            json!({"name": "data", "persistentVolumeClaim": {"claimName": "c", "hotpluggable": true}});
        let mut spec = json!({"volumes": [volume], "domain": {"devices": devices}});
        spec["domain"]["devices"]["disks"] = json!([disk]);
        spec
    };
    for bus in ["scsi", "virtio"] {
        let accepted = with_spec(hotpluggable(json!({"disk": {"bus": bus}}), json!({}))).expect(bus);
        let names = |disks: Vec<&vireo_api::spec::Disk>| {
            disks.into_iter().map(|disk| disk.name().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(accepted.disks_with_hotpluggable_volumes().collect()), ["data"]);
        assert_eq!((accepted.fixed_disks().count(), accepted.hotplug()), (0, true));
    }
    let drive = json!({"cdrom": {"bus": "sata"}, "bootOrder": 1});
    let drive = with_spec(hotpluggable(drive, json!({"disableHotplug": true}))).expect("a medium");
    let count = (drive.fixed_disks().count(), drive.disks_with_hotpluggable_volumes().count());
    assert_eq!(count, (1, 1), "the drive is there from the start, its medium is not");
    assert!(drive.disks()[0].has_hotpluggable_medium() && !drive.disks()[0].is_hotpluggable());
    let scsi = json!({"disk": {"bus": "scsi"}});
    each_is_refused(
        with_spec,
        "spec.domain.devices.",
        vec![
            (hotpluggable(json!({"disk": {"bus": "sata"}}), json!({})), "disks[0].disk.bus", Invalid),
            (
                hotpluggable(json!({"disk": {"bus": "scsi"}, "bootOrder": 1}), json!({})),
                "disks[0].bootOrder",
                NotSupported,
            ),
            (hotpluggable(scsi, json!({"disableHotplug": true})), "disableHotplug", Invalid),
        ],
    );
}

#[test]
fn a_shareable_disk_has_no_cache() {
    let with = |cache: Value| {
        let disk = json!({"name": "shared", "shareable": true, "cache": cache});
        let volume = json!({"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}});
        with_spec(json!({"domain": {"devices": {"disks": ["+", disk]}}, "volumes": ["+", volume]}))
    };
    for cache in [Value::Null, json!("none")] {
        let vm = with(cache).unwrap();
        let disk = vm.disks().iter().find(|disk| disk.name() == "shared").unwrap().config();
        assert_eq!((disk.cache, disk.tuning.shareable), (vireo_vmconfig::CacheMode::None, true));
    }
    let report = with(json!("writeback")).unwrap_err();
    let [problem] = report.problems() else { panic!("{report}") };
    assert!(problem.message().ends_with("a sharable disk requires cache = none got: writeback"), "{report}");
}

#[test]
fn a_lun_is_on_the_bus_scsi_and_as_its_device_is() {
    let with = |lun: Value| {
        let disk = json!({"name": "lun", "serial": "S1", "blockSize": {"matchVolume": {}}, "lun": lun});
        let volume = json!({"name": "lun", "persistentVolumeClaim": {"claimName": "lun"}});
        with_spec(json!({"domain": {"devices": {"disks": ["+", disk]}}, "volumes": ["+", volume]}))
    };
    for (lun, read_only) in [(json!({}), false), (json!({"bus": "scsi", "readonly": true}), true)] {
        let vm = with(lun).unwrap();
        let disk = vm.disks().iter().find(|disk| disk.name() == "lun").unwrap().config();
        assert_eq!(
            (disk.bus, disk.read_only, disk.tuning.scsi_passthrough),
            (DiskBus::Scsi, read_only, true)
        );
        assert_eq!((disk.serial.as_str(), disk.tuning.block_size), ("", BlockSize::Default));
        let notices: Vec<&str> = vm.notices().iter().map(|notice| notice.field().as_str()).collect();
        let at = "spec.domain.devices.disks[2]";
        assert_eq!(notices, [format!("{at}.serial"), format!("{at}.blockSize")]);
    }
    for (lun, field) in [(json!({"bus": "virtio"}), "bus"), (json!({"reservation": true}), "reservation")] {
        let report = with(lun).unwrap_err();
        let [problem] = report.problems() else { panic!("{report}") };
        assert_eq!(problem.field().as_str(), format!("spec.domain.devices.disks[2].lun.{field}"));
    }
}

#[test]
fn a_memory_dump_is_no_disk() {
    let dump = json!({"name": "dump", "memoryDump": {"claimName": "dumps", "hotpluggable": true}});
    let vm = with_spec(json!({ "volumes": ["+", dump] })).unwrap_or_else(|report| panic!("{report}"));
    let found = vm.memory_dump().map(|dump| (dump.volume(), dump.claim()));
    assert_eq!(found, Some(("dump", "dumps")));
    assert!(vm.disks().iter().all(|disk| disk.name() != "dump"));
    assert_eq!(with_spec(json!({})).unwrap().memory_dump(), None);
}

#[test]
fn metrics_of_the_host_are_a_disk_that_is_read() {
    let vm = with_spec(json!({"volumes": ["+", {"name": "metrics", "downwardMetrics": {}}],
        "domain": {"devices": {"disks": ["+", {"name": "metrics", "disk": {"bus": "virtio"}}], "downwardMetrics": {}}}}))
    .unwrap_or_else(|report| panic!("{report}"));
    let disk = vm.disks().iter().find(|disk| disk.name() == "metrics").unwrap();
    assert_eq!(
        (disk.source(), disk.config().read_only),
        (&vireo_api::spec::VolumeSource::DownwardMetrics, true)
    );
    assert!(vm.has_metrics_port() && !with_spec(json!({})).unwrap().has_metrics_port());
}

#[test]
fn a_claim_for_a_memory_dump_is_larger_than_the_memory() {
    let size = |domain: serde_json::Value| {
        let spec = serde_json::from_value(json!({ "domain": domain })).unwrap();
        vireo_api::spec::memory_dump_size(&spec).map(|size| size.to_string())
    };
    let requested = json!({"requests": {"memory": "64Mi"}});
    assert_eq!(size(json!({"memory": {"guest": "1Gi"}, "resources": requested})).as_deref(), Some("1124Mi"));
    assert_eq!(size(json!({ "resources": requested })).as_deref(), Some("164Mi"));
    assert_eq!(size(json!({})), None);
}
