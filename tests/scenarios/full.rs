//! A disk that is full: writes and `/readyz` say so, reads go on, and writes go on when there is room. Guests that write to
//! it are paused meanwhile.

use std::time::Duration;

use serde_json::Value;
use vireo_tests::eventually::eventually;
use vireo_tests::{Host, HostError, Status, scenario};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::probes::condition;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

const BOOT: Duration = Duration::from_secs(120);

const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: words}\ndata: {a: one}\n";

/// One that is larger than what filling a disk leaves.
fn large(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{a: {}}}\n",
        "x".repeat(900_000)
    )
}

/// Leaves no space on the disk of the state directory.
fn fill(host: &Host) -> Result<(), HostError> {
    let fill = format!("cat /dev/zero >{}", host.work("state/filler"));
    assert_ne!(host.shell(&fill).run()?.status, Status::Code(0), "the disk is not full");
    Ok(())
}

fn make_room(host: &Host) -> Result<(), HostError> {
    host.command("rm").arg(host.work("state/filler")).run().map(|output| drop(output.ok()))
}

#[test]
fn a_full_disk_refuses_writes_and_nothing_else() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let standalone = Standalone::start_in(&host, "qemu", "-t tmpfs -o size=24m tmpfs")?;
    standalone.kubectl("apply --server-side -f -", Some(MAP))?.ok();
    assert_eq!(standalone.kubectl("get --raw /readyz", None)?.ok(), "ok");
    fill(&host)?;
    let unready = standalone.kubectl("get --raw /readyz", None)?;
    assert_ne!(unready.status, Status::Code(0), "{}", unready.stdout);
    assert!(unready.stderr.contains("[-]state-directory failed: no space left"), "{}", unready.stderr);
    assert_eq!(standalone.kubectl("get --raw /livez", None)?.ok(), "ok", "a restart would not help");
    let mut refused = None;
    for number in 0..20 {
        let reported = standalone.kubectl("create -f -", Some(&large(&format!("large-{number}"))))?;
        if reported.status != Status::Code(0) {
            refused = Some(reported.stderr);
            break;
        }
    }
    let reported = refused.expect("a full disk takes everything");
    assert!(reported.contains("No space left on device"), "{reported}");
    assert_eq!(standalone.json("get cm words")?["data"]["a"], "one", "what is there is read");
    make_room(&host)?;
    eventually("it is ready again", SOON, || {
        Ok(standalone.kubectl("get --raw /readyz", None)?.status == Status::Code(0))
    })?;
    let changed = MAP.replace("one", "two");
    standalone.kubectl("apply --server-side -f -", Some(&changed))?.ok();
    assert_eq!(standalone.json("get cm words")?["data"]["a"], "two");
    Ok(())
}

#[test]
fn a_guest_that_fills_the_disk_on_qemu_is_paused() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    is_paused_until_there_is_room(&host, "qemu")
}

#[test]
fn nested_a_guest_that_fills_the_disk_on_native_is_paused() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "a guest that fills the disk",
        || host_with_vireo(scratch.path()),
        |host, monitor| is_paused_until_there_is_room(host, monitor.hypervisor()),
    );
}

/// Why the instance `one` is paused; null if it is not.
fn pause(standalone: &Standalone<'_>) -> Result<(Value, Value), HostError> {
    let vmi = standalone.json("get vmi one")?;
    Ok((condition(&vmi, "Paused")["reason"].clone(), condition(&vmi, "Ready")["status"].clone()))
}

fn is_paused_until_there_is_room(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    const WRITE: &str = "dd if=/dev/zero of=/dev/vda bs=1M count=16 conv=fsync";
    let mut standalone = Standalone::start_in(host, hypervisor, "-t tmpfs -o size=128m tmpfs")?;
    let disk =
        |policy: &str| format!("      - {{name: {policy}, errorPolicy: {policy}, disk: {{bus: virtio}}}}\n");
    let volume = |policy: &str| format!("  - {{name: {policy}, emptyDisk: {{capacity: 4Mi}}}}\n");
    let policies = ["report", "ignore"];
    let disks = policies.map(disk).concat() + "      interfaces:\n";
    let vmi = manifest(host, "one").replace("      interfaces:\n", &disks) + &policies.map(volume).concat();
    standalone.kubectl("apply -f -", Some(&vmi))?.ok();
    standalone.becomes_ready("vmi/one")?;
    let mut guest = standalone.console("one")?;
    guest.ready()?;
    let paused = |standalone: &Standalone<'_>, reason: &str| {
        eventually(&format!("it is {reason}"), BOOT, || {
            Ok(pause(standalone)? == (reason.into(), "False".into()))
        })
    };

    fill(host)?;
    // With other policies than the default, the guest goes on: it gets the error, or does not.
    let small = |disk: &str| format!("dd if=/dev/zero of=/dev/{disk} bs=64k count=16 conv=fsync");
    guest.run(&format!("! {}", small("vdb")), SOON)?;
    guest.run(&small("vdc"), SOON)?;
    assert_eq!(pause(&standalone)?, (Value::Null, "True".into()));
    guest.send(&format!("{WRITE}; echo written $?"))?;
    paused(&standalone, "PausedIOError")?;
    let cause = "not enough space on volume: scratch";
    let message = condition(&standalone.json("get vmi one")?, "Paused")["message"].clone();
    assert!(message.as_str().is_some_and(|message| message.contains(cause)), "{message}");
    let reported = standalone.virtctl("unpause vmi one")?;
    assert!(
        reported.stderr.contains("VMI stays paused: not enough space on volume scratch"),
        "{}",
        reported.stderr
    );
    // Also for a `vireo` that starts on a full disk.
    standalone.lose()?;
    paused(&standalone, "PausedIOError")?;
    let mut guest = standalone.console("one")?;

    // A user pauses it besides: free space alone does not resume it.
    standalone.virtctl("pause vmi one")?.ok();
    paused(&standalone, "PausedByUser")?;
    make_room(host)?;
    eventually("there is room", SOON, || {
        Ok(standalone.kubectl("get --raw /readyz", None)?.status == Status::Code(0))
    })?;
    assert_eq!(pause(&standalone)?.0, "PausedByUser");
    standalone.virtctl("unpause vmi one")?.ok();
    guest.monitor().wait_for("written 0", BOOT)?;
    let goes_on =
        || eventually("it goes on", BOOT, || Ok(pause(&standalone)? == (Value::Null, "True".into())));
    goes_on()?;

    // By itself.
    fill(host)?;
    guest.send(&format!("{WRITE} seek=16; echo written $?"))?;
    paused(&standalone, "PausedIOError")?;
    make_room(host)?;
    guest.monitor().wait_for("written 0", BOOT)?;
    goes_on()?;
    // Events do not get the space that a full disk has left; those that are not stored are sent again.
    eventually("an event says so", SOON, || {
        let warns = |event: &Value| {
            event["type"] == "Warning"
                && event["reason"] == "IOerror"
                && event["message"] == format!("VM Paused due to {cause}")
        };
        Ok(standalone.items("events")?.iter().any(warns))
    })?;
    standalone.kubectl("delete vmi one --timeout=90s", None)?.ok();
    Ok(())
}
