//! Clients of a `vireo` or a cluster: Debian's `kubectl` and our `virtctl`.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use vireo_tests::cluster::Cluster;
use vireo_tests::eventually::eventually;
use vireo_tests::guest::Guest;
use vireo_tests::kubectl::Kubectl;
use vireo_tests::{Host, HostError, Invocation, Output, Process, Status};

use crate::scenarios::probes::condition;

const BOOT: Duration = Duration::from_secs(120);
/// How long a command on a node may take.
const NODE: Duration = Duration::from_secs(180);

/// What finds a `vireo` and may do everything.
pub(crate) struct Client<'h> {
    pub(crate) host: &'h Host,
    /// Its state directory, as the host has it.
    state: String,
    place: Place<'h>,
}

/// Where the server is reached.
enum Place<'h> {
    /// On the host. Where that is nested, what asked it last from outside.
    Host(Mutex<Option<Kubectl>>),
    /// In the network of a process.
    Beside(String),
    /// On the node of a cluster.
    Cluster(&'h Cluster),
    /// Where a kubeconfig says.
    Elsewhere(String),
}

impl<'h> Client<'h> {
    /// Of the `vireo` of a host.
    pub(crate) fn of(host: &'h Host) -> Self {
        Self { host, state: host.work("state"), place: Place::Host(Mutex::default()) }
    }

    /// Of one in the network of a process.
    pub(crate) fn beside(host: &'h Host, state: String, process: &str) -> Self {
        Self { host, state, place: Place::Beside(process.to_owned()) }
    }

    /// Of a cluster.
    pub(crate) fn within(cluster: &'h Cluster) -> Self {
        let host = cluster.host();
        Self { host, state: host.work("state"), place: Place::Cluster(cluster) }
    }

    /// Of a cluster that somebody else made, by a kubeconfig of its administrator.
    pub(crate) fn elsewhere(host: &'h Host, kubeconfig: String) -> Self {
        Self { host, state: host.work("state"), place: Place::Elsewhere(kubeconfig) }
    }

