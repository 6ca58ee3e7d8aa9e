//! The KubeVirt API on this host, through Debian's `kubectl` and our `virtctl`.

use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use vireo_tests::eventually::eventually;
use vireo_tests::guest::Guest;
use vireo_tests::{Host, HostBuilder, HostError, Image, Process, Status};

use crate::SOON;
use crate::scenarios::broken;
use crate::scenarios::client::Client;
use crate::scenarios::node::{host_for_a_node, host_with_a_kernel, manifest};
use crate::scenarios::probes::condition;

const BOOT: Duration = Duration::from_secs(120);
/// In a guest: finds the disk of the claim.
pub(crate) const DATA: &str = "data=/dev/$(grep -lx D4TA /sys/block/vd*/serial | cut -d/ -f4)";
/// The claim `data` of 1 MiB, which is that of the VM with a claim.
pub(crate) const CLAIM: &str = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec:\n  accessModes: [ReadWriteOnce]\n  resources: {requests: {storage: 1Mi}}\n";
/// Where VMs have their IPv6 addresses.
const VMS_IPV6: &str = "fd00:10:201::/64";
/// The notice about the tag of a disk that the guest could not find by it.
const TAG_HAS_NO_EFFECT: &str = "spec.domain.devices.disks[0].tag: has no effect: the config drive has no tag of a disk on virtio or usb without serial: write one";
/// A port of the host that guests reach; others they do not.
const OPEN_PORT: &str = "tcp/8075";
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// A running `vireo` and its clients.
pub(crate) struct Standalone<'h> {
    client: Client<'h>,
    hypervisor: &'static str,
    options: Vec<String>,
    vireo: Process<'h>,
}

/// A host for a node, with `vireo` beside the other programs.
pub(crate) fn host_with_vireo(scratch: &Path) -> Result<HostBuilder, HostError> {
    Ok(with_vireo(host_for_a_node(scratch)?))
}

/// The same, whose guests have the kernel with all drivers.
pub(crate) fn host_with_vireo_and_the_full_kernel(scratch: &Path) -> Result<HostBuilder, HostError> {
    Ok(with_vireo(host_with_a_kernel(scratch, Image::full_kernel, &[])?))
}

fn with_vireo(builder: HostBuilder) -> HostBuilder {
    builder.file(vireo_tests::programs::directory(env!("CARGO_BIN_EXE_nested")).join("vireo"))
}

impl<'h> Deref for Standalone<'h> {
    type Target = Client<'h>;

    fn deref(&self) -> &Client<'h> {
        &self.client
    }
}

fn vireo<'h>(host: &'h Host, hypervisor: &str, options: &[String]) -> Result<Process<'h>, HostError> {
    let mut vireo = host
        .command(&host.input("vireo"))
        .args(["standalone", "--state-dir", &host.work("state"), "--hypervisor", hypervisor])
        .args(["--node-name", "here", "--host-disks", &host.work("data"), "--vm-cidr-ipv6", VMS_IPV6])
        .args(["--images", &host.input(""), "--images", &host.work("images")])
        .args(["--allow-guest-to-host", OPEN_PORT])
        .args(options)
        .env("VIREO_BIOS", &host.input("bios"))
        .spawn()?;
    let reported = vireo.wait_for(&host.work("state/api/kubeconfig"), SOON);
    assert!(reported.is_ok(), "vireo does not print its kubeconfig:\n{}", vireo.stderr());
    Ok(vireo)
}

impl<'h> Standalone<'h> {
    /// With every guest on QEMU.
    pub(crate) fn start(host: &'h Host) -> Result<Self, HostError> {
        Self::start_on(host, "qemu")
    }

    /// The same with a guest `one` that has started.
    pub(crate) fn with_a_guest(host: &'h Host) -> Result<(Self, Guest<'h>), HostError> {
        let standalone = Self::start(host)?;
        standalone.kubectl("apply -f -", Some(&manifest(host, "one")))?.ok();
        standalone.becomes_ready("vmi/one")?;
        let mut guest = standalone.console("one")?;
        guest.ready()?;
        Ok((standalone, guest))
    }

