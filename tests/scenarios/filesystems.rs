//! File systems that a guest shares by virtio-fs.

use std::time::Duration;

use vireo_tests::guest::Guest;
use vireo_tests::{Host, HostError, scenario};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

/// A guest under emulation.
const BOOT: Duration = Duration::from_secs(240);

/// Where Debian has it.
pub(crate) const VIRTIOFSD: &str = "/usr/libexec/virtiofsd";

const OBJECTS: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {colour: blue, empty: ''}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {password: hunter2}
---
";

#[test]
fn a_guest_shares_file_systems_on_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.deadline(BOOT).here()?;
    are_shared(&host, "qemu")
}

#[test]
fn nested_a_guest_shares_file_systems_on_native() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "virtio-fs under vireo",
        || Ok(host_with_vireo(scratch.path())?.file(VIRTIOFSD)),
        |host, monitor| {
            install_virtiofsd(host)?;
            are_shared(host, monitor.hypervisor())
        },
    );
}

/// Puts it where a nested host has programs.
pub(crate) fn install_virtiofsd(host: &Host) -> Result<(), HostError> {
    host.shell(&format!("install -D {} {VIRTIOFSD}", host.input("virtiofsd"))).run()?.ok();
    Ok(())
}

fn are_shared(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    let standalone = Standalone::start_on(host, hypervisor)?;
    let devices = "      rng: {}\n      filesystems:\n      - {name: config, virtiofs: {}}\n      \
                   - {name: secret, virtiofs: {}}\n      - {name: pod, virtiofs: {}}\n";
    let volumes = "  - {name: config, configMap: {name: settings}}\n  - {name: secret, secret: {secretName: keys}}\n  \
                   - {name: pod, downwardAPI: {fields: [{path: in/name, fieldRef: {fieldPath: metadata.namespace}}]}}\n";
    let vmi = manifest(host, "one").replace("      rng: {}\n", devices) + volumes;
    standalone.kubectl("apply -f -", Some(&format!("{OBJECTS}{vmi}")))?.ok();
    let mut guest = standalone.console("one")?;
    let first = guest.ready()?;
    standalone.runs_on("one", hypervisor)?;
    mounts(&mut guest)?;
    // The processes stay, and the next kernel begins with them anew.
    guest.send("reboot -f")?;
    let second = guest.ready()?;
    assert_ne!(first.boot_id, second.boot_id, "it did not reboot");
    mounts(&mut guest)?;
    a_lost_process_ends_it(&standalone)
}

fn mounts(guest: &mut Guest<'_>) -> Result<(), HostError> {
    for (line, expected) in [
        (
            "mkdir /c /s /p; for of in config:/c secret:/s pod:/p; do mount -t virtiofs ${of%:*} ${of#*:}; done; ls -1 /c",
            "colour\nempty",
        ),
        ("cat /c/colour", "blue"),
        ("wc -c </c/empty", "0"),
        ("cat /s/password", "hunter2"),
        ("cat /p/in/name", "default"),
        ("grep -c virtiofs /proc/mounts", "3"),
        // The guest only reads.
        ("touch /c/more 2>/dev/null || echo refused", "refused"),
        ("ls -a /c/.. | grep -c colour || true", "0"),
    ] {
        assert_eq!(guest.run(line, SOON)?.trim(), expected.trim(), "{line}");
    }
    Ok(())
}

/// One of its processes is lost: the reason is in the status.
fn a_lost_process_ends_it(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let uid = standalone.uid("one")?;
    let line = format!(
        "for pid in $(pidof virtiofsd); do if grep -q {uid} /proc/$pid/cgroup /proc/$pid/cmdline; then echo $pid; fi; done"
    );
    let pids = standalone.shell(&line)?;
    let pids: Vec<&str> = pids.split_whitespace().collect();
    assert_eq!(pids.len(), 3, "{pids:?}");
    let users = standalone.shell(&format!(
        "stat -c %u {}",
        pids.iter().map(|pid| format!("/proc/{pid} ")).collect::<String>()
    ))?;
    assert!(users.lines().all(|user| user != "0"), "they have the launcher's user: {users}");
    standalone.shell(&format!("kill -KILL {}", pids[0]))?;
    standalone.kubectl("wait --for=jsonpath='{.status.phase}'=Failed --timeout=60s vmi/one", None)?.ok();
    let status = standalone.json("get vmi one")?["status"].to_string();
    assert!(status.contains("(virtiofsd) was killed by signal 9"), "{status}");
    standalone.kubectl("delete --timeout=60s vmi/one", None)?.ok();
    assert_eq!(standalone.shell(&format!("(ps -o pid= -p {} || true) | wc -l", pids.join(",")))?.trim(), "0");
    Ok(())
}
