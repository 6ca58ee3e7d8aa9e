//! Vireo on a real Kubernetes, of one node and, for a while, of two: its images, its manifests, its chart, `kubectl` and `virtctl`.

mod chart;
mod disturbed;
mod examples;
mod existing;
mod guest;
mod installation;
mod kustomize;
mod kvm;
mod machine;
mod networks;
mod projected;
mod refused;
mod state;
mod upgrade;
mod volumes;
mod writes;

use std::cell::Cell;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use vireo_tests::archive;
use vireo_tests::cluster::{self, Cluster};
use vireo_tests::eventually::eventually;
use vireo_tests::{HostBuilder, HostError, installed, programs};

use crate::scenarios::client::Client;

/// Everything that a cluster does; with room for Kubernetes and images that are made first.
const ALL: Duration = Duration::from_secs(3000);
/// What a busy cluster does in a moment.
const STEP: Duration = Duration::from_secs(120);
const LIMIT: &str = "--timeout=120s";
/// The name that `hack/images` gives the guest's image.
const GUEST: &str = "localhost/vireo/guest:1";
const LAUNCHER: &str = "localhost/vireo/virt-launcher:";

/// The beginning of the names of all images in the manifests.
const REGISTRY: &str = "localhost/vireo/";

/// A KubeVirt object whose guests need no KVM.
const EMULATED: &str = r#"{"spec": {"configuration": {"developerConfiguration": {"useEmulation": true}}}}"#;

/// Vireo in a cluster.
struct Vireo<'h> {
    client: Client<'h>,
    /// Where the instances of the test are.
    namespace: String,
    /// Where the images are, if not on the node: the beginning of their names instead of [`REGISTRY`].
    registry: Option<String>,
    begun: Instant,
    step: Cell<Instant>,
}

impl<'h> Deref for Vireo<'h> {
    type Target = Client<'h>;

    fn deref(&self) -> &Client<'h> {
        &self.client
    }
}

impl<'h> Vireo<'h> {
    fn new(cluster: &'h Cluster, begun: Instant) -> Self {
        Self::with(Client::within(cluster), "default".to_owned(), None, begun)
    }

    fn with(client: Client<'h>, namespace: String, registry: Option<String>, begun: Instant) -> Self {
        Self { client, namespace, registry, begun, step: Cell::new(Instant::now()) }
    }

    /// A manifest with the names that the images have here.
    fn localized(&self, manifest: &str) -> String {
        match &self.registry {
            Some(registry) => manifest
                .replace(REGISTRY, registry)
                .replace("imagePullPolicy: Never", "imagePullPolicy: IfNotPresent"),
            None => manifest.to_owned(),
        }
    }

    /// Says what comes next, and how long the last took.
    fn step(&self, name: &str) {
        let last = self.step.replace(Instant::now()).elapsed();
        eprintln!(
            "cluster: {:6.1} s (+{:.1} s) {name}",
            self.begun.elapsed().as_secs_f32(),
            last.as_secs_f32()
        );
    }

    /// What `kubectl` prints when it succeeds.
    #[track_caller]
    fn ok(&self, line: &str) -> String {
        self.feed(line, "")
    }

    /// The same with something to read.
    #[track_caller]
    fn feed(&self, line: &str, input: &str) -> String {
        let reported = self
            .kubectl(line, Some(&self.localized(input)))
            .unwrap_or_else(|error| panic!("kubectl {line}: {error}"));
        reported.ok()
    }

    /// The error text of a `kubectl` command that must fail.
    fn fails(&self, line: &str, input: &str) -> Result<String, HostError> {
        let reported = self.kubectl(line, Some(input))?;
        assert!(
            reported.status != vireo_tests::Status::Code(0),
            "kubectl {line} succeeds:\n{}",
            reported.stdout
        );
        Ok(reported.stderr)
    }

    /// Waits until an object is as it should be. It may not be there yet.
    fn becomes(
        &self,
        object: &str,
        what: &str,
        mut holds: impl FnMut(&Value) -> bool,
    ) -> Result<Value, HostError> {
        let mut last = Value::Null;
        let reached = eventually(&format!("{object} {what}"), STEP, || {
            let found = self.ok(&format!("get {object} --ignore-not-found -o json"));
            last = if found.is_empty() { Value::Null } else { serde_json::from_str(&found).expect("JSON") };
            Ok(holds(&last))
        });
        reached.inspect_err(|_| eprintln!("{object} as last seen: {last:#}"))?;
        Ok(last)
    }