    /// With its state on a file system of its own, by the arguments of `mount`.
    pub(crate) fn start_in(host: &'h Host, hypervisor: &'static str, mount: &str) -> Result<Self, HostError> {
        let state = host.work("state");
        let mount = format!("mkdir -p {state}; mount {mount} {state}");
        host.shell(&mount).run()?.ok();
        Self::of(host, hypervisor, Vec::new())
    }

    pub(crate) fn start_on(host: &'h Host, hypervisor: &'static str) -> Result<Self, HostError> {
        Self::start_with(host, hypervisor, Vec::new())
    }

    /// With more options.
    pub(crate) fn start_with(
        host: &'h Host,
        hypervisor: &'static str,
        options: Vec<String>,
    ) -> Result<Self, HostError> {
        host.shell(&format!("rm -rf {0}; mkdir -p {0}", host.work("state"))).run()?.ok();
        Self::of(host, hypervisor, options)
    }

    fn of(host: &'h Host, hypervisor: &'static str, options: Vec<String>) -> Result<Self, HostError> {
        let vireo = vireo(host, hypervisor, &options)?;
        Ok(Self { client: Client::of(host), hypervisor, options, vireo })
    }

    /// `vireo` is killed, and another is started.
    pub(crate) fn lose(&mut self) -> Result<(), HostError> {
        self.vireo.signal(SIGKILL)?;
        assert_eq!(self.vireo.wait(SOON)?.status, Status::Signal(SIGKILL));
        self.vireo = vireo(self.host, self.hypervisor, &self.options)?;
        Ok(())
    }

    /// The host goes down and comes up again, as its service manager does it.
    fn reboot(&mut self) -> Result<(), HostError> {
        self.vireo.signal(SIGTERM)?;
        self.vireo.wait(SOON)?.ok();
        let vireo = self.host.command(&self.host.input("vireo"));
        let stopped =
            vireo.args(["stop-guests", "--state-dir", &self.host.work("state")]).deadline(BOOT).run()?;
        assert_eq!(stopped.ok(), "1 guests stopped\n");
        assert_eq!(self.launchers()?, "0");
        self.vireo = self::vireo(self.host, self.hypervisor, &self.options)?;
        Ok(())
    }

    pub(crate) fn printable(&self, name: &str, wanted: &str) -> Result<(), HostError> {
        let mut last = Value::Null;
        let reached = eventually(&format!("{name} is {wanted}"), BOOT, || {
            last = self.json(&format!("get vm {name}"))?["status"].clone();
            Ok(last["printableStatus"] == wanted)
        });
        reached.inspect_err(|_| eprintln!("{name} as last seen: {last:#}\n{}", self.vireo.stderr()))
    }

    /// Creates a claim, and waits until it has a disk.
    pub(crate) fn provide(&self, name: &str, size: &str) -> Result<(), HostError> {
        let claim = CLAIM
            .replace("name: data", &format!("name: {name}"))
            .replace("storage: 1Mi", &format!("storage: {size}"));
        self.kubectl("apply -f -", Some(&claim))?.ok();
        let bound = format!("wait pvc {name} --for=jsonpath={{.status.phase}}=Bound --timeout=60s");
        self.kubectl(&bound, None)?.ok();
        Ok(())
    }

    /// Where the claim's disk is.
    fn claim(&self) -> String {
        self.file("claims/default/data/disk.img")
    }

    /// What `vireo` has logged.
    pub(crate) fn log(&self) -> String {
        self.vireo.stderr()
    }

    /// Where it runs.
    pub(crate) fn host(&self) -> &'h Host {
        self.client.host
    }

    pub(crate) fn launchers(&self) -> Result<String, HostError> {
        let line = format!("grep -lz '^{}' /proc/[0-9]*/cmdline | wc -l", self.host.input("virt-launcher"));
        Ok(self.host.shell(&line).run()?.stdout.trim().to_owned())
    }
}

