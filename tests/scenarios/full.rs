//! A disk that is full: writes and `/readyz` say so, reads go on, and writes go on when there is room.

use vireo_tests::eventually::eventually;
use vireo_tests::{HostError, Status};

use crate::SOON;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: words}\ndata: {a: one}\n";

/// One that is larger than what filling a disk leaves.
fn large(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{a: {}}}\n",
        "x".repeat(900_000)
    )
}

#[test]
fn a_full_disk_refuses_writes_and_nothing_else() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let standalone = Standalone::start_in(&host, "tmpfs", "size=24m")?;
    standalone.kubectl("apply --server-side -f -", Some(MAP))?.ok();
    assert_eq!(standalone.kubectl("get --raw /readyz", None)?.ok(), "ok");
    let fill = format!("cat /dev/zero >{}", host.work("state/filler"));
    assert_ne!(host.shell(&fill).run()?.status, Status::Code(0), "the disk is not full");
    let unready = standalone.kubectl("get --raw /readyz", None)?;
    assert_ne!(unready.status, Status::Code(0), "{}", unready.stdout);
    assert!(unready.stderr.contains("[-]state-directory failed: no space left"), "{}", unready.stderr);
    assert_eq!(standalone.kubectl("get --raw /livez", None)?.ok(), "ok", "a restart would not help");
    let mut refused = None;
    for number in 0..20 {
        let told = standalone.kubectl("create -f -", Some(&large(&format!("large-{number}"))))?;
        if told.status != Status::Code(0) {
            refused = Some(told.stderr);
            break;
        }
    }
    let told = refused.expect("a full disk takes everything");
    assert!(told.contains("No space left on device"), "{told}");
    assert_eq!(standalone.json("get cm words")?["data"]["a"], "one", "what is there is read");
    let unready = standalone.kubectl("get --raw /readyz", None)?.stderr;
    assert!(unready.contains("[-]store failed: "), "{unready}");
    host.command("rm").arg(host.work("state/filler")).run()?.ok();
    eventually("it is ready again", SOON, || {
        Ok(standalone.kubectl("get --raw /readyz", None)?.status == Status::Code(0))
    })?;
    let changed = MAP.replace("one", "two");
    standalone.kubectl("apply --server-side -f -", Some(&changed))?.ok();
    assert_eq!(standalone.json("get cm words")?["data"]["a"], "two");
    Ok(())
}