    fn phase(&self, name: &str, wanted: &str) -> Result<Value, HostError> {
        self.becomes(&format!("vmi {name}"), &format!("is {wanted}"), |vmi| vmi["status"]["phase"] == wanted)
    }

    /// The launcher Pods of an instance.
    fn pods(&self, name: &str) -> Result<Vec<Value>, HostError> {
        self.items(&format!("pods -l kubevirt.io=virt-launcher,vm.kubevirt.io/name={name}"))
    }

    /// The only one.
    fn pod(&self, name: &str) -> Result<Value, HostError> {
        let mut pods = self.pods(name)?;
        assert_eq!(pods.len(), 1, "{pods:#?}");
        Ok(pods.remove(0))
    }

    /// Waits until there is nothing of an instance.
    fn gone(&self, name: &str) -> Result<(), HostError> {
        eventually(&format!("nothing is left of {name}"), STEP, || {
            let vmis = self.kubectl(&format!("get vmi {name}"), None)?;
            Ok(vmis.stderr.contains("NotFound") && self.pods(name)?.is_empty())
        })
    }

    /// The processes of a program, which are the cluster's, with spaces between.
    fn processes(&self, program: &str) -> Result<String, HostError> {
        Ok(self.host.shell(&format!("pidof {program} || true")).run()?.ok().trim().to_owned())
    }
}

/// SHA-256 of files, by their names.
fn digests(paths: &[PathBuf]) -> Vec<(&Path, Vec<u8>)> {
    let digest = |path: &Path| Sha256::digest(std::fs::read(path).expect("the image is read")).to_vec();
    paths.iter().map(|path| (path.as_path(), digest(path))).collect()
}

/// An image of ours is one for skopeo and podman, too, where they are installed.
fn is_read_by_others(archive: &Path) {
    match archive::inspect(archive).expect("skopeo reads it") {
        Some(found) => assert_eq!(found["Os"], "linux", "{found:#}"),
        None => eprintln!("cluster: skipped: there is no skopeo to read {}", archive.display()),
    }
    match archive::load(archive).expect("podman loads it") {
        Some(name) => assert!(name.starts_with(REGISTRY), "{}: {name}", archive.display()),
        None => eprintln!("cluster: skipped: there is no podman to load {}", archive.display()),
    }
}

/// A VM that needs KVM waits for a node with it, where guests run on the native monitor and on QEMU.
#[test]
fn cluster_kvm_node() -> Result<(), HostError> {
    on_cluster("cluster-kvm", |vireo, cluster| {
        installation::install(vireo);
        match node_has_kvm(vireo)? {
            false => kvm::guests_on_a_node_that_joins(vireo, cluster),
            true => {
                eprintln!("cluster: skipped: a node with KVM that joins, since the first one has it");
                Ok(())
            }
        }
    })
}

/// The installation, one guest, and what is refused; in the end nothing of it is left.
#[test]
fn cluster_installation() -> Result<(), HostError> {
    let begun = Instant::now();
    let images = cluster::images();
    let digests = digests(&images);
    assert_eq!(digests, self::digests(&cluster::images()), "images that are made again differ");
    images.iter().for_each(|archive| is_read_by_others(archive));
    eprintln!("cluster: {:6.1} s images are made", begun.elapsed().as_secs_f32());
    on_cluster("cluster", |vireo, cluster| {
        installation::becomes_available(vireo)?;
        installation::is_configured(vireo)?;
        emulates(vireo)?;
        installation::is_monitored(vireo)?;
        guest::runs(vireo)?;
        writes::are_few(vireo, cluster)?;
        refused::fields(vireo)?;
        refused::images(vireo)?;
        refused::quota(vireo)?;
        refused::full_disk(vireo)?;
        leaves_nothing(vireo)?;
        installation::is_removed(vireo, "clusterrole.rbac.authorization.k8s.io/left-by-kubevirt")?;
        chart::is_installed_and_removed(vireo)
    })
}