#[test]
fn kubectl_runs_a_guest_on_this_host() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let mut standalone = Standalone::start(&host)?;
    refuses(&standalone)?;
    keeps_plain_objects(&standalone)?;
    warns_of_what_has_no_effect(&standalone)?;

    let tagged = manifest(&host, "one")
        .replace("      - name: scratch\n", "      - name: scratch\n        tag: fast\n");
    let created = standalone.kubectl("create -f -", Some(&tagged))?;
    assert_eq!(created.stderr.trim(), format!("Warning: {TAG_HAS_NO_EFFECT}"));
    standalone.becomes_ready("vmi/one")?;
    let synchronized = condition(&standalone.json("get vmi one")?, "Synchronized");
    assert_eq!(
        (&synchronized["status"], &synchronized["reason"], &synchronized["message"]),
        (&"True".into(), &"FieldsWithoutEffect".into(), &TAG_HAS_NO_EFFECT.into()),
        "{synchronized:#}"
    );
    let table = standalone.kubectl("get vmi", None)?.ok();
    let (head, row) = table.split_once('\n').unwrap_or_default();
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    assert_eq!(words(head), "NAME AGE PHASE IP NODENAME READY");
    assert!(words(row).ends_with("Running 10.201.0.2 here True"), "{table}");
    let described = standalone.kubectl("describe vmi one", None)?.ok();
    for reported in ["Started", "HypervisorChosen", "kubevirt.io/nodeName=here"] {
        assert!(described.contains(reported), "{reported} is missing in:\n{described}");
    }

    let mut guest = standalone.console("one")?;
    let first = guest.ready()?;
    guest.run("echo kept >/tmp/kept", SOON)?;
    standalone.lose()?;
    let seen = standalone.json("get vmi one")?;
    assert_eq!(seen["status"]["phase"], "Running", "acknowledged before the kill");
    let mut guest = standalone.console("one")?;
    assert_eq!(guest.ready()?.boot_id, first.boot_id, "the same guest, by the console's history");
    assert_eq!(guest.run("cat /tmp/kept", SOON)?.trim(), "kept");

    standalone.kubectl("delete vmi one --timeout=90s", None)?.ok();
    let gone = standalone.kubectl("get vmi one", None)?;
    assert!(gone.stderr.contains("NotFound"), "{}", gone.stderr);
    assert_eq!(standalone.launchers()?, "0");
    assert!(standalone.kubectl("get events", None)?.ok().contains("Stopped"));
    owns_a_vm(&mut standalone)?;
    keeps_a_number(&standalone)?;
    keeps_a_pool(&standalone)?;
    leaves_an_orphan(&standalone)?;
    expands_what_is_chosen(&standalone)
}

/// Interchangeable VMIs, as many as `kubectl scale` sets. They have nothing to start, which is enough to run.
fn keeps_a_number(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let set = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstanceReplicaSet\nmetadata: {name: web}\nspec:\n  replicas: 1\n  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n    spec:\n      terminationGracePeriodSeconds: 0\n      domain: {memory: {guest: 64Mi}, devices: {autoattachGraphicsDevice: false, autoattachPodInterface: false}}\n";
    standalone.kubectl("apply -f -", Some(set))?.ok();
    let ready = |number: u32| {
        eventually(&format!("{number} are ready"), BOOT, || {
            let line = "get vmirs web -o jsonpath={.status.replicas},{.status.readyReplicas}";
            Ok(standalone.kubectl(line, None)?.stdout == format!("{number},{number}"))
        })
    };
    ready(1)?;
    standalone.kubectl("scale vmirs/web --replicas=2", None)?.ok();
    ready(2)?;
    let table = standalone.kubectl("get vmirs", None)?.ok();
    assert!(
        table.starts_with("NAME") && table.contains("DESIRED") && table.contains("2         2"),
        "{table}"
    );
    let names = || standalone.kubectl("get vmi -l app=web -o name", None).map(|reported| reported.stdout);
    let before = names()?;
    let first = before.lines().next().unwrap_or_default().to_owned();
    standalone.kubectl(&format!("delete {first} --timeout=60s"), None)?.ok();
    ready(2)?;
    let after = names()?;
    assert!(after.lines().count() == 2 && !after.contains(&first), "{before} became {after}");
    standalone.kubectl("delete vmirs web --timeout=60s", None)?.ok();
    eventually("they go with their set", BOOT, || Ok(names()?.is_empty()))
}

