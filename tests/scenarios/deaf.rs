//! A console that is never read, beside one that is.

use std::time::Duration;

use vireo_tests::HostError;
use vireo_tests::eventually::eventually;

use crate::SOON;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

/// Longer than a client may be silent.
const PATIENCE: Duration = Duration::from_secs(120);
const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;

#[test]
fn a_console_that_never_reads_delays_no_other() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let (standalone, mut guest) = Standalone::with_a_guest(&host)?;

    let files = || -> Result<usize, HostError> {
        let reported = host.shell("ls /proc/$(pidof vireo)/fd | wc -l").run()?.ok();
        Ok(reported.trim().parse().unwrap_or_default())
    };
    let before = files()?;
    let mut deaf = standalone.console_process("one")?;
    assert!(files()? > before, "a client takes files");
    deaf.signal(SIGSTOP)?;
    let lines = guest.run("seq 100000 140000", PATIENCE)?;
    assert_eq!(lines.lines().filter(|line| line.starts_with('1')).count(), 40001, "none is missing here");
    eventually("it is let go of", PATIENCE, || Ok(files()? <= before))?;
    assert_eq!(guest.run("echo still here", SOON)?.trim(), "still here");
    deaf.signal(SIGCONT)?;
    // What it is told of its connection depends on what it had read before.
    eventually("it ends, or has the console again", SOON, || {
        Ok(deaf.ended()?.is_some() || deaf.stderr().contains("Connected again"))
    })
    .inspect_err(|_| eprintln!("the console that was not read: {}", deaf.stderr()))?;
    deaf.signal(SIGKILL)?;
    deaf.wait(SOON)?;
    Ok(())
}
