//! VirtualMachines: their instances come and go with `virtctl`, Pods and nodes.

use serde_json::{Value, json};
use vireo_tests::HostError;
use vireo_tests::eventually::eventually;

use super::{LIMIT, STEP, Vireo, installation};

const DRAIN: &str =
    "drain node-1 --ignore-daemonsets --delete-emptydir-data --pod-selector=kubevirt.io=virt-launcher";

/// It has nothing to start, which is enough to run.
pub(super) fn bare(run_strategy: &str, eviction_strategy: &str) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: bare}}\nspec:\n  runStrategy: {run_strategy}\n  template:\n    spec:\n      evictionStrategy: {eviction_strategy}\n      terminationGracePeriodSeconds: 0\n      domain: {{memory: {{guest: 64Mi}}, devices: {{autoattachGraphicsDevice: false}}}}\n"
    )
}

fn printable(vireo: &Vireo<'_>, wanted: &str) -> Result<(), HostError> {
    let seen = |vm: &Value| vm["status"]["printableStatus"] == wanted;
    vireo.becomes("vm bare", &format!("is {wanted}"), seen)?;
    Ok(())
}

/// A machine does what `virtctl` says.
pub(super) fn starts_and_stops(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("a VirtualMachine is started");
    vireo.feed("apply -f -", &bare("Halted", "None"));
    printable(vireo, "Stopped")?;
    vireo.virtctl("start bare")?.ok();
    printable(vireo, "Running")?;
    vireo.step("it is restarted");
    let first = vireo.uid("bare")?;
    vireo.virtctl("restart bare")?.ok();
    vireo.another_runs("bare", &first)?;
    printable(vireo, "Running")?;
    vireo.step("it is stopped");
    vireo.virtctl("stop bare")?.ok();
    printable(vireo, "Stopped")?;
    vireo.gone("bare")?;
    vireo.ok(&format!("delete vm bare {LIMIT}"));
    Ok(())
}

/// A machine gets the launcher of an update when that is asked for, and keeps its own before.
pub(super) fn is_updated(vireo: &Vireo<'_>) -> Result<(), HostError> {
    const OUTDATED: &str = "kubevirt.io/outdatedLauncherImage";
    let image = |vmi: &Value| vmi["status"]["launcherContainerImageVersion"].as_str().map(str::to_owned);
    let is_marked = |vmi: &Value| vmi["metadata"]["labels"][OUTDATED].is_string();
    vireo.step("the launcher's image is another one");
    vireo.feed("apply -f -", &bare("Always", "None"));
    printable(vireo, "Running")?;
    let vmi = vireo.becomes("vmi bare", "has an image", |vmi| image(vmi).is_some_and(|it| !it.is_empty()))?;
    assert!(!is_marked(&vmi), "{vmi:#}");
    let (first, before) = (vireo.uid("bare")?, image(&vmi).unwrap_or_default());
    let (name, _) = before.rsplit_once(':').unwrap_or((&before, ""));
    let after = format!("{name}:next");
    vireo.on_node(&format!("ctr -n k8s.io images tag {before} {after}"))?;
    let controller = vireo.json("-n kubevirt get deployment virt-controller")?;
    let command = controller["spec"]["template"]["spec"]["containers"][0]["command"].as_array();
    let at = command.and_then(|words| words.iter().position(|word| *word == *before));
    let at = at.unwrap_or_else(|| panic!("no image {before}: {controller:#}"));
    let path = format!("/spec/template/spec/containers/0/command/{at}");
    let patch = json!([{"op": "replace", "path": path, "value": after}]).to_string();
    let patch = json!({"resourceType": "Deployment", "resourceName": "virt-controller", "type": "json", "patch": patch});
    installation::configure(
        vireo,
        &json!({"spec": {"customizeComponents": {"patches": [patch]}}}).to_string(),
    )?;
    vireo.becomes("vmi bare", "is marked", is_marked)?;
    vireo.becomes("-n kubevirt kubevirt kubevirt", "counts it", |kubevirt| {
        kubevirt["status"]["outdatedVirtualMachineInstanceWorkloads"] == 1
    })?;
    assert_eq!(vireo.uid("bare")?, first, "nobody asked for more");

    vireo.step("it is evicted for that");
    let evict = r#"{"spec": {"workloadUpdateStrategy": {"workloadUpdateMethods": ["Evict"]}}}"#;
    installation::configure(vireo, evict)?;
    vireo.another_runs("bare", &first)?;
    let vmi = vireo.becomes("vmi bare", "has the image", |vmi| image(vmi).as_ref() == Some(&after))?;
    assert!(!is_marked(&vmi), "{vmi:#}");
    vireo.ok(&format!("delete vm bare {LIMIT}"));
    vireo.gone("bare")?;
    let undone = r#"{"spec": {"customizeComponents": null, "workloadUpdateStrategy": null}}"#;
    installation::configure(vireo, undone).map(drop)
}

/// Whatever of Vireo dies while a machine starts, runs and ends: it starts, goes on and ends.
pub(super) fn outlives_its_components(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("all components are killed while it starts");
    vireo.feed("apply -f -", &bare("Always", "None"));
    lose_components(vireo)?;
    printable(vireo, "Running")?;
    vireo.step("all components are killed while it runs");
    let (first, qemu) = (vireo.uid("bare")?, vireo.processes("qemu-system-x86_64")?);
    lose_components(vireo)?;
    printable(vireo, "Running")?;
    assert_eq!((vireo.uid("bare")?, vireo.processes("qemu-system-x86_64")?), (first, qemu));
    vireo.step("all components are killed while it ends");
    vireo.ok("delete vm bare --wait=false");
    lose_components(vireo)?;
    vireo.gone("bare")
}

