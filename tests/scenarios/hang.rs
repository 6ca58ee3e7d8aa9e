//! Launchers and guests that hang: whatever stands still is killed from outside when its time is up, and nothing of it
//! is left.

use std::time::{Duration, Instant};

use vireo_tests::HostError;
use vireo_tests::eventually::eventually;

use crate::scenarios::standalone::{Standalone, host_with_vireo};

/// What a launcher gets beyond the grace period, with some for a busy host.
const MARGIN: Duration = Duration::from_secs(45);

const LAUNCHER: &str = "virt-launcher";
const QEMU: &str = "qemu-system-x86_64";

/// An instance with nothing to start, which is enough to run.
fn instance(name: &str, grace: u32) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: {grace}\n  domain: {{memory: {{guest: 64Mi}}, devices: {{autoattachGraphicsDevice: false}}}}\n"
    )
}

/// Instances that run, and what there is of each.
struct Running<'h> {
    standalone: Standalone<'h>,
}

impl Running<'_> {
    fn start(&self, name: &str, grace: u32) -> Result<(), HostError> {
        self.standalone.kubectl("apply -f -", Some(&instance(name, grace)))?.ok();
        self.standalone.becomes_ready(&format!("vmi/{name}"))?;
        Ok(())
    }

    /// The ids of the processes of a program that have a word in their command line.
    fn processes(&self, program: &str, mark: &str) -> Result<String, HostError> {
        let line = format!(
            "for pid in $(pidof {program} || true); do if grep -aq '{mark}' /proc/$pid/cmdline; then echo $pid; fi; done"
        );
        Ok(self.standalone.shell(&line)?.trim().to_owned())
    }

    /// Stops the launcher of an instance, or its QEMU.
    fn stop(&self, program: &str, name: &str) -> Result<(), HostError> {
        let mark = match program {
            LAUNCHER => self.standalone.uid(name)?,
            _ => format!("guest=default_{name},"),
        };
        let pid = self.processes(program, &mark)?;
        assert!(pid.parse::<u32>().is_ok(), "not one {program} of {name}: {pid:?}");
        self.standalone.shell(&format!("kill -STOP {pid}")).map(drop)
    }

    /// Waits until an instance is gone with everything that was made for it.
    fn is_gone(&self, name: &str, uid: &str, deadline: Duration) -> Result<(), HostError> {
        let reported =
            || self.standalone.kubectl(&format!("get vmi {name}"), None).map(|reported| reported.stderr);
        let gone = eventually(&format!("{name} is gone"), deadline, || Ok(reported()?.contains("NotFound")));
        if gone.is_err() {
            eprintln!("{}", self.standalone.kubectl(&format!("describe vmi {name}"), None)?.stdout);
        }
        gone?;
        let directories = format!(
            "{} /sys/fs/cgroup/vireo/{uid} /sys/fs/cgroup/unified/vireo/{uid}",
            self.standalone.file(&format!("vmis/{uid}"))
        );
        let left = self.standalone.shell(&format!("ls -d {directories} 2>/dev/null || true"))?;
        assert_eq!(left, "", "left of {name}");
        assert_eq!(self.processes(LAUNCHER, uid)?, "", "launchers of {name}");
        assert_eq!(self.processes(QEMU, &format!("guest=default_{name},"))?, "", "of {name}");
        Ok(())
    }
}

#[test]
fn whatever_hangs_can_be_deleted() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let mut running = Running { standalone: Standalone::start(&host)? };
    let namespaces = || {
        host.shell("find /run/netns -type f 2>/dev/null | sort; true").run().map(|reported| reported.stdout)
    };
    let before = namespaces()?;
    for (name, grace) in [("forced", 600), ("patient", 600), ("guest", 2), ("restarted", 2)] {
        running.start(name, grace)?;
    }
    let uid = |running: &Running<'_>, name: &str| running.standalone.uid(name);

    // Its launcher stands still, and a user has no patience.
    let forced = uid(&running, "forced")?;
    running.stop(LAUNCHER, "forced")?;
    let begin = Instant::now();
    running.standalone.kubectl("delete vmi forced --force --grace-period=0 --wait=false", None)?.ok();
    running.is_gone("forced", &forced, MARGIN)?;
    assert!(begin.elapsed() < MARGIN, "after {:?}", begin.elapsed());

    // One who had patience first; a QEMU that stands still, which its launcher sees to; and a node agent that goes and
    // comes back meanwhile.
    let [patient, guest, restarted] = ["patient", "guest", "restarted"].map(|name| uid(&running, name));
    running.stop(LAUNCHER, "patient")?;
    running.stop(QEMU, "guest")?;
    running.stop(LAUNCHER, "restarted")?;
    running.standalone.kubectl("delete vmi patient guest restarted --wait=false", None)?.ok();
    running.standalone.lose()?;
    let reported =
        running.standalone.kubectl("get vmi patient -o jsonpath={.metadata.deletionTimestamp}", None)?;
    assert!(!reported.ok().is_empty(), "it has ten minutes");
    running.standalone.kubectl("delete vmi patient --force --grace-period=0 --wait=false", None)?.ok();
    running.is_gone("patient", &patient?, MARGIN)?;
    running.is_gone("guest", &guest?, MARGIN)?;
    running.is_gone("restarted", &restarted?, MARGIN)?;

    assert_eq!(namespaces()?, before, "network namespaces are left");
    Ok(())
}