    /// One of our programs or the host's, where the server is reached.
    fn program(&self, name: &str) -> Invocation<'h> {
        let command = match &self.place {
            Place::Host(_) | Place::Elsewhere(_) => self.host.command(name),
            Place::Beside(process) => self.host.command("nsenter").args(["-t", process, "--net", "--", name]),
            // It says itself which kubeconfig there is.
            Place::Cluster(cluster) => cluster.command(name),
        };
        command.env("KUBECONFIG", &self.kubeconfig())
    }

    pub(crate) fn kubeconfig(&self) -> String {
        match &self.place {
            Place::Elsewhere(kubeconfig) => kubeconfig.clone(),
            Place::Host(_) | Place::Beside(_) | Place::Cluster(_) => self.file("api/kubeconfig"),
        }
    }

    /// Applies a manifest. Each of its fields has its effect: `kubectl` prints no warning.
    pub(crate) fn apply_without_warnings(&self, manifest: &str) -> Result<(), HostError> {
        let applied = self.kubectl("apply -f -", Some(manifest))?;
        assert!(!applied.stderr.contains("Warning"), "{}", applied.stderr);
        applied.ok();
        Ok(())
    }

    /// Runs `kubectl`, with something to read if it is given.
    pub(crate) fn kubectl(&self, line: &str, input: Option<&str>) -> Result<Output, HostError> {
        if let Place::Host(outside) = &self.place
            && self.host.is_nested()
        {
            let mut outside = outside.lock().unwrap_or_else(PoisonError::into_inner);
            return self.kubectl_outside(&mut outside, line, input);
        }
        let line = format!("kubectl {line}");
        let command = self.program("/bin/bash").args(["-e", "-o", "pipefail", "-c", &line]);
        let mut kubectl = command.env("HOME", &self.state).spawn()?;
        if let Some(input) = input {
            kubectl.write(input.as_bytes())?;
        }
        kubectl.close_stdin()?;
        kubectl.wait(BOOT)
    }

    /// The same on the test host, for the server of a nested one. Its files have no names there.
    fn kubectl_outside(
        &self,
        outside: &mut Option<Kubectl>,
        line: &str,
        input: Option<&str>,
    ) -> Result<Output, HostError> {
        let kubectl = match outside.take() {
            Some(kubectl) => kubectl,
            None => Kubectl::outside(self.host, &self.shell(&format!("cat {}", self.kubeconfig()))?)?,
        };
        let output = kubectl.run(line, input, BOOT)?;
        // Another start of the server may have another port.
        *outside = (output.status == Status::Code(0)).then_some(kubectl);
        Ok(output)
    }

    /// Waits until a VM or an instance, such as `vmi/one`, is ready. A failure shows what it waits for.
    #[track_caller]
    pub(crate) fn becomes_ready(&self, object: &str) -> Result<(), HostError> {
        let waited = self.kubectl(&format!("wait --for=condition=Ready --timeout=90s {object}"), None)?;
        if waited.status != Status::Code(0) {
            let status = self.kubectl(&format!("get {object} -o jsonpath='{{.status}}'"), None)?.stdout;
            let events = self.kubectl("get events", None)?.stdout;
            panic!("{object} is not ready: {}\nstatus: {status}\nevents:\n{events}", waited.stderr);
        }
        Ok(())
    }

    /// Checks which hypervisor runs the guest of an instance: another one is not always an error of the node agent.
    #[track_caller]
    pub(crate) fn runs_on(&self, name: &str, hypervisor: &str) -> Result<(), HostError> {
        let vmi = self.json(&format!("get vmi {name}"))?;
        let chosen = condition(&vmi, "vireo.io/hypervisor");
        assert_eq!(chosen["reason"], hypervisor, "{name} is on another hypervisor: {chosen:#}");
        Ok(())
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
        Ok(self.try_console(name)?.unwrap_or_else(|why| panic!("{why}")))
    }

    /// The same, or why there is no console.
    pub(crate) fn try_console(&self, name: &str) -> Result<Result<Process<'h>, String>, HostError> {
        let process =
            self.program(&self.host.input("virtctl")).args(["console", name, "--history"]).spawn()?;
        let mut ended = None;
        eventually("virtctl is connected", BOOT, || {
            ended = process.ended()?;
            Ok(ended.is_some() || process.stderr().contains("Successfully connected"))
        })?;
        Ok(match ended {
            Some(status) => Err(format!("virtctl ended with {status:?}:\n{}", process.stderr())),
            None => Ok(process),
        })
    }

    /// Waits until the VM's VMI runs and is another one.
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

    /// The same, while it runs.
    pub(crate) fn start_virtctl(&self, line: &str) -> Result<Process<'h>, HostError> {
        self.program(&self.host.input("virtctl")).args(line.split(' ')).spawn()
    }

    /// The UID of an instance.
    pub(crate) fn uid(&self, name: &str) -> Result<String, HostError> {
        Ok(self.json(&format!("get vmi {name}"))?["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
    }

    /// Where a file of its state is.
    pub(crate) fn file(&self, path: &str) -> String {
        format!("{}/{path}", self.state)
    }

    /// What a shell prints where the server is reached.
    pub(crate) fn on_node(&self, line: &str) -> Result<String, HostError> {
        Ok(self.run_on_node(line)?.ok())
    }

    /// What a shell leaves there, which may fail.
    pub(crate) fn run_on_node(&self, line: &str) -> Result<Output, HostError> {
        let command = self.program("/bin/bash").args(["-e", "-o", "pipefail", "-c", line]);
        command.deadline(NODE).run()
    }

    /// What a command of the host's shell prints.
    pub(crate) fn shell(&self, line: &str) -> Result<String, HostError> {
        Ok(self.host.shell(line).run()?.ok())
    }
}