/// Kills all components, and waits until the kubelet has started each again.
fn lose_components(vireo: &Vireo<'_>) -> Result<(), HostError> {
    /// How many of each there are on a node that is alone.
    const COMPONENTS: [(&str, usize); 4] =
        [("virt-api", 2), ("virt-controller", 2), ("virt-handler", 1), ("virt-operator", 2)];
    let killed = vireo.shell(&format!("pidof {}", COMPONENTS.map(|(name, _)| name).join(" ")))?;
    let killed: Vec<&str> = killed.split_whitespace().collect();
    vireo.shell(&format!("kill -9 {}", killed.join(" ")))?;
    eventually("all components run again", STEP, || {
        let run = COMPONENTS.map(|(name, count)| {
            let processes = vireo.processes(name)?;
            let new = processes.split_whitespace().filter(|process| !killed.contains(process));
            Ok::<_, HostError>(new.count() == count)
        });
        run.into_iter().try_fold(true, |all, runs| Ok(all && runs?))
    })?;
    vireo.ok(&format!("-n kubevirt wait deployment --all --for=condition=Available {LIMIT}"));
    vireo.ok(&format!("-n kubevirt rollout status daemonset/virt-handler {LIMIT}"));
    Ok(())
}

/// A machine that is to run always runs again after its Pod was deleted.
pub(super) fn returns(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("its Pod is deleted");
    vireo.feed("apply -f -", &bare("Always", "None"));
    printable(vireo, "Running")?;
    let first = vireo.uid("bare")?;
    let pod = vireo.pod("bare")?["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    vireo.ok(&format!("delete pod {pod} {LIMIT}"));
    vireo.another_runs("bare", &first)?;
    printable(vireo, "Running")?;
    vireo.ok(&format!("delete vm bare {LIMIT}"));
    vireo.gone("bare")
}

/// A machine that is to run always runs again after its Pod was evicted, where there is a node.
pub(super) fn moves_away(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("its node is drained");
    vireo.feed("apply -f -", &bare("Always", "None"));
    printable(vireo, "Running")?;
    let second = vireo.uid("bare")?;
    let drained = vireo.ok(&format!("{DRAIN} {LIMIT}"));
    assert!(drained.contains("evict"), "{drained}");
    printable(vireo, "ErrorUnschedulable")?;
    assert!(vireo.processes("qemu-system-x86_64")?.is_empty());
    vireo.ok("uncordon node-1");
    vireo.another_runs("bare", &second)?;
    printable(vireo, "Running")?;
    vireo.ok(&format!("delete vm bare {LIMIT}"));
    vireo.gone("bare")?;

    vireo.step("an instance that must not be evicted keeps its node");
    vireo.feed("apply -f -", &bare("RerunOnFailure", "LiveMigrate"));
    printable(vireo, "Running")?;
    let third = vireo.uid("bare")?;
    let refused = vireo.fails(&format!("{DRAIN} --timeout=10s"), "")?;
    assert!(refused.contains("is not live-migratable"), "{refused}");
    assert_eq!(vireo.uid("bare")?, third);
    vireo.ok("uncordon node-1");
    let pod = vireo.pod("bare")?["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    vireo.ok(&format!("delete pod {pod} --wait=false"));
    eventually("the instance ends with its Pod", STEP, || {
        let seen = vireo.kubectl("get vmi bare -o jsonpath={.metadata.uid},{.status.phase}", None)?.stdout;
        Ok(!seen.starts_with(&third) || seen.ends_with(",Succeeded") || seen.ends_with(",Failed"))
    })?;
    vireo.ok(&format!("delete vm bare {LIMIT}"));
    vireo.gone("bare")
}

/// A machine whose node is not heard of is replaced when its Pod is gone, and not before.
pub(super) fn fails_with_its_node(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.feed("apply -f -", &bare("Always", "None"));
    printable(vireo, "Running")?;
    let first = vireo.uid("bare")?;
    vireo.step("its node has no node agent");
    let nowhere =
        r#"{"spec": {"workloads": {"nodePlacement": {"nodeSelector": {"example.com/absent": "true"}}}}}"#;
    installation::configure(vireo, nowhere)?;
    eventually("the node agent is gone", STEP, || Ok(vireo.processes("virt-handler")?.is_empty()))?;
    vireo.ok(r#"annotate node node-1 --overwrite kubevirt.io/heartbeat="2026-01-01T00:00:00Z""#);
    vireo.becomes("node node-1", "takes no VMIs", |node| {
        node["metadata"]["labels"]["kubevirt.io/schedulable"] == "false"
    })?;
    assert_eq!(vireo.json("get vmi bare")?["status"]["phase"], "Running", "its Pod may run");
    vireo.step("its Pod is removed");
    let pod = vireo.pod("bare")?["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    vireo.ok(&format!("delete pod {pod} --force --grace-period=0"));
    printable(vireo, "ErrorUnschedulable")?;
    let events = vireo.items("events")?;
    let of_first = |event: &&Value| {
        event["reason"] == "NodeUnresponsive" && event["involvedObject"]["uid"] == first.as_str()
    };
    assert_eq!(events.iter().filter(of_first).count(), 1, "{events:#?}");
    vireo.step("the node agent is back");
    installation::configure(vireo, r#"{"spec": {"workloads": null}}"#)?;
    vireo.another_runs("bare", &first)?;
    printable(vireo, "Running")?;
    vireo.ok(&format!("delete vm bare {LIMIT}"));
    vireo.gone("bare")
}
