//! What our server does for `kubectl` and `virtctl` beyond any Kubernetes API, without any guest.

use serde_json::Value;
use vireo_tests::HostError;
use vireo_tests::eventually::eventually;

use super::{Api, builder, refuses_rule};
use crate::SOON;

#[test]
fn kubectl_finds_kubevirt() -> Result<(), HostError> {
    let host = builder().here()?;
    let api = Api::start(&host)?;
    explains_vms(&api)?;
    // What Kubernetes has and we do not is refused, not ignored.
    refuses_rule(&api, "self.content.replace('a', 'b') == ''", "undeclared reference to 'replace'")?;
    takes_the_examples(&api)?;
    takes_what_virtctl_makes(&api)
}

fn explains_vms(api: &Api<'_>) -> Result<(), HostError> {
    let explained = api.ok("explain vmi.spec.domain.cpu.cores")?;
    assert!(explained.contains("Cores in a socket"), "{explained}");
    for (path, word) in [
        ("vmi.spec.affinity.nodeAffinity", "<NodeSelector>"),
        ("vmi.spec.tolerations.tolerationSeconds", "<integer>"),
        ("vmi.spec.topologySpreadConstraints.whenUnsatisfiable", "DoNotSchedule"),
        ("vmi.spec.volumes.downwardAPI.fields.fieldRef", "fieldPath"),
        ("virtualmachinepreference.spec.devices.preferredVideoType", "<string>"),
        ("virtualmachinepreference.spec.clock.preferredClockOffset.utc", "offsetSeconds"),
    ] {
        let explained = api.ok(&format!("explain {path}"))?;
        assert!(explained.contains(word), "{path}: {explained}");
    }
    let resources = api.ok("api-resources")?;
    assert!(
        resources.contains("virtualmachineinstances") && resources.contains("kubevirt.io/v1"),
        "{resources}"
    );
    assert_eq!(api.ok("auth can-i delete vmi")?.trim(), "yes");
    let me = api.ok("auth whoami")?;
    assert!(me.contains("admin") && me.contains("system:masters"), "{me}");
    // Both ask for pods.
    assert!(api.ok("describe node here")?.contains("devices.kubevirt.io/kvm"));
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\nspec: {accessModes: [ReadWriteOnce], \
                 resources: {requests: {storage: 1Mi}}}\n";
    api.feed("apply -f -", claim)?.ok();
    assert!(api.ok("describe pvc c")?.contains("Used By:"));
    api.ok("delete pvc c")?;
    let refused = api.fails("run nginx --image=nginx", "")?;
    assert!(refused.contains("spec: Forbidden: only VirtualMachineInstances run here"), "{refused}");
    prunes(api)
}

/// What asks for kinds of which there are no objects.
fn prunes(api: &Api<'_>) -> Result<(), HostError> {
    let running = api.ok("cluster-info")?;
    assert!(running.contains("is running at"), "{running}");
    let map = |name: &str| {
        format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, labels: {{app: x}}}}\n")
    };
    api.feed("apply --prune -l app=x -f -", &(map("one") + &map("two")))?.ok();
    let reported = api.feed("apply --prune -l app=x -f -", &map("one"))?.ok();
    assert!(reported.contains("configmap/two pruned"), "{reported}");
    api.ok("delete cm one")?;
    for (made, why) in [
        ("deployment d --image=x", "spec: Forbidden: only VirtualMachineInstances run here"),
        ("service clusterip s --tcp=80", "spec: Forbidden: services are not supported here"),
    ] {
        let refused = api.fails(&format!("create {made}"), "")?;
        assert!(refused.contains(why), "{refused}");
    }
    Ok(())
}

/// Every manifest that users are shown. Guests do not come up here: there is neither a launcher nor an image.
fn takes_the_examples(api: &Api<'_>) -> Result<(), HostError> {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
    let reported = api.ok(&format!("apply --dry-run=server -f {examples}"))?;
    assert!(
        reported.lines().count() >= 6
            && reported.lines().all(|line| line.ends_with("created (server dry run)")),
        "{reported}"
    );
    // What refers to others is only taken where they are.
    let reported = api.ok(&format!("apply -f {examples}/standalone"))?;
    let made = reported.lines().count();
    assert!(made >= 4, "{reported}");
    let reported = api.ok(&format!("delete --timeout=60s -f {examples}/standalone"))?;
    assert_eq!(reported.lines().count(), made, "{reported}");
    eventually("nothing is left of them", SOON, || {
        Ok(api.feed("get vm,vmi,vmirs,vmpool,pvc -A", "")?.stderr.contains("No resources found"))
    })
}

/// The manifests of `virtctl create`, each of which may refer to those before it.
fn takes_what_virtctl_makes(api: &Api<'_>) -> Result<(), HostError> {
    for (line, made) in [
        ("instancetype --name=two --cpu=2 --memory=256Mi", "virtualmachineclusterinstancetype"),
        ("preference --name=flat --cpu-topology=cores -n default", "virtualmachinepreference"),
        (
            "vm --name=chosen --instancetype=two --preference=virtualmachinepreference/flat --run-strategy=Halted",
            "virtualmachine.kubevirt.io/chosen",
        ),
        (
            "vm --name=plain --run-strategy=Manual --volume-containerdisk=src:oci:/var/lib/images/plain,bootorder:1 --user=ada",
            "virtualmachine.kubevirt.io/plain",
        ),
    ] {
        let virtctl = api.host.command(&api.host.input("virtctl"));
        let manifest = virtctl.arg("create").args(line.split(' ')).run()?.ok();
        let reported = api.feed("apply --dry-run=server --validate=strict -f -", &manifest)?.ok();
        assert!(
            reported.starts_with(made) && reported.contains("created (server dry run)"),
            "{reported}{manifest}"
        );
        api.feed("create -f -", &manifest)?.ok();
    }
    let expanded =
        api.host.command(&api.host.input("virtctl")).args(["expand", "--vm", "chosen", "-o", "json"]);
    let expanded = expanded.env("KUBECONFIG", &api.kubeconfig).run()?.ok();
    let expanded: Value = serde_json::from_str(&expanded).unwrap_or_default();
    assert_eq!(expanded["spec"]["template"]["spec"]["domain"]["cpu"]["cores"], 2, "{expanded:#}");
    Ok(())
}
