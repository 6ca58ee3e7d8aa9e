//! What VMs start from goes while they are stopped: each says what it lacks, and starts once that is back.

use serde_json::{Value, json};
use vireo_tests::eventually::eventually;
use vireo_tests::{Host, HostError, oci};

use crate::SOON;
use crate::scenarios::node::host_with_programs;
use crate::scenarios::probes::condition;
use crate::scenarios::standalone::Standalone;

/// A volume that goes: the name of its VM, its source, how it goes and comes back, and what its VM says meanwhile.
struct Vanishing {
    name: &'static str,
    source: Value,
    goes: String,
    comes: String,
    reason: &'static str,
    words: Vec<String>,
}

/// A VM without an operating system: its firmware finds nothing to start.
fn vm(name: &str, source: &Value) -> Value {
    let mut volume = source.clone();
    volume["name"] = "volume".into();
    let devices = json!({
        "autoattachGraphicsDevice": false,
        "autoattachPodInterface": false,
        "disks": [{"name": "volume", "disk": {"bus": "virtio"}}],
    });
    let spec = json!({
        "terminationGracePeriodSeconds": 0,
        "domain": {"memory": {"guest": "64Mi"}, "devices": devices},
        "volumes": [volume],
    });
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name},
        "spec": {"runStrategy": "Always", "template": {"spec": spec}},
    })
}

fn volumes(standalone: &Standalone<'_>) -> Vec<Vanishing> {
    let host = standalone.host();
    let file = |name: &'static str, source: Value, path: String, reason, words: Vec<String>| Vanishing {
        name,
        source,
        goes: format!("mv {path} {path}.away"),
        comes: format!("mv {path}.away {path}"),
        reason,
        words,
    };
    let object = |name: &'static str, source: Value, words: &str| Vanishing {
        name,
        source,
        goes: String::new(),
        comes: String::new(),
        reason: "FailedMount",
        words: vec![words.to_owned()],
    };
    let host_disk = host.work("data/there.img");
    let image = host.work("images/layout");
    let claim = standalone.file("claims/default/data/disk.img");
    vec![
        file(
            "host-disk",
            json!({"hostDisk": {"path": host_disk, "type": "Disk"}}),
            host_disk.clone(),
            "FailedStorage",
            vec!["spec.volumes[0].hostDisk".to_owned(), format!("{host_disk} does not exist")],
        ),
        file(
            "image",
            json!({"containerDisk": {"image": format!("oci:{image}")}}),
            image.clone(),
            "ErrImagePull",
            vec!["spec.volumes[0].containerDisk".to_owned(), format!("cannot open {image}")],
        ),
        file(
            "claim",
            json!({"persistentVolumeClaim": {"claimName": "data"}}),
            claim.clone(),
            "FailedStorage",
            vec!["spec.volumes[0].persistentVolumeClaim".to_owned(), format!("{claim} does not exist")],
        ),
        object("configmap", json!({"configMap": {"name": "app"}}), "ConfigMap default/app does not exist"),
        object("secret", json!({"secret": {"secretName": "key"}}), "Secret default/key does not exist"),
    ]
}

fn objects() -> String {
    let object =
        |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
    json!({"apiVersion": "v1", "kind": "List", "items": [object("ConfigMap", "app"), object("Secret", "key")]})
        .to_string()
}

fn prepare(host: &Host, standalone: &Standalone<'_>) -> Result<(), HostError> {
    standalone.provide("data", "1Mi")?;
    standalone.kubectl("apply -f -", Some(&objects()))?.ok();
    let disk = host.work("data/there.img");
    standalone.shell(&format!(
        "mkdir -p {} {}; truncate -s 1M {disk}",
        host.work("data"),
        host.work("images")
    ))?;
    let layout = host.work("images/layout");
    oci::write_layout(layout.as_ref(), &[("disk/disk.img", disk.as_ref())]).map_err(HostError::Start)
}

/// Waits until an instance says what it lacks.
fn says(standalone: &Standalone<'_>, volume: &Vanishing) -> Result<(), HostError> {
    let mut last = Value::Null;
    let said = eventually(&format!("{} says what it lacks", volume.name), SOON, || {
        let vmis = standalone.items("vmi")?;
        last = vmis.into_iter().find(|vmi| vmi["metadata"]["name"] == volume.name).unwrap_or_default();
        let why = condition(&last, "Synchronized");
        let message = why["message"].as_str().unwrap_or_default();
        Ok(why["reason"] == volume.reason && volume.words.iter().all(|word| message.contains(word)))
    });
    said.inspect_err(|_| eprintln!("{} as last seen: {:#}", volume.name, last["status"]))
}

#[test]
fn vms_wait_for_what_has_vanished_here() -> Result<(), HostError> {
    let vireo = vireo_tests::programs::directory(env!("CARGO_BIN_EXE_nested")).join("vireo");
    let host = host_with_programs().file(vireo).here()?;
    let standalone = Standalone::start(&host)?;
    prepare(&host, &standalone)?;
    let volumes = volumes(&standalone);
    for volume in &volumes {
        standalone.kubectl("apply -f -", Some(&vm(volume.name, &volume.source).to_string()))?.ok();
    }
    for volume in &volumes {
        standalone.becomes_ready(&format!("vm/{}", volume.name))?;
    }
    for volume in &volumes {
        standalone.virtctl(&format!("stop {}", volume.name))?.ok();
    }
    eventually("they have stopped", SOON, || Ok(standalone.items("vmi")?.is_empty()))?;

    standalone.kubectl("delete configmap/app secret/key", None)?.ok();
    for volume in &volumes {
        standalone.shell(&volume.goes)?;
    }
    for volume in &volumes {
        standalone.virtctl(&format!("start {}", volume.name))?.ok();
    }
    for volume in &volumes {
        says(&standalone, volume)?;
    }
    assert_eq!(standalone.launchers()?, "0", "none has started");

    standalone.kubectl("apply -f -", Some(&objects()))?.ok();
    for volume in &volumes {
        standalone.shell(&volume.comes)?;
    }
    for volume in &volumes {
        standalone.becomes_ready(&format!("vm/{}", volume.name))?;
    }
    standalone.kubectl("delete vm --all --timeout=60s", None)?.ok();
    Ok(())
}
