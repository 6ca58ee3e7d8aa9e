//! One scenario: a host, a load in it, and what a failure is taken for.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use crate::guest::Monitor;
use crate::host::{Host, HostBuilder, HostError};
use crate::wire::Status;

/// Runs `load` under our monitor in a fresh host.
///
/// A stall or a death (a [`HostError`]) is not taken for ours at once, for the emulation of virtualization itself
/// fails now and then: the same load runs under QEMU in the same host, both results are printed, and the scenario is
/// started once more in another host, aloud (`NESTED RETRY`) and written to `nested-retries.log` in the target
/// directory. A second failure is final. A wrong answer (a panic) or a program that is missing is never retried.
///
/// With `VIREO_MONITOR=qemu` in the environment the load runs under QEMU alone, to check the scenario itself.
///
/// # Panics
/// If the scenario fails.
pub fn run(
    name: &str,
    host: impl Fn() -> Result<HostBuilder, HostError>,
    load: impl Fn(&Host, Monitor) -> Result<(), HostError>,
) {
    if tests_qemu(name) {
        let host = host()
            .and_then(HostBuilder::start)
            .unwrap_or_else(|error| panic!("{name}: {}", reported(&error)));
        return load(&host, Monitor::Qemu).unwrap_or_else(|error| panic!("{name}: {}", reported(&error)));
    }
    twice(name, || {
        let host = host()?.start()?;
        load(&host, Monitor::Vmm).inspect_err(|error| control(name, error, || load(&host, Monitor::Qemu)))
    });
}

/// As [`run`], for a load that starts its hosts itself: the control runs in fresh ones.
///
/// # Panics
/// If the scenario fails.
pub fn run_in_hosts(name: &str, load: impl Fn(Monitor) -> Result<(), HostError>) {
    if tests_qemu(name) {
        return load(Monitor::Qemu).unwrap_or_else(|error| panic!("{name}: {}", reported(&error)));
    }
    twice(name, || load(Monitor::Vmm).inspect_err(|error| control(name, error, || load(Monitor::Qemu))));
}

/// Whether a scenario is to check itself.
fn tests_qemu(name: &str) -> bool {
    let qemu = std::env::var_os("VIREO_MONITOR").is_some_and(|monitor| monitor == "qemu");
    if qemu {
        eprintln!("nested: VIREO_MONITOR=qemu: {name} does not test our monitor");
    }
    qemu
}

fn twice(name: &str, attempt: impl Fn() -> Result<(), HostError>) {
    let Err(first) = attempt() else { return };
    note(&format!("NESTED RETRY 1/1 {name}: {}", reported(&first)));
    if let Err(second) = attempt() {
        panic!(
            "{name} failed twice in fresh hosts.\nfirst: {}\nthen: {}",
            reported(&first),
            reported(&second)
        );
    }
}

/// No emulation makes a program be missing: that is the scenario's own fault.
fn lacks_a_program(error: &HostError) -> bool {
    matches!(error, HostError::Ended { status: Status::NotStarted(_), .. })
}

/// Runs the load under QEMU, and says what that means for a failure under ours.
fn control(name: &str, error: &HostError, load: impl Fn() -> Result<(), HostError>) {
    assert!(!lacks_a_program(error), "{name}: {}", reported(error));
    let here = || load().map_err(|error| reported(&error));
    let verdict = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(here)) {
        Ok(Ok(())) => "passes: the fault is likely ours".to_owned(),
        Ok(Err(error)) => format!("fails too ({error}): the fault is likely the emulation's"),
        Err(_) => "gives a wrong answer: the scenario itself may be at fault".to_owned(),
    };
    note(&format!("NESTED CONTROL {name}: vmm: {}; under QEMU it {verdict}", reported(error)));
}

/// Prints the line and keeps it, so that a passing run still shows how often it had to try again.
fn note(line: &str) {
    eprintln!("{line}");
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), Into::into);
    let log = OpenOptions::new().create(true).append(true).open(target.join("nested-retries.log"));
    if let Err(error) = log.and_then(|mut log| writeln!(log, "{line}")) {
        eprintln!("nested: cannot keep that line: {error}");
    }
}

fn reported(error: &HostError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
