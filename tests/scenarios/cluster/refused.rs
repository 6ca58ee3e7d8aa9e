//! What does not run, and why.

use serde_json::{Value, json};
use vireo_tests::HostError;
use vireo_tests::eventually::eventually;

use super::{GUEST, LAUNCHER, STEP, Vireo};
use crate::scenarios::probes::condition;

/// An instance with one volume.
fn vmi(name: &str, volume: &str) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  domain: {{memory: {{guest: 64Mi}}, devices: {{autoattachGraphicsDevice: false, autoattachPodInterface: false, disks: [{{name: root, disk: {{bus: virtio}}}}]}}}}\n  volumes: [{{name: root, {volume}}}]\n"
    )
}

fn container_disk(name: &str, image: &str, policy: &str) -> String {
    vmi(name, &format!("containerDisk: {{image: {image:?}, imagePullPolicy: {policy}}}"))
}

/// Objects that are not stored.
pub(super) fn fields(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("what is not valid is refused");
    let absent = container_disk("bad", GUEST, "Never")
        .replace("guest: 64Mi", "guest: 64Nonsense")
        .replace("{name: root, disk", "{name: other, disk");
    let refused = vireo.fails("create -f -", &absent)?;
    for field in ["spec.domain.memory.guest", "spec.domain.devices.disks[0].name"] {
        assert!(refused.contains(field), "{field} is missing in:\n{refused}");
    }
    for (volume, field, why) in [
        ("hostDisk: {path: /etc/hostname, type: Disk}", "spec.volumes[0]", "HostDisk feature gate"),
        ("containerDisk: {image: 'oci:/var/lib/images'}", "spec.volumes[0].containerDisk.image", "registry"),
    ] {
        let refused = vireo.fails("create -f -", &vmi("bad", volume))?;
        assert!(refused.contains(field) && refused.contains(why), "{volume}: {refused}");
    }
    let node = container_disk("bad", GUEST, "Never")
        .replace("{name: bad}", "{name: bad, labels: {kubevirt.io/nodeName: node-1}}");
    let refused = vireo.fails("create -f -", &node)?;
    assert!(refused.contains("kubevirt.io/nodeName"), "{refused}");

    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: imitated, labels: {kubevirt.io: virt-launcher}}\nspec: {containers: [{name: compute, image: absent}]}\n";
    let refused = vireo.fails("create -f -", pod)?;
    assert!(refused.contains("only virt-controller"), "{refused}");

    let good = container_disk("labelled", "localhost/vireo/guest:absent", "Never");
    vireo.feed("create -f -", &good);
    let refused = vireo.fails("label vmi labelled --overwrite kubevirt.io/nodeName=elsewhere", "")?;
    assert!(refused.contains("kubevirt.io/nodeName"), "{refused}");
    let refused = vireo.fails(
        "patch vmi labelled --type=merge -p '{\"spec\":{\"domain\":{\"memory\":{\"guest\":\"128Mi\"}}}}'",
        "",
    )?;
    eprintln!("cluster: an update of the spec: {}", refused.trim());
    vireo.ok("delete vmi labelled --timeout=120s");
    vireo.gone("labelled")
}

/// A namespace without room for a launcher Pod.
pub(super) fn quota(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("a quota that is exceeded");
    let quota = "apiVersion: v1\nkind: Namespace\nmetadata: {name: tight}\n---\napiVersion: v1\nkind: ResourceQuota\nmetadata: {name: none, namespace: tight}\nspec: {hard: {pods: 0}}\n";
    vireo.feed("create -f -", quota);
    vireo.becomes("resourcequota none -n tight", "is in force", |quota| {
        quota["status"]["hard"]["pods"] == "0"
    })?;
    vireo.feed("create -n tight -f -", &container_disk("crowded", GUEST, "Never"));
    let vmi = vireo.becomes("vmi crowded -n tight", "says that there is no room", |vmi| {
        condition(vmi, "Synchronized")["reason"] == "FailedCreate"
    })?;
    let why = condition(&vmi, "Synchronized")["message"].to_string();
    assert!(why.contains("exceeded quota: none"), "{why}");
    let events = vireo.ok("get events -n tight");
    assert!(events.contains("exceeded quota: none"), "{events}");
    // Pods without limits are refused now.
    let room = json!({"spec": {"hard": {"pods": "1", "limits.cpu": "2", "limits.memory": "4Gi"}}});
    vireo.ok(&format!("patch resourcequota none -n tight --type=merge -p '{room}'"));
    vireo.becomes("vmi crowded -n tight", "runs once there is room", |vmi| {
        vmi["status"]["phase"] == "Running"
    })?;
    vireo.ok("delete namespace tight --wait=false");
    // Its conditions say what keeps it.
    vireo.becomes("namespace tight", "is gone", Value::is_null)?;
    Ok(())
}

