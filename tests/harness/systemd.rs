//! A host with systemd as its first process: a container with the test host's programs, a network of its own, and a disk
//! that outlives a reboot. Needs root, systemd and a cgroup v2 hierarchy, and says so where one is missing.

use std::time::Duration;

use crate::eventually::eventually;
use crate::host::{Host, HostError};
use crate::host::{Invocation, Process};
use crate::wire::Status;

const JOURNAL: &str = "var/log/journal";
const BOOT: &str = include_str!("systemd/boot");
/// Of the first process, and until nothing is being started any more.
const TIMEOUT: Duration = Duration::from_secs(60);
/// What programs need that are not theirs, copied from the test host.
const SETTINGS: &str = "alternatives group ld.so.cache ld.so.conf ld.so.conf.d nsswitch.conf passwd";

/// How a host ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// It is to be booted again.
    Reboot,
    /// It stays off.
    PowerOff,
}

impl Down {
    /// For `systemctl`, and the exit status of its container.
    fn reported(self) -> (&'static str, Status) {
        match self {
            Self::Reboot => ("reboot", Status::Code(128 + 1)),
            Self::PowerOff => ("poweroff", Status::Code(128 + 2)),
        }
    }
}

/// What remains of a host while it is off: its `/etc`, `/var` and `/usr/local`.
#[derive(Debug)]
pub struct Disk<'h> {
    host: &'h Host,
    path: String,
}

impl<'h> Disk<'h> {
    /// The state of a host that was never booted.
    pub fn new(host: &'h Host) -> Result<Self, HostError> {
        let disk = Self { host, path: host.work("machine") };
        let make = format!(
            "mkdir -p {0}/etc/systemd/system {0}/var/log/journal {0}/local/bin; cd /etc; cp -a --parents {SETTINGS} {0}/etc; \
             tr -d - </proc/sys/kernel/random/uuid >{0}/etc/machine-id; echo machine >{0}/etc/hostname",
            disk.path
        );
        host.shell(&make).run()?.ok();
        Ok(disk)
    }

    /// Where the host has a file of it, such as `var/log`.
    pub fn file(&self, path: &str) -> String {
        format!("{}/{path}", self.path)
    }

    /// Starts the container, which has the test host's `/in` as `/srv`.
    pub fn boot(&self) -> Result<SystemdHost<'h>, HostError> {
        self.host.shell(&format!("rm -rf {}/*", self.file(JOURNAL))).run()?.ok();
        let words = ["--mount", "sh", "-c", BOOT, "boot", &self.path, &self.host.input("")];
        let mut first = self.host.command("unshare").args(words).spawn()?;
        let reported = first.wait_for("\n", TIMEOUT).inspect_err(|_| eprintln!("{}", first.stderr()))?;
        Ok(SystemdHost { host: self.host, first, pid: reported.trim().to_owned() })
    }

    /// The journal of a unit since the last boot.
    pub fn journal(&self, unit: &str) -> Result<String, HostError> {
        let words = ["-D", &self.file(JOURNAL), "-u", unit, "-o", "cat", "--no-pager"];
        Ok(self.host.command("journalctl").args(words).run()?.ok())
    }
}

/// A host that is up. Dropping it cuts its power.
#[derive(Debug)]
pub struct SystemdHost<'h> {
    host: &'h Host,
    first: Process<'h>,
    pid: String,
}

impl<'h> SystemdHost<'h> {
    /// Its first process, as the host knows it.
    pub fn pid(&self) -> &str {
        &self.pid
    }

    /// A line for its shell.
    pub fn shell(&self, line: &str) -> Invocation<'h> {
        let words = ["-t", &self.pid, "--all", "--", "/bin/bash", "-e", "-o", "pipefail", "-c", line];
        self.host.command("nsenter").args(words)
    }

    /// Waits until everything is started that is to be at boot.
    pub fn is_up(&self) -> Result<(), HostError> {
        let mut state = String::new();
        let up = eventually("the host is up", TIMEOUT, || {
            state = self.shell("systemctl is-system-running").run()?.stdout;
            Ok(["running\n", "degraded\n"].contains(&state.as_str()))
        });
        up.inspect_err(|_| eprintln!("systemctl is-system-running: {state}"))
    }

    /// Takes it down as its administrator does, and waits until it is.
    ///
    /// # Panics
    /// If it ends in another way.
    pub fn down(mut self, how: Down, deadline: Duration) -> Result<(), HostError> {
        let (verb, wanted) = how.reported();
        self.shell(&format!("systemctl {verb}")).run()?.ok();
        let output = self.first.wait(deadline)?;
        assert_eq!(output.status, wanted, "after systemctl {verb}: {}", output.stderr);
        Ok(())
    }
}