/// VMs with names and numbers, as many as `kubectl scale` sets; a new template starts them anew.
fn keeps_a_pool(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let pool = "apiVersion: pool.kubevirt.io/v1beta1\nkind: VirtualMachinePool\nmetadata: {name: farm}\nspec:\n  replicas: 1\n  selector: {matchLabels: {app: farm}}\n  scaleInStrategy: {proactive: {selectionPolicy: {sortPolicy: DescendingOrder}}}\n  virtualMachineTemplate:\n    metadata: {labels: {app: farm}}\n    spec:\n      runStrategy: Always\n      template:\n        spec:\n          terminationGracePeriodSeconds: 0\n          domain: {memory: {guest: 64Mi}, devices: {autoattachGraphicsDevice: false, autoattachPodInterface: false}}\n";
    standalone.kubectl("apply -f -", Some(pool))?.ok();
    let ready = |number: u32| {
        eventually(&format!("{number} VMs are ready"), BOOT, || {
            let line = "get vmpool farm -o jsonpath={.status.replicas},{.status.readyReplicas}";
            Ok(standalone.kubectl(line, None)?.stdout == format!("{number},{number}"))
        })
    };
    let vms = || standalone.kubectl("get vm -l app=farm -o name", None).map(|reported| reported.stdout);
    ready(1)?;
    standalone.kubectl("scale vmpool/farm --replicas=2", None)?.ok();
    ready(2)?;
    let names = vms()?;
    assert!(names.contains("/farm-0") && names.contains("/farm-1"), "{names}");
    standalone.kubectl("scale vmpool/farm --replicas=1", None)?.ok();
    ready(1)?;
    assert!(vms()?.contains("/farm-0"), "the last one goes first");

    let uid = |kind: &str| {
        standalone
            .kubectl(&format!("get {kind} farm-0 -o jsonpath={{.metadata.uid}}"), None)
            .map(|reported| reported.stdout)
    };
    let (vm, instance) = (uid("vm")?, uid("vmi")?);
    standalone.kubectl("apply -f -", Some(&pool.replace("64Mi", "96Mi")))?.ok();
    eventually("it is started with the new template", BOOT, || {
        let line = "get vmi farm-0 -o jsonpath={.status.phase},{.spec.domain.memory.guest}";
        Ok(standalone.kubectl(line, None)?.stdout == "Running,96Mi")
    })?;
    assert_eq!(uid("vm")?, vm, "the VM is still the same");
    assert_ne!(uid("vmi")?, instance);
    standalone.kubectl("delete vmpool farm --timeout=60s", None)?.ok();
    eventually("they go with their pool", BOOT, || Ok(vms()?.is_empty()))
}

