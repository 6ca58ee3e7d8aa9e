//! VMs that are stopped while they start: at whatever moment, that is no accident and no Warning.

use std::time::Duration;

use vireo_tests::HostError;
use vireo_tests::eventually::eventually;

use crate::scenarios::standalone::{Standalone, host_with_vireo, vm_of};

const SOON: Duration = Duration::from_secs(60);
/// Milliseconds from a start that was acknowledged to its stop: a launcher has been started after some hundred, a guest
/// runs after about a second.
const MOMENTS: [u32; 12] = [0, 30, 60, 90, 120, 180, 240, 320, 420, 550, 750, 1200];

/// One with nothing to start, which is enough to run.
const INSTANCE: &str = "spec:\n  terminationGracePeriodSeconds: 0\n  domain: {memory: {guest: 64Mi}, devices: {autoattachGraphicsDevice: false}}\n";

#[test]
fn a_stop_at_any_moment_of_a_start_is_no_warning() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let standalone = Standalone::start(&host)?;
    standalone.kubectl("apply -f -", Some(&vm_of(INSTANCE, "hasty", "Halted")))?.ok();
    standalone.printable("hasty", "Stopped")?;
    let virtctl = host.input("virtctl");
    for moment in MOMENTS {
        let (seconds, milliseconds) = (moment / 1000, moment % 1000);
        let line =
            format!("{virtctl} start hasty && sleep {seconds}.{milliseconds:03} && {virtctl} stop hasty");
        host.shell(&line).env("KUBECONFIG", &standalone.kubeconfig()).run()?.ok();
        let mut last = String::new();
        let gone = eventually(&format!("stopped after {moment} ms, it is gone"), SOON, || {
            last = standalone.kubectl("get vmi -o yaml", None)?.stdout;
            Ok(last.contains("items: []"))
        });
        gone.inspect_err(|_| eprintln!("{last}"))?;
        let events = standalone.items("events")?;
        // That there is nothing to start is reported where it runs long enough.
        let warnings =
            events.iter().filter(|event| event["type"] == "Warning" && event["reason"] != "NoBootableDevice");
        let warnings: Vec<_> =
            warnings.map(|event| format!("{}: {}", event["reason"], event["message"])).collect();
        assert!(warnings.is_empty(), "stopped after {moment} ms: {warnings:?}");
        let vm = standalone.json("get vm hasty")?;
        assert!(vm["status"].get("startFailure").is_none(), "a stop is no failure: {:#}", vm["status"]);
    }
    assert_eq!(standalone.launchers()?, "0");
    Ok(())
}
