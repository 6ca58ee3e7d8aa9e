//! Who talks to a `vireo`: Debian's `kubectl` and our `virtctl`.

use std::time::Duration;

use serde_json::Value;
use vireo_tests::eventually::eventually;
use vireo_tests::guest::Guest;
use vireo_tests::{Host, HostError, Invocation, Output, Process};

const BOOT: Duration = Duration::from_secs(120);

/// What finds a `vireo` and may do everything.
pub(crate) struct Client<'h> {
    pub(crate) host: &'h Host,
    /// Its state directory, as the host has it.
    state: String,
    /// A process in whose network it is.
    network: Option<String>,
}

impl<'h> Client<'h> {
    /// Of the `vireo` of a host.
    pub(crate) fn of(host: &'h Host) -> Self {
        Self { host, state: host.work("state"), network: None }
    }

    /// Of one in the network of a process.
    pub(crate) fn beside(host: &'h Host, state: String, process: &str) -> Self {
        Self { host, state, network: Some(process.to_owned()) }
    }

    /// One of our programs or the machine's, where the server is reached.
    fn program(&self, name: &str) -> Invocation<'h> {
        let command = match &self.network {
            Some(process) => self.host.command("nsenter").args(["-t", process, "--net", "--", name]),
            None => self.host.command(name),
        };
        command.env("KUBECONFIG", &self.kubeconfig())
    }

    pub(crate) fn kubeconfig(&self) -> String {
        self.file("api/kubeconfig")
    }

    /// Runs `kubectl`, with something to read if it is given.
    pub(crate) fn kubectl(&self, line: &str, input: Option<&str>) -> Result<Output, HostError> {
        let line = format!("PATH=$PATH:{} kubectl {line}", self.host.input(""));
        let command = self.program("/bin/bash").args(["-e", "-o", "pipefail", "-c", &line]);
        let mut kubectl = command.env("HOME", &self.state).spawn()?;
        if let Some(input) = input {
            kubectl.write(input.as_bytes())?;
        }
        kubectl.close_stdin()?;
        kubectl.wait(BOOT)
    }

    pub(crate) fn json(&self, line: &str) -> Result<Value, HostError> {
        let reported = self.kubectl(&format!("{line} -o json"), None)?.ok();
        Ok(serde_json::from_str(&reported).unwrap_or_else(|error| panic!("{error} in:\n{reported}")))
    }

    /// All objects of a kind.
    pub(crate) fn items(&self, kind: &str) -> Result<Vec<Value>, HostError> {
        Ok(self.json(&format!("get {kind}"))?["items"].as_array().cloned().unwrap_or_default())
    }

    pub(crate) fn console(&self, name: &str) -> Result<Guest<'h>, HostError> {
        Ok(Guest::over(self.console_process(name)?))
    }

    /// `virtctl console` from the beginning, connected.
    pub(crate) fn console_process(&self, name: &str) -> Result<Process<'h>, HostError> {
        let mut process =
            self.program(&self.host.input("virtctl")).args(["console", name, "--history"]).spawn()?;
        eventually("virtctl is connected", BOOT, || {
            if let Some(status) = process.ended()? {
                panic!("virtctl ended with {status:?}:\n{}", process.stderr());
            }
            Ok(process.stderr().contains("Successfully connected"))
        })?;
        Ok(process)
    }

    /// Waits until the machine's instance runs and is another one.
    pub(crate) fn another_runs(&self, name: &str, before: &str) -> Result<(), HostError> {
        eventually("another instance runs", BOOT, || {
            let line = format!("get vmi {name} -o jsonpath={{.metadata.uid}},{{.status.phase}}");
            let seen = self.kubectl(&line, None)?.stdout;
            Ok(seen.ends_with(",Running") && !seen.starts_with(before))
        })
    }

    pub(crate) fn virtctl(&self, line: &str) -> Result<Output, HostError> {
        self.program(&self.host.input("virtctl")).args(line.split(' ')).run()
    }

    /// The UID of an instance.
    pub(crate) fn uid(&self, name: &str) -> Result<String, HostError> {
        Ok(self.json(&format!("get vmi {name}"))?["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
    }

    /// Where a file of its state is.
    pub(crate) fn file(&self, path: &str) -> String {
        format!("{}/{path}", self.state)
    }

    /// What a command of the host's shell prints.
    pub(crate) fn shell(&self, line: &str) -> Result<String, HostError> {
        Ok(self.host.shell(line).run()?.ok())
    }
}