/// A VM that is deleted without its VMI: the next VM of the name takes it over, and without one it can be deleted.
fn leaves_an_orphan(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let vm = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: lone}\nspec:\n  runStrategy: Always\n  template:\n    spec:\n      terminationGracePeriodSeconds: 0\n      domain: {memory: {guest: 64Mi}, devices: {autoattachGraphicsDevice: false, autoattachPodInterface: false}}\n";
    standalone.kubectl("apply -f -", Some(vm))?.ok();
    standalone.printable("lone", "Running")?;
    let first = standalone.uid("lone")?;
    let orphan = || -> Result<(), HostError> {
        standalone.kubectl("delete vm lone --cascade=orphan --timeout=60s", None)?.ok();
        let left = standalone.json("get vmi lone")?;
        assert_eq!(
            (&left["metadata"]["uid"], &left["status"]["phase"]),
            (&first.as_str().into(), &"Running".into())
        );
        assert!(left["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty), "{left:#}");
        Ok(())
    };
    orphan()?;
    standalone.kubectl("apply -f -", Some(vm))?.ok();
    standalone.printable("lone", "Running")?;
    orphan()?;
    standalone.kubectl("delete vmi lone --timeout=60s", None)?.ok();
    assert!(standalone.kubectl("get vm,vmi", None)?.stderr.contains("No resources found"));
    assert_eq!(standalone.launchers()?, "0");
    Ok(())
}

/// An instance type and a preference: in the VM's instance, in what `virtctl expand` prints, and in the rejection of a
/// template that says the same.
fn expands_what_is_chosen(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let chosen = "apiVersion: instancetype.kubevirt.io/v1beta1\nkind: VirtualMachineClusterInstancetype\nmetadata: {name: small}\nspec: {cpu: {guest: 2}, memory: {guest: 64Mi}}\n---\napiVersion: instancetype.kubevirt.io/v1beta1\nkind: VirtualMachinePreference\nmetadata: {name: bare}\nspec: {cpu: {preferredCPUTopology: cores}, devices: {preferredAutoattachGraphicsDevice: false}, preferredTerminationGracePeriodSeconds: 0}\n";
    let vm = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: sized}\nspec:\n  runStrategy: Always\n  instancetype: {name: small}\n  preference: {name: bare, kind: VirtualMachinePreference}\n  template: {spec: {domain: {devices: {autoattachPodInterface: false}}}}\n";
    let early = standalone.kubectl("apply -f -", Some(vm))?;
    assert!(early.stderr.contains("spec.instancetype"), "{}", early.stderr);
    standalone.kubectl("apply -f -", Some(chosen))?.ok();
    let both = vm.replace("{domain: {", "{domain: {memory: {guest: 1Gi}, ");
    let reported = standalone.kubectl("apply -f -", Some(&both))?;
    assert!(reported.stderr.contains("spec.template.spec.domain.memory.guest"), "{}", reported.stderr);
    standalone.kubectl("apply -f -", Some(vm))?.ok();
    standalone.printable("sized", "Running")?;
    let spec = standalone.json("get vmi sized")?["spec"].clone();
    let domain = &spec["domain"];
    assert_eq!(
        (&domain["cpu"]["cores"], &domain["memory"]["guest"]),
        (&2.into(), &"64Mi".into()),
        "{spec:#}"
    );
    assert_eq!(spec["terminationGracePeriodSeconds"], 0);
    let shown: Value =
        serde_json::from_str(&standalone.virtctl("expand --vm sized -o json")?.ok()).unwrap_or_default();
    assert_eq!(shown["spec"]["template"]["spec"]["domain"]["cpu"]["cores"], 2, "{shown:#}");
    assert!(shown["spec"].get("instancetype").is_none());
    let kept = standalone.json("get vm sized")?["status"]["instancetypeRef"]["controllerRevisionRef"]["name"]
        .clone();
    let kept = kept.as_str().unwrap_or_default();
    let revision = standalone.json(&format!("get controllerrevision {kept}"))?;
    assert_eq!(revision["data"]["spec"]["memory"]["guest"], "64Mi");
    standalone.kubectl("delete vm sized --timeout=60s", None)?.ok();
    infers_from_a_claim(standalone)
}

/// The same by the labels of the claim that a VM starts from, through `virtctl create vm`.
fn infers_from_a_claim(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let claim = CLAIM.replace("name: data", "name: labelled");
    standalone.kubectl("apply -f -", Some(&claim))?.ok();
    let infer =
        "create vm --name inferred --run-strategy Halted --volume-pvc src:labelled --infer-preference";
    let manifest = standalone.virtctl(infer)?.ok();
    let early = standalone.kubectl("apply -f -", Some(&manifest))?.stderr;
    let label = "unable to find required instancetype.kubevirt.io/default-preference label on the volume";
    assert!(early.contains(&format!("spec.preference.inferFromVolume: {label}")), "{early}");
    let label = "instancetype.kubevirt.io/default-";
    let line = format!(
        "label pvc labelled {label}instancetype=small {label}preference=bare {label}preference-kind=VirtualMachinePreference"
    );
    standalone.kubectl(&line, None)?.ok();
    for time in ["first", "second"] {
        standalone.kubectl("apply -f -", Some(&manifest))?.ok();
        let spec = standalone.json("get vm inferred")?["spec"].clone();
        let (instancetype, preference) = (&spec["instancetype"], &spec["preference"]);
        assert_eq!(instancetype, &serde_json::json!({"name": "small"}), "{time}: {spec:#}");
        let expected = serde_json::json!({"name": "bare", "kind": "VirtualMachinePreference"});
        assert_eq!(preference, &expected, "{time}: {spec:#}");
    }
    standalone.kubectl("delete vm inferred --timeout=60s", None)?.ok();
    standalone.kubectl("delete pvc labelled --timeout=60s", None)?.ok();
    let volumes = standalone.kubectl("get pv", None)?.ok();
    assert!(!volumes.contains("labelled"), "they go with their claims:\n{volumes}");
    Ok(())
}

/// What waits for a claim says so, and runs once the claim is there.
fn claims_a_disk(standalone: &Standalone<'_>) -> Result<(), HostError> {
    standalone.printable("two", "ErrorPvcNotFound")?;
    let events = standalone.kubectl("get events", None)?.ok();
    assert!(events.contains("PVC default/data does not exist, waiting for it to appear"), "{events}");
    standalone.kubectl("apply -f -", Some(&CLAIM.replace("1Mi", "1Ei")))?.ok();
    standalone.printable("two", "WaitingForVolumeBinding")?;
    let described = standalone.kubectl("describe vmi two", None)?.ok();
    assert!(described.contains("PVC default/data is Pending: "), "{described}");
    standalone.kubectl("delete pvc data --timeout=60s", None)?.ok();
    standalone.printable("two", "ErrorPvcNotFound")?;
    standalone.kubectl("apply -f -", Some(CLAIM))?.ok();
    standalone.kubectl("wait pvc data --for=jsonpath={.status.phase}=Bound --timeout=60s", None)?.ok();
    let table = standalone.kubectl("get pvc", None)?.ok();
    assert!(
        table.starts_with("NAME") && table.contains("Bound") && table.contains("1Mi        RWO"),
        "{table}"
    );
    let table = standalone.kubectl("get sc,pv,pvc", None)?.ok();
    for reported in
        ["storageclass.storage.k8s.io/local (default)", "vireo.io/local", "Immediate", "default/data"]
    {
        assert!(table.contains(reported), "{reported} is missing in:\n{table}");
    }
    let volume = standalone.json("get pvc data")?["spec"]["volumeName"].clone();
    let volume = standalone.json(&format!("get pv {}", volume.as_str().unwrap_or_default()))?;
    let spec = &volume["spec"];
    assert_eq!(
        (&spec["claimRef"]["name"], &spec["capacity"]["storage"]),
        (&"data".into(), &"1Mi".into()),
        "{volume:#}"
    );
    let class = "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: fast}\nprovisioner: vireo.io/local\n";
    let by_hand = "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: mine}\nspec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, hostPath: {path: /tmp}}\n";
    for (manifest, said) in [(class, "there is one StorageClass"), (by_hand, "made with their claims")] {
        let reported = standalone.kubectl("apply --validate=false -f -", Some(manifest))?.stderr;
        assert!(reported.contains(said), "{reported}");
    }
    let reported = standalone.kubectl("delete sc local", None)?.stderr;
    assert!(reported.contains("Forbidden"), "{reported}");
    Ok(())
}

/// A VirtualMachine `two`, halted, one of whose disks is the claim `data`.
pub(crate) fn vm_with_a_claim(host: &Host) -> String {
    let instance = manifest(host, "two")
        .replace(
            "      - name: second\n",
            "      - name: data\n        serial: D4TA\n        disk: {bus: virtio}\n      - name: second\n",
        )
        .replace(
            "  volumes:\n",
            "  volumes:\n  - name: data\n    persistentVolumeClaim: {claimName: data}\n",
        );
    vm_of(&instance, "two", "Halted")
}

/// A VirtualMachine whose instances are like the one of a manifest.
pub(crate) fn vm_of(instance: &str, name: &str, strategy: &str) -> String {
    let (_, spec) = instance.split_once("spec:\n").unwrap_or_default();
    let spec: String = spec.lines().map(|line| format!("    {line}\n")).collect();
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: {name}}}\nspec:\n  runStrategy: {strategy}\n  template:\n    spec:\n{spec}"
    )
}