/// Volumes, state and networks of guests.
#[test]
fn cluster_volumes_and_networks() -> Result<(), HostError> {
    on_cluster("cluster-volumes", |vireo, _| {
        installation::install(vireo);
        emulates(vireo)?;
        volumes::are_kept(vireo, volumes::Storage::Node)?;
        state::is_kept(vireo)?;
        networks::are_attached(vireo)?;
        leaves_nothing(vireo)
    })
}

/// VirtualMachines outlive updates, and the loss of components, of the API server and of their node.
#[test]
fn cluster_machines_outlive_losses() -> Result<(), HostError> {
    on_cluster("cluster-machines", |vireo, _| {
        installation::install(vireo);
        emulates(vireo)?;
        let authority = installation::authority(vireo);
        installation::configure(vireo, installation::DISTURBED)?;
        machine::starts_and_stops(vireo)?;
        machine::is_updated(vireo)?;
        machine::outlives_its_components(vireo)?;
        disturbed::components_are_killed(vireo)?;
        disturbed::api_server_is_away(vireo)?;
        installation::has_another_authority(vireo, &authority)?;
        machine::returns(vireo)?;
        machine::moves_away(vireo)?;
        machine::fails_with_its_node(vireo)?;
        leaves_nothing(vireo)
    })
}

/// Runs a scenario on a cluster of its own, which is up, with nothing of Vireo but its images.
fn on_cluster(
    name: &str,
    scenario: impl FnOnce(&Vireo<'_>, &Cluster) -> Result<(), HostError>,
) -> Result<(), HostError> {
    let begun = Instant::now();
    let cluster = cluster_up(name, &cluster::images(), ALL + disturbed::limit())?;
    let vireo = Vireo::new(&cluster, begun);
    vireo.step("Kubernetes is up");
    scenario(&vireo, &cluster)?;
    vireo.step("end");
    cluster.done();
    Ok(())
}

/// A cluster of its own, in the directory `name`, whose node has the images of Vireo and of a guest.
fn cluster_up(name: &str, images: &[PathBuf], limit: Duration) -> Result<Cluster, HostError> {
    let programs = programs::directory(env!("CARGO_BIN_EXE_nested"));
    let guest = installed::images("archive").map_err(HostError::Start)?.join("disk.oci.tar");
    let builder = HostBuilder::new(env!("CARGO_BIN_EXE_nested")).deadline(limit);
    let builder = builder.file(programs.join("virtctl")).file(programs.join("vireo"));
    let cluster = Cluster::up(builder, &Path::new(env!("CARGO_TARGET_TMPDIR")).join(name))?;
    let host = cluster.host();
    host.shell(&format!("mkdir -p {}", host.work("state"))).run()?.ok();
    images.iter().chain([&guest]).try_for_each(|archive| cluster.import(archive))?;
    Ok(cluster)
}

/// Whether the first node has KVM, once its agent has offered what it has.
fn node_has_kvm(vireo: &Vireo<'_>) -> Result<bool, HostError> {
    let node = vireo.becomes("node node-1", "takes VMIs", |node| {
        node["metadata"]["labels"]["kubevirt.io/schedulable"] == "true"
    })?;
    let count = node["status"]["allocatable"]["devices.kubevirt.io/kvm"].as_str().unwrap_or_default();
    Ok(!matches!(count, "" | "0"))
}

/// Guests are emulated where there is no KVM.
fn emulates(vireo: &Vireo<'_>) -> Result<(), HostError> {
    if node_has_kvm(vireo)? {
        eprintln!("cluster: guests are not emulated, since the node has KVM");
        return Ok(());
    }
    installation::configure(vireo, EMULATED).map(drop)
}

/// What is deleted leaves no trace on the node.
fn leaves_nothing(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("nothing is left on the node");
    vireo.ok(&format!("delete vm,vmi --all {LIMIT}"));
    eventually("all launcher Pods are gone", STEP, || {
        Ok(vireo.items("pods -A -l kubevirt.io=virt-launcher")?.is_empty())
    })?;
    eventually("no process of a guest is left", STEP, || {
        Ok(vireo.processes("qemu-system-x86_64")?.is_empty() && vireo.processes("virt-launcher")?.is_empty())
    })?;
    eventually("the node agent keeps no files of instances", STEP, || {
        Ok(vireo.on_node("ls -A /var/lib/vireo/vmis")?.trim().is_empty())
    })?;
    Ok(())
}
