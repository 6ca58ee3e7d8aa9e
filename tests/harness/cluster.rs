//! A Kubernetes of one node on this machine, by `hack/cluster`.
//!
//! Its processes are in the namespaces of a [`Host`], so that they end with it, and a scenario finds none but them. Of
//! other clusters on the machine it sees nothing.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::host::{Host, HostBuilder, HostError, Invocation};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hack/cluster");
/// From nothing to a node that is ready; where Kubernetes is not built yet, `hack/kube-bin` does it first.
const UP: Duration = Duration::from_secs(900);
/// From the start of a nested host to a node that is ready; the host's image may have to be made first.
const JOIN: Duration = Duration::from_secs(600);
/// Until an image is unpacked.
const IMPORT: Duration = Duration::from_secs(120);
/// What tells most about a cluster in which something went wrong.
const REPORT: &str = "kubectl get pods -A -o wide; kubectl get vm,vmi -A
    kubectl get vmi -A -o jsonpath='{range .items[*]}{.metadata.name}: {.status.phase} {.status.conditions}{\"\\n\"}{end}'
    kubectl get events -A --sort-by=.metadata.creationTimestamp | tail -n 40
    for name in virt-handler virt-controller virt-api virt-operator; do
      kubectl -n kubevirt logs -l kubevirt.io=$name --tail=25 --prefix
    done";

/// A cluster. Dropping it ends its processes and removes its state.
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order: what ends with the host need not be ended one by one.
    host: Host,
    directory: Directory,
    done: Cell<bool>,
}

impl Cluster {
    /// Brings one up in a directory, in which another one may have been left. `builder` is for the host.
    pub fn up(builder: HostBuilder, directory: &Path) -> Result<Self, HostError> {
        let directory = Directory(directory.to_owned());
        directory.down();
        // Programs may have to be fetched before.
        let host = builder.on_this_network().here()?;
        let cluster = Self { host, directory, done: Cell::new(false) };
        cluster.script("up").deadline(UP).run()?.ok();
        Ok(cluster)
    }

    /// Where its processes are found, and programs run that are not on the node.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The log that its API server has of each request.
    pub fn audit_log(&self) -> PathBuf {
        self.directory.0.join("log/audit.log")
    }

    /// A command to run on the node: in its network, with its files, where `kubectl` needs no flags.
    pub fn command(&self, program: &str) -> Invocation<'_> {
        self.script("run").arg(program)
    }

    /// Imports an image, an OCI archive, under its own name.
    pub fn import(&self, archive: &Path) -> Result<(), HostError> {
        let import = self.command("ctr").args(["-n", "k8s.io", "images", "import"]);
        import.arg(archive.to_string_lossy()).deadline(IMPORT).run()?.ok();
        Ok(())
    }

    /// Adds the node `node-2`, a nested host that has KVM and the images of the first node. Returns when it is ready.
    pub fn add_kvm_node(&self) -> Result<(), HostError> {
        self.script("kvm-node").env("VIREO_NESTED", &self.host.input(".agent")).deadline(JOIN).run()?.ok();
        Ok(())
    }

    /// Ends the node `node-2` as a loss of power does.
    pub fn lose_kvm_node(&self) -> Result<(), HostError> {
        self.host.command("pkill").args(["-KILL", "-f", "--", "--tap node-2"]).run()?.ok();
        Ok(())
    }

    /// All went well: nothing is to be reported.
    pub fn done(&self) {
        self.done.set(true);
    }

    fn script(&self, subcommand: &str) -> Invocation<'_> {
        let variable = format!("VIREO_CLUSTER={}", self.directory.0.display());
        self.host.command("env").args([variable.as_str(), SCRIPT, subcommand])
    }

    fn report(&self) -> Result<String, HostError> {
        let reported = self.command("sh").args(["-c", REPORT]).run()?;
        Ok(reported.stdout + &reported.stderr)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.done.get() {
            return;
        }
        match self.report() {
            Ok(reported) => eprintln!("cluster: as it was in the end:\n{reported}"),
            Err(error) => eprintln!("cluster: does not tell how it was in the end: {error}"),
        }
    }
}

/// The state of a cluster on this machine.
#[derive(Debug)]
struct Directory(PathBuf);

impl Directory {
    fn down(&self) {
        let down =
            Command::new(SCRIPT).arg("down").env("VIREO_CLUSTER", &self.0).stdin(Stdio::null()).output();
        match down {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                eprintln!("hack/cluster down: {}", String::from_utf8_lossy(&output.stderr).trim_end())
            }
            Err(error) => eprintln!("hack/cluster down: {error}"),
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.down();
    }
}

/// Vireo's own images, OCI archives made now by `hack/images release` of the debug build.
///
/// # Panics
/// If they cannot be made.
pub fn images() -> Vec<PathBuf> {
    let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../hack/images"));
    script.args(["release", "--profile", "dev"]).stdin(Stdio::null()).stderr(Stdio::inherit());
    crate::programs::forget_package(&mut script);
    let output = script.output().expect("hack/images starts");
    assert!(output.status.success(), "hack/images release: {}", output.status);
    let paths = String::from_utf8_lossy(&output.stdout).into_owned();
    paths.lines().map(PathBuf::from).collect()
}
