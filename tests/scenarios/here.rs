//! The harness itself, on this host.

use std::time::Duration;

use vireo_tests::{HostBuilder, HostError, Status};

use crate::SOON;

#[test]
fn commands_end_with_their_host_and_tell_how() -> Result<(), HostError> {
    let host = HostBuilder::new(env!("CARGO_BIN_EXE_nested")).here()?;
    assert_eq!(host.shell("cat; echo here; exit 3").run()?.status, Status::Code(3));
    assert_eq!(host.shell("kill -9 $$").run()?.status, Status::Signal(9));
    assert!(matches!(host.command("/absent").run()?.status, Status::NotStarted(_)));
    assert_eq!(host.shell("ip -o link | grep -vc ' lo:' || true").run()?.ok(), "0\n", "a network of its own");

    let mut cat = host.command("cat").spawn()?;
    cat.write(b"one\ntwo\n")?;
    assert_eq!(cat.wait_for("\n", SOON)?, "one\n");
    assert_eq!(cat.wait_for("two", SOON)?, "two");
    cat.close_stdin()?;
    assert_eq!(cat.wait(SOON)?.ok(), "one\ntwo\n");

    // A daemon that keeps the pipes open delays nothing, and ends with the host.
    let daemon = host.shell("setsid sleep 1000 & echo $$ started").run()?;
    assert!(daemon.ok().ends_with("started\n"));
    let late = host.command("sleep").arg("1000").deadline(Duration::from_millis(50)).run();
    assert!(matches!(late, Err(HostError::Deadline { .. })), "{late:?}");
    let pids = "cat /proc/[0-9]*/comm | grep -c sleep";
    assert_eq!(host.shell(pids).run()?.ok(), "1\n");
    Ok(())
}