/// A VirtualMachine from its first start to its end.
fn owns_a_vm(standalone: &mut Standalone<'_>) -> Result<(), HostError> {
    standalone.kubectl("apply -f -", Some(&vm_with_a_claim(standalone.host)))?.ok();
    standalone.printable("two", "Stopped")?;
    let reported = standalone.virtctl("port-forward --stdio vm/two 80")?;
    assert!(reported.stderr.contains("VMI is not started"), "{}", reported.stderr);
    let reported = standalone.virtctl("stop two")?;
    assert!(reported.stderr.contains("VM is not running"), "{}", reported.stderr);
    standalone.virtctl("start two")?.ok();
    claims_a_disk(standalone)?;
    standalone.printable("two", "Running")?;
    let mut guest = standalone.console("two")?;
    // The power button works once the guest's system is up.
    guest.ready()?;
    guest.run(&format!("{DATA}; echo kept >$data; sync"), SOON)?;
    let first = standalone.uid("two")?;
    let larger = r#"patch pvc data --type=merge -p '{"spec":{"resources":{"requests":{"storage":"2Mi"}}}}'"#;
    standalone.kubectl(larger, None)?.ok();
    standalone.virtctl("restart two")?.ok();
    standalone.another_runs("two", &first)?;
    is_steered(standalone)?;
    let second = standalone.uid("two")?;
    standalone.reboot()?;
    standalone.another_runs("two", &second)?;
    standalone.kubectl("delete pvc data --wait=false", None)?.ok();
    let held = standalone.kubectl("get pvc data", None)?.ok();
    assert!(held.contains("Terminating"), "it is in use: {held}");
    standalone.virtctl("stop two --grace-period 0 --force")?.ok();
    standalone.printable("two", "Stopped")?;
    standalone.kubectl("wait pvc data --for=delete --timeout=60s", None)?.ok();
    let left = standalone.host.shell(&format!("test -e {}", standalone.claim())).run()?;
    assert_eq!(left.status, Status::Code(1), "its file is gone, too");
    assert!(standalone.kubectl("get vmi two", None)?.stderr.contains("NotFound"));
    standalone.kubectl("delete vm two --timeout=90s", None)?.ok();
    assert!(
        standalone.kubectl("get vm,vmi,controllerrevisions", None)?.stderr.contains("No resources found")
    );
    assert_eq!(standalone.launchers()?, "0");
    Ok(())
}

