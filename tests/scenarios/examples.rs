//! The manifests that users are shown: each is applied, reaches the state that it promises, and is deleted. Here they run
//! on a single host; `cluster::examples` runs the same list in a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use vireo_tests::eventually::eventually;
use vireo_tests::{HostError, installed, programs};

use crate::scenarios::client::Client;
use crate::scenarios::node::host_with_programs;
use crate::scenarios::standalone::Standalone;

/// Several guests start at a time, under emulation.
const BOOT: Duration = Duration::from_secs(400);
/// All examples on a busy host.
const ALL: Duration = Duration::from_secs(900);
/// Where one of the examples keeps its data.
const DATA: &str = "/var/lib/vireo-data";
/// The largest manifest.
const LIMIT: usize = 1 << 16;

/// What a manifest promises.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Promise {
    /// Its guests come up to their login prompts.
    Login,
    /// Its VMIs are ready, which their guests need not be yet; objects of other kinds are stored.
    Ready,
    /// The same, or the status of its VMI says this, which depends on the host.
    ReadyOr(&'static str),
    /// The status of its VMI says this, and it is not ready.
    Says(&'static str),
    /// It is refused for this reason.
    Refused(&'static str),
    /// Its objects are stored, if the API server is not too old for them, which it says in these words.
    StoredOr(&'static str),
}

use Promise::{Login, Ready, ReadyOr, Refused, Says, StoredOr};

/// Manifests that run side by side. Those that name others stand behind them. Of guests that come up, two start at a time: the
/// kernels of more that are emulated find their timers too slow.
const GROUPS: [&[(&str, Promise)]; 17] = [
    &[
        // What a Debian does until its prompt is `debian.rs`'s, and takes minutes.
        ("debian", Ready),
        ("standalone/crd", Ready),
        ("vmi-sata", Ready),
        ("vmi-scsi", Ready),
        ("vmi-cdrom", Ready),
        ("vmi-efi", Ready),
        ("vmi-secureboot", Ready),
        ("vmi-smbios", Ready),
        ("vmi-configdrive", Ready),
    ],
    &[
        ("vmi-usb", Ready),
        ("vmi-usbredir", Ready),
        ("vmi-input", Ready),
        ("vmi-windows", ReadyOr("needs KVM")),
        ("vmi-hugepages", ReadyOr("huge pages")),
        ("vmi-watchdog", Ready),
        ("vmi-sound", Ready),
        ("vmi-panic", Ready),
        ("vmi-clock", Ready),
        ("vmi-host-disk", Ready),
        ("vmi-vsock", ReadyOr("/dev/vhost-vsock")),
        ("vmi-dedicated-cpus", ReadyOr("CPUs")),
    ],
    &[
        ("vmi-passt", Ready),
        ("vmi-ports", Ready),
        ("vmi-nic", Ready),
        ("vmi-link-down", Ready),
        ("vmi-dns", Ready),
        ("vmi-no-network", Ready),
        ("vmi-io", Ready),
        ("vmi-cpu", Ready),
        ("vmi-limits", Ready),
        ("vmi-node-affinity", Ready),
        ("vmi-node-selector", Says("didn't match Pod's node affinity")),
    ],
    &[
        ("standalone/vmi-pvc", Ready),
        ("standalone/vmi-block-pvc", Ready),
        ("standalone/vmi-shareable", Ready),
        ("standalone/vm-multipvc", Ready),
        ("standalone/vm-datavolume", Ready),
        ("standalone/vm-hotplug", Ready),
        ("vmi-guest-agent-ping", Says("VMI does not have guest agent connected")),
    ],
    &[
        ("standalone/vmi-configmap", Ready),
        ("standalone/vmi-secret", Ready),
        ("standalone/vmi-service-account", Ready),
        ("standalone/vmi-downward-api", Ready),
        ("standalone/vmi-missing-configmap", Says("ConfigMap default/vmi-missing-configmap does not exist")),
        ("standalone/vmi-sysprep", Ready),
        ("standalone/vmi-network-data", Ready),
        ("vmi-ephemeral", Ready),
        ("standalone/filesystem", Ready),
    ],
    &[
        ("standalone/csmall", Ready),
        ("standalone/clarge", Ready),
        ("standalone/cluster-csmall", Ready),
        ("standalone/virtio", Ready),
        ("standalone/vm-csmall", Ready),
        ("standalone/vm-clarge-virtio", Ready),
        ("standalone/vm-cluster-csmall", Ready),
        ("standalone/vm-run-strategies", Ready),
        ("standalone/vm-priorityclass", Ready),
        ("cluster/vmi-bridge", Refused("spec.domain.devices.interfaces[0].bridge")),
        ("cluster/datavolume", Refused("dataVolumeTemplates")),
        ("cluster/networks", Refused("NetworkAttachmentDefinition")),
    ],
    &[("demo", Login), ("efi", Login)],
    &[("disk", Login), ("standalone/vm", Login)],
    &[("host-disk", Login), ("kernel", Login)],
    &[("standalone/probes", Login), ("standalone/claim", Login)],
    &[("standalone/replicaset", Login)],
    &[("vmi-tpm", Login), ("vmi-masquerade", Login)],
    &[("standalone/pool", Login)],
    &[("standalone/files", Login), ("standalone/credentials", Login)],
    &[("standalone/ephemeral", Login)],
    &[("standalone/instancetype", Login), ("vmi-nocloud", Login)],
    &[
        ("vmi-kernel-boot", Login),
        ("vmi-numa", ReadyOr("huge pages")),
        ("vmi-realtime", ReadyOr("didn't match Pod's node affinity")),
    ],
];

/// What is promised otherwise in a cluster: of one node, without KVM, huge pages, Multus and CDI.
const IN_CLUSTER: [(&str, Promise); 12] = [
    // Rules in CEL are Kubernetes 1.25's.
    ("standalone/crd", StoredOr("x-kubernetes-validations")),
    ("vmi-hugepages", Says("Insufficient hugepages-2Mi")),
    ("vmi-host-disk", Refused("HostDisk feature gate")),
    ("host-disk", Refused("HostDisk feature gate")),
    ("vmi-vsock", Says("Insufficient devices.kubevirt.io/vhost-vsock")),
    ("vmi-dedicated-cpus", Says("didn't match")),
    ("vmi-numa", Says("didn't match")),
    ("vmi-realtime", Says("didn't match")),
    // The kubelet says it, of the Pod: no component may read the ConfigMaps of all.
    ("standalone/vmi-missing-configmap", Says("Scheduling")),
    ("cluster/vmi-bridge", Ready),
    ("cluster/datavolume", Says("debian-root")),
    ("cluster/networks", Refused("NetworkAttachmentDefinition")),
];

/// A manifest of a group.
pub(crate) struct Example {
    name: &'static str,
    promise: Promise,
    text: String,
    objects: Vec<Value>,
}

impl Example {
    /// A manifest as it runs in some place, whose directory for data is `data`.
    fn read(name: &'static str, promise: Promise, data: &str) -> Self {
        let text = std::fs::read_to_string(directory().join(format!("{name}.yaml"))).expect(name);
        let text = text.replace(DATA, data);
        // Guests that need not come up do not hear the power button yet either, and would get all of their time.
        let text = match promise {
            Login => text,
            _ => text.replace("terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 0"),
        };
        let objects = vireo_manifest::documents(&text, LIMIT).expect(name);
        Self { name, promise, text, objects }
    }

    /// What it creates.
    pub(crate) fn objects(&self) -> &[Value] {
        &self.objects
    }
}

/// The groups as they run in a cluster.
pub(crate) fn in_cluster() -> Vec<Vec<Example>> {
    let others = BTreeMap::from(IN_CLUSTER);
    let read = |(name, promise): &(&'static str, Promise)| {
        Example::read(name, *others.get(name).unwrap_or(promise), DATA)
    };
    GROUPS.iter().map(|group| group.iter().map(read).collect()).collect()
}

/// What there is of VMs at one moment.
struct Observed(Vec<Value>);

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

/// The manifests of a directory, by their names in [`GROUPS`].
fn manifests(below: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory().join(below)).expect("the examples are there");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let names = paths.filter(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    names.map(|path| format!("{below}{}", path.file_stem().expect("a name").display())).collect()
}

#[test]
fn every_example_has_a_promise() {
    let given: Vec<String> = GROUPS.concat().iter().map(|(name, _)| (*name).to_owned()).collect();
    let known: BTreeSet<String> = given.iter().cloned().collect();
    assert_eq!(known.len(), given.len(), "one is there twice");
    let found = &(&manifests("") | &manifests("standalone/")) | &manifests("cluster/");
    let missing: Vec<_> = found.difference(&known).collect();
    assert!(missing.is_empty(), "without a promise: {missing:?}");
    let absent: Vec<_> = known.difference(&found).collect();
    assert!(absent.is_empty(), "promised, and not there: {absent:?}");
    assert!(IN_CLUSTER.iter().all(|(name, _)| known.contains(*name)), "{IN_CLUSTER:?}");
    assert!(found.len() >= 60, "{}", found.len());
}

#[test]
fn every_example_runs_and_goes() -> Result<(), HostError> {
    let made = |target| installed::images(target).map_err(HostError::Start);
    let images = made("disk")?;
    made("kernel")?;
    made("debian-disk")?;
    let vireo = programs::directory(env!("CARGO_BIN_EXE_nested")).join("vireo");
    let host = host_with_programs().file(vireo).deadline(ALL).here()?;
    let standalone = Standalone::start(&host)?;
    // What `--images` names may be a link.
    host.shell(&format!("ln -s {} {}", images.display(), host.work("images"))).run()?.ok();
    let data = host.work("data");
    for group in GROUPS {
        let read = |(name, promise): &(&'static str, Promise)| Example::read(name, *promise, &data);
        let group: Vec<Example> = group.iter().map(read).collect();
        run_and_go(&standalone, &group, || Ok(standalone.launchers()? == "0"))?;
    }
    Ok(())
}

/// A manifest is refused for a reason.
fn is_refused(client: &Client<'_>, example: &Example, why: &str) -> Result<(), HostError> {
    let output = client.kubectl("apply -f -", Some(&example.text))?;
    assert!(output.stderr.contains(why), "{}: {}", example.name, output.stderr);
    // The rest of a manifest of which one object is refused.
    client.kubectl("delete --ignore-not-found --wait=false -f -", Some(&example.text))?;
    Ok(())
}

/// The objects of a manifest are stored and deleted, unless the API server is too old for them.
fn is_stored(client: &Client<'_>, example: &Example, why: &str) -> Result<(), HostError> {
    let output = client.kubectl("apply -f -", Some(&example.text))?;
    if output.stderr.contains(why) {
        eprintln!("examples: skipped: {}: the API server knows no {why}", example.name);
        return Ok(());
    }
    output.ok();
    client.kubectl("delete -f -", Some(&example.text))?.ok();
    Ok(())
}

/// Manifests run side by side, and go; `is_empty` says whether no launcher is left.
pub(crate) fn run_and_go(
    client: &Client<'_>,
    group: &[Example],
    is_empty: impl Fn() -> Result<bool, HostError>,
) -> Result<(), HostError> {
    let begin = Instant::now();
    let step = |what: &str| eprintln!("examples: {what} after {:?}", begin.elapsed());
    let mut kept = Vec::new();
    for example in group {
        match example.promise {
            Refused(why) => is_refused(client, example, why)?,
            StoredOr(why) => is_stored(client, example, why)?,
            Login | Ready | ReadyOr(_) | Says(_) => kept.push(example),
        }
    }
    if kept.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = kept.iter().map(|example| example.name).collect();
    eprintln!("examples: {}", names.join(", "));
    client.kubectl("apply -f -", Some(&joined(kept.iter().copied())))?.ok();
    for vm in
        kept.iter().flat_map(|example| &example.objects).filter(|vm| vm["spec"]["runStrategy"] == "Halted")
    {
        client.virtctl(&format!("start {}", name(vm)))?.ok();
    }
    let mut observed = Observed(Vec::new());
    let mut unmet = Vec::new();
    let reached = eventually("the promises are kept", BOOT, || {
        observed = Observed(client.items("vm,vmi,vmirs,vmpool")?);
        unmet = kept.iter().filter(|example| !observed.keeps(example)).map(|example| example.name).collect();
        Ok(unmet.is_empty())
    });
    reached.inspect_err(|_| eprintln!("not kept: {unmet:?} of {:#?}", observed.0))?;
    step("promises are kept");
    for example in kept.iter().filter(|example| matches!(example.promise, Login)) {
        for guest in observed.guests(example) {
            client.console_process(&guest)?.wait_for("login: ", BOOT)?;
        }
    }
    step("guests are up");
    client.kubectl("delete --wait=false -f -", Some(&joined(kept.iter().copied())))?.ok();
    eventually("nothing is left of them", BOOT, || {
        let kinds = "vm,vmi,vmirs,vmpool,pvc,virtualmachineinstancetypes,virtualmachinepreferences";
        let left = client.kubectl(&format!("get {kinds} -A"), None)?;
        Ok(left.stderr.contains("No resources found"))
    })?;
    eventually("no launcher is left", BOOT, is_empty)?;
    step("they are gone");
    Ok(())
}

/// Manifests as one, in their order.
fn joined<'a>(examples: impl Iterator<Item = &'a Example>) -> String {
    examples.map(|example| example.text.as_str()).collect::<Vec<_>>().join("\n---\n")
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Whether a VMI has the condition `Ready`.
fn is_ready(vmi: &Value) -> bool {
    let conditions = vmi["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
}

impl Observed {
    fn find(&self, kind: &str, wanted: &str) -> Option<&Value> {
        self.0.iter().find(|object| object["kind"] == kind && name(object) == wanted)
    }

    fn keeps(&self, example: &Example) -> bool {
        let mut objects = example.objects.iter();
        match example.promise {
            Login | Ready => objects.all(|object| self.runs(object)),
            ReadyOr(why) => objects.all(|object| self.runs(object) || self.says(object, why)),
            Says(why) => objects.all(|object| !self.runs(object) && self.says(object, why)),
            Refused(_) | StoredOr(_) => false,
        }
    }

    /// Whether what an object of a manifest stands for runs.
    fn runs(&self, object: &Value) -> bool {
        let kind = object["kind"].as_str().unwrap_or_default();
        let found = || self.find(kind, name(object));
        match kind {
            "VirtualMachineInstance" => found().is_some_and(is_ready),
            "VirtualMachine" => match object["spec"]["runStrategy"].as_str() {
                Some("Manual") => found().is_some_and(|vm| vm["status"]["printableStatus"] == "Stopped"),
                _ => self.find("VirtualMachineInstance", name(object)).is_some_and(is_ready),
            },
            "VirtualMachineInstanceReplicaSet" | "VirtualMachinePool" => {
                found().is_some_and(|set| set["status"]["readyReplicas"] == object["spec"]["replicas"])
            }
            _ => true,
        }
    }

    fn says(&self, object: &Value, why: &str) -> bool {
        let found = self.find(object["kind"].as_str().unwrap_or_default(), name(object));
        found.is_some_and(|found| found["status"].to_string().contains(why))
    }

    /// The VMIs of a manifest. The names of those of sets begin with that of the set.
    fn guests(&self, example: &Example) -> Vec<String> {
        let vmis = || self.0.iter().filter(|object| object["kind"] == "VirtualMachineInstance").map(name);
        let of = |object: &Value| -> Vec<String> {
            let own = name(object).to_owned();
            match object["kind"].as_str() {
                Some("VirtualMachineInstance" | "VirtualMachine") => vec![own],
                Some("VirtualMachineInstanceReplicaSet" | "VirtualMachinePool") => {
                    vmis().filter(|vmi| vmi.starts_with(&own)).map(str::to_owned).collect()
                }
                _ => Vec::new(),
            }
        };
        let guests: Vec<String> = example.objects.iter().flat_map(of).collect();
        assert!(!guests.is_empty(), "{} has guests", example.name);
        guests
    }
}
