//! Launcher Pods on one host: `kubectl get pods`, `logs`, `delete pod` and `drain`.

use std::time::Duration;

use vireo_tests::HostError;
use vireo_tests::eventually::eventually;

use crate::scenarios::standalone::{Standalone, host_with_vireo};

const OF_ONE: &str = "-l kubevirt.io=virt-launcher,vm.kubevirt.io/name=one";
const LIMIT: &str = "--timeout=120s";
const BOOT: Duration = Duration::from_secs(120);

/// It has nothing to start, which is enough to run.
fn bare(strategy: &str) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: bare}}\nspec:\n  runStrategy: Always\n  template:\n    spec:\n      evictionStrategy: {strategy}\n      terminationGracePeriodSeconds: 0\n      domain: {{memory: {{guest: 64Mi}}, devices: {{autoattachGraphicsDevice: false, autoattachPodInterface: false}}}}\n"
    )
}

#[test]
fn a_launcher_is_a_pod() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let (standalone, guest) = Standalone::with_a_guest(&host)?;
    standalone.kubectl(&format!("wait pod {OF_ONE} --for=condition=Ready {LIMIT}"), None)?.ok();
    let table = standalone.kubectl(&format!("get pods {OF_ONE} -o wide"), None)?.ok();
    let row: Vec<&str> = table.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert!(row.first().is_some_and(|name| name.starts_with("virt-launcher-one-")), "{table}");
    assert_eq!(row.get(1..4), Some(&["1/1", "Running", "0"][..]), "{table}");
    assert!(row.contains(&"here"), "{table}");

    let name = row.first().copied().unwrap_or_default();
    let log = standalone.kubectl(&format!("logs {name}"), None)?.ok();
    assert!(log.contains("GUEST READY"), "{log}");
    let last = standalone.kubectl(&format!("logs {name} -c compute --tail=1"), None)?.ok();
    assert!(log.ends_with(&last) && last.lines().count() == 1, "{last}");
    let refused = standalone.kubectl(&format!("logs {name} --since=5s"), None)?;
    assert!(refused.stderr.contains("has no times"), "{}", refused.stderr);

    // The guest is shut down, and what it wrote stays as long as its VMI.
    drop(guest);
    let uid = standalone.json("get vmi one")?["metadata"]["uid"].clone();
    standalone.kubectl(&format!("delete pod {name} {LIMIT}"), None)?.ok();
    standalone
        .kubectl(&format!("wait vmi one --for=jsonpath={{.status.phase}}=Succeeded {LIMIT}"), None)?
        .ok();
    let vmi = standalone.json("get vmi one")?;
    assert_eq!(
        (&vmi["metadata"]["uid"], &vmi["status"]["reason"]),
        (&uid, &"GuestShutDown".into()),
        "{vmi:#}"
    );
    assert_eq!(standalone.launchers()?, "0");
    standalone.kubectl(&format!("delete vmi one {LIMIT}"), None)?.ok();
    Ok(())
}

#[test]
fn a_drain_ends_guests_that_may_be_evicted() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let mut standalone = Standalone::start(&host)?;
    standalone.kubectl("apply -f -", Some(&bare("LiveMigrate")))?.ok();
    standalone.printable("bare", "Running")?;
    let kept = standalone.kubectl("drain here --timeout=10s", None)?;
    assert!(kept.stderr.contains("is not live-migratable"), "{}", kept.stderr);
    assert_eq!(standalone.launchers()?, "1", "a guest that must not be evicted goes on");

    standalone.kubectl(&format!("delete vm bare {LIMIT}"), None)?.ok();
    standalone.kubectl("uncordon here", None)?.ok();
    standalone.kubectl("apply -f -", Some(&bare("None")))?.ok();
    standalone.printable("bare", "Running")?;
    let first = standalone.uid("bare")?;
    let drained = standalone.kubectl(&format!("drain here {LIMIT}"), None)?.ok();
    assert!(drained.contains("evicting pod") || drained.contains("drained"), "{drained}");
    assert_eq!(standalone.launchers()?, "0", "drained is without guests");
    // Its VM wants another one, which waits for a node.
    standalone.printable("bare", "ErrorUnschedulable")?;
    standalone.kubectl("uncordon here", None)?.ok();
    standalone.printable("bare", "Running")?;
    assert_ne!(standalone.uid("bare")?, first);

    // Also a node agent that was lost finds the Pod and its launcher together.
    let second = standalone.uid("bare")?;
    standalone.lose()?;
    standalone.printable("bare", "Running")?;
    assert_eq!(standalone.uid("bare")?, second);
    let forced = "delete pod -l kubevirt.io=virt-launcher --force --grace-period=0";
    standalone.kubectl(forced, None)?.ok();
    eventually("a guest whose Pod is removed by force ends, and its VM gets another", BOOT, || {
        let vmis = standalone.items("vmi")?;
        Ok(vmis.iter().all(|vmi| vmi["metadata"]["uid"] != second) && !vmis.is_empty())
    })?;
    standalone.printable("bare", "Running")?;
    standalone.kubectl(&format!("delete vm bare {LIMIT}"), None)?.ok();
    assert_eq!(standalone.launchers()?, "0");
    Ok(())
}