/// Paused and resumed, and rebooted by its power button, all as the VM `two`.
fn is_steered(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let mut guest = standalone.console("two")?;
    let first = guest.ready()?;
    let seen = guest.run(&format!("{DATA}; head -n1 $data; cat /sys/block/${{data#/dev/}}/size"), SOON)?;
    assert_eq!(
        seen.split_whitespace().collect::<Vec<_>>(),
        ["kept", "4096"],
        "2 MiB, and what was written to it"
    );
    standalone.virtctl("pause vm two")?.ok();
    standalone.printable("two", "Paused")?;
    let reported = standalone.virtctl("soft-reboot two")?;
    assert!(reported.stderr.contains("VMI is paused"), "{}", reported.stderr);
    standalone.virtctl("unpause vm two")?.ok();
    standalone.printable("two", "Running")?;
    standalone.virtctl("soft-reboot two")?.ok();
    assert_ne!(guest.ready()?.boot_id, first.boot_id, "it has started again");
    is_reached(standalone, &mut guest)?;
    let events = standalone.kubectl("get events", None)?.ok();
    for reason in ["Paused", "Unpaused", "SoftRebooted"] {
        assert!(events.contains(reason), "{reason} is not among {events}");
    }
    Ok(())
}

/// A port of the guest of the VM `two`, as `ssh` would have it: on standard input and output.
fn is_reached(standalone: &Standalone<'_>, guest: &mut Guest<'_>) -> Result<(), HostError> {
    guest.run("udhcpc -i eth0 -n -q -f >/tmp/udhcpc 2>&1 || { cat /tmp/udhcpc; false; }", SOON)?;
    guest.run("echo from the guest >/tmp/file; httpd -p 80 -h /tmp", SOON)?;
    let virtctl = standalone.host.input("virtctl");
    for target in ["vm/two", "vmi/two/default", "vm/two.default"] {
        let line =
            format!("printf 'GET /file HTTP/1.0\\r\\n\\r\\n' | {virtctl} port-forward --stdio {target} 80");
        let reported = standalone.host.shell(&line).env("KUBECONFIG", &standalone.kubeconfig()).run()?;
        assert!(reported.stdout.ends_with("\r\n\r\nfrom the guest\n"), "{target}: {reported:?}");
    }
    for (target, said) in [("vm/none", "\"none\" not found"), ("vmi/none", "not found")] {
        let reported = standalone.virtctl(&format!("port-forward --stdio=true {target} 80"))?;
        assert!(
            reported.status == Status::Code(1) && reported.stderr.contains(said),
            "{target}: {reported:?}"
        );
    }
    Ok(())
}