/// Images that cannot be had, or are none of a disk; and an object that does not exist.
pub(super) fn images(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("an image that cannot be pulled");
    // Its Pod waits meanwhile.
    vireo.feed("create -f -", &vmi("objectless", "configMap: {name: absent}"));
    vireo.feed("create -f -", &container_disk("unpulled", "127.0.0.1:1/absent:1", "IfNotPresent"));
    vireo.feed("create -f -", &container_disk("absent", "localhost/vireo/absent:1", "Never"));
    for (name, reasons) in
        [("unpulled", &["ErrImagePull", "ImagePullBackOff"][..]), ("absent", &["ErrImageNeverPull"])]
    {
        let vmi = vireo.becomes(&format!("vmi {name}"), "says why", |vmi| {
            let why = condition(vmi, "Synchronized");
            why["status"] == "False" && reasons.iter().any(|reason| why["reason"] == *reason)
        })?;
        eprintln!("cluster: {name}: {} {}", vmi["status"]["phase"], condition(&vmi, "Synchronized"));
        vireo.ok(&format!("delete vmi {name} --timeout=120s"));
        vireo.gone(name)?;
    }

    vireo.step("an object that does not exist");
    let vmi = vireo.becomes("vmi objectless", "says why", |vmi| {
        condition(vmi, "Synchronized")["reason"] == "FailedMount" && vmi["status"]["phase"] == "Scheduling"
    })?;
    let why = condition(&vmi, "Synchronized")["message"].to_string();
    assert!(why.contains("configmap") && why.contains("absent") && why.contains("not found"), "{why}");
    vireo.ok("delete vmi objectless --timeout=120s");
    vireo.gone("objectless")?;

    vireo.step("an image without a disk");
    vireo.feed(
        "create -f -",
        &container_disk("diskless", &format!("{LAUNCHER}{}", env!("CARGO_PKG_VERSION")), "Never"),
    );
    let mut last = Value::Null;
    eventually("it says why it does not run", STEP, || {
        last = vireo.json("get vmi diskless")?;
        let why = condition(&last, "Synchronized");
        Ok(why["status"] == "False" && why["message"].as_str().is_some_and(|text| text.contains("disk")))
    })
    .inspect_err(|_| eprintln!("as last seen: {:#}", last["status"]))?;
    eprintln!("cluster: diskless: {} {}", last["status"]["phase"], condition(&last, "Synchronized"));
    assert_ne!(last["status"]["phase"], "Running");
    vireo.ok("delete vmi diskless --timeout=120s");
    vireo.gone("diskless")
}

/// A node without space for the files of guests: it says so, and the guest starts when there is some.
pub(super) fn full_disk(vireo: &Vireo<'_>) -> Result<(), HostError> {
    const STATE: &str = "/var/lib/vireo";
    vireo.step("the disk of a node is full");
    // A small one in the place of that which the node shares with this host.
    vireo.on_node(&format!("mount -t tmpfs -o size=512m tmpfs {STATE}"))?;
    replace_agent(vireo)?;
    let filled = vireo.run_on_node(&format!("cat /dev/zero >{STATE}/filler"))?;
    assert!(filled.stderr.contains("No space left"), "{}", filled.stderr);
    vireo.feed("create -f -", &container_disk("homeless", GUEST, "Never"));
    eventually("an event says why it does not start", STEP, || {
        let events = vireo.items("events --field-selector involvedObject.name=homeless,type=Warning")?;
        let says =
            |event: &Value| event["message"].as_str().is_some_and(|text| text.contains("no space is left"));
        let said = events.iter().find(|event| says(event));
        if let Some(event) = said {
            eprintln!("cluster: homeless: {} {}", event["reason"], event["message"]);
        }
        Ok(said.is_some())
    })?;
    assert_ne!(vireo.json("get vmi homeless")?["status"]["phase"], "Running");
    let ready = vireo.items("pods -n kubevirt -l kubevirt.io=virt-handler")?;
    assert!(ready.iter().all(|pod| condition(pod, "Ready")["status"] == "True"), "{ready:#?}");

    vireo.step("there is space again");
    vireo.on_node(&format!("rm {STATE}/filler"))?;
    vireo.phase("homeless", "Running")?;
    vireo.ok("delete vmi homeless --timeout=120s");
    vireo.gone("homeless")?;
    vireo.on_node(&format!("umount {STATE}"))?;
    replace_agent(vireo)
}

/// Another node agent, which sees what is mounted on the node now.
fn replace_agent(vireo: &Vireo<'_>) -> Result<(), HostError> {
    let agents = "-n kubevirt -l kubevirt.io=virt-handler";
    vireo.ok(&format!("delete pods {agents} --timeout=120s"));
    vireo.ok("-n kubevirt rollout status daemonset/virt-handler --timeout=120s");
    Ok(())
}