/// What a server refuses, and how `kubectl` reports it.
fn refuses(standalone: &Standalone<'_>) -> Result<(), HostError> {
    // What only the node finds out is reported in the status; that is the node's scenario.
    for case in broken::CASES.iter().filter(|case| case.name != "no-kernel-path") {
        let manifest = case.manifest("/absent");
        let reported = standalone.kubectl("apply --validate=false -f -", Some(&manifest))?;
        assert_ne!(reported.status, Status::Code(0), "{} is accepted", case.name);
        let missing: Vec<_> = case.fields.iter().filter(|field| !reported.stderr.contains(**field)).collect();
        assert!(missing.is_empty(), "{}: {missing:?} are not named in:\n{}", case.name, reported.stderr);
    }
    let state = standalone.host.work("state");
    let unauthenticated = format!(
        "--kubeconfig /dev/null --server https://127.0.0.1:6443 --certificate-authority {state}/api/ca.crt --token wrong get nodes"
    );
    let reported = standalone.kubectl(&unauthenticated, None)?;
    assert!(reported.stderr.contains("Unauthorized"), "{}", reported.stderr);
    Ok(())
}

/// `kubectl` prints each field that has no effect, when it is created and when it is changed, and none twice.
fn warns_of_what_has_no_effect(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let vmi = manifest(standalone.host, "quiet");
    let created = standalone.kubectl("create -f -", Some(&vm_of(&vmi, "quiet", "Halted")))?;
    assert_eq!(created.stderr, "", "every field has its effect");
    created.ok();
    let tag = r#"[{"op":"add","path":"/spec/template/spec/domain/devices/disks/0/tag","value":"fast"}]"#;
    let changed = standalone.kubectl(&format!("patch vm quiet --type=json -p '{tag}'"), None)?;
    assert_eq!(changed.stderr.trim(), format!("Warning: spec.template.{TAG_HAS_NO_EFFECT}"));
    changed.ok();
    // What is not about the template says nothing of it.
    let changed = standalone.kubectl("label vm quiet tier=web", None)?;
    assert_eq!(changed.stderr, "");
    changed.ok();
    standalone.kubectl("delete vm quiet --timeout=60s", None)?.ok();
    Ok(())
}

const MAP: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: words, labels: {tier: web}}\ndata: {a: one}\n";

/// What `kubectl` does with any object.
fn keeps_plain_objects(standalone: &Standalone<'_>) -> Result<(), HostError> {
    standalone.kubectl("apply -f -", Some(MAP))?.ok();
    assert!(standalone.kubectl("apply -f -", Some(MAP))?.ok().contains("unchanged"));
    let changed = MAP.replace("one", "two");
    let reported = standalone.kubectl("apply --dry-run=server -f -", Some(&changed))?.ok();
    assert!(reported.contains("configured"), "{reported}");
    assert_eq!(standalone.json("get cm words")?["data"]["a"], "one");
    standalone.kubectl("apply -f -", Some(&changed))?.ok();
    assert_eq!(standalone.json("get cm -l tier=web")?["items"][0]["data"]["a"], "two");
    let explained = standalone.kubectl("explain vmi.spec.domain.cpu.cores", None)?.ok();
    assert!(explained.contains("Cores in a socket"), "{explained}");
    standalone.kubectl("delete cm words", None)?.ok();
    assert!(standalone.kubectl("get cm -A", None)?.stderr.contains("No resources found"));
    Ok(())
}
