//! What those who may make VMIs get to see of the node's files when they call them images, and what it costs others when an
//! image is not there, is none, or hangs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use vireo_tests::eventually::eventually;
use vireo_tests::{Host, HostError, Status, oci};

use crate::SOON;
use crate::scenarios::standalone::{Standalone, host_with_vireo, vm_of};

const BOOT: Duration = Duration::from_secs(120);
/// What is in files that are no images.
const SECRET: &str = "s3cr3t";
/// As many as once kept a node from everybody else.
const FIFOS: usize = 20;

/// A VMI that needs nothing else, and little room; its disk and its kernel are in an image.
fn instance(name: &str, disk: &str, kernel: Option<&str>) -> String {
    let firmware = kernel.map_or_else(String::new, |image| {
        format!(
            "    firmware: {{kernelBoot: {{container: {{image: '{image}', kernelPath: /boot/vmlinuz}}}}}}\n"
        )
    });
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  domain:\n    memory: {{guest: 64Mi}}\n    resources: {{requests: {{cpu: 1m}}}}\n{firmware}    devices:\n      autoattachGraphicsDevice: false\n      autoattachPodInterface: false\n      disks: [{{name: root, disk: {{bus: virtio}}}}]\n  volumes: [{{name: root, {disk}}}]\n"
    )
}

fn container_disk(image: &str) -> String {
    format!("containerDisk: {{image: '{image}'}}")
}

const EMPTY: &str = "emptyDisk: {capacity: 1Mi}";

/// The directory of `--images` that the scenario fills.
struct Images {
    path: PathBuf,
    secret: PathBuf,
}

impl Images {
    fn new(host: &Host) -> Result<Self, HostError> {
        let images = Self { path: host.work("images").into(), secret: host.work("secret").into() };
        fs::create_dir_all(&images.path).map_err(HostError::Start)?;
        // As long as a header, of which every field holds it.
        fs::write(&images.secret, SECRET.repeat(200)).map_err(HostError::Start)?;
        Ok(images)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A layout with one disk.
    fn layout(&self, name: &str, disk: &[u8]) -> Result<PathBuf, HostError> {
        let write = || {
            let file = self.path.with_file_name("disk");
            fs::write(&file, disk)?;
            oci::write_layout(&self.at(name), &[("disk/a", &file)])
        };
        write().map_err(HostError::Start).map(|()| self.at(name))
    }

    /// Files that pass for images and are none, by how they are named.
    fn traps(&self) -> Result<Vec<(&'static str, String)>, HostError> {
        let fill = || {
            fs::copy(&self.secret, self.at("file"))?;
            fs::create_dir_all(self.at("directory"))?;
            fs::write(self.at("directory/index.json"), format!("{{\"schemaVersion\": \"{SECRET}\"}}"))?;
            std::os::unix::fs::symlink(&self.secret, self.at("link"))?;
            fs::create_dir_all(self.at("swapped"))?;
            std::os::unix::fs::symlink(&self.secret, self.at("swapped/index.json"))
        };
        fill().map_err(HostError::Start)?;
        let mut qcow2 = SECRET.repeat(50).into_bytes();
        qcow2.splice(..8, *b"QFI\xfb\0\0\0\x03");
        self.layout("qcow2", &qcow2)?;
        let named = |kind: &str, name: &str| format!("{kind}:{}", self.at(name).display());
        Ok(vec![
            ("archive", named("oci-archive", "file")),
            ("linked", named("oci-archive", "link")),
            ("directory", named("oci", "directory")),
            ("swapped", named("oci", "swapped")),
            ("qcow2", named("oci", "qcow2")),
            ("fifo", named("oci-archive", "fifo")),
        ])
    }
}

#[test]
fn images_are_limited_to_the_allowed_directories() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let standalone = Standalone::start(&host)?;
    let images = Images::new(&host)?;
    host.command("mkfifo").arg(images.at("fifo").to_string_lossy()).run()?.ok();

    refuses_what_is_elsewhere(&standalone)?;
    tells_nothing_of_what_is_none(&standalone, &images)?;
    does_not_block_on_fifos(&standalone, &images)?;
    tells_of_what_is_missing_until_it_is_there(&standalone, &images)?;
    lets_go_of_what_hangs(&standalone, &images)?;
    standalone.kubectl("delete vm,vmi --all --timeout=60s", None)?.ok();
    assert_eq!(standalone.launchers()?, "0");
    Ok(())
}

/// Whether or not there is something.
fn refuses_what_is_elsewhere(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let store = standalone.file("api/store.redb");
    for path in ["/etc/shadow", "/proc/self/environ", &store, "/absent", "/etc/shadow/below"] {
        let mut reported = Vec::new();
        for kind in ["oci", "oci-archive"] {
            let image = format!("{kind}:{path}");
            for manifest in [instance("x", &container_disk(&image), None), instance("x", EMPTY, Some(&image))]
            {
                let refused = standalone.kubectl("apply -f -", Some(&manifest))?;
                assert_eq!(refused.status, Status::Code(1), "{image}: {}", refused.stdout);
                reported.push(refused.stderr);
            }
        }
        let why = format!("{path} is not below a directory of --images: ");
        assert!(reported.iter().all(|reported| reported.contains(&why)), "{reported:#?}");
        assert!(reported[0].contains("spec.volumes[0].containerDisk.image: "), "{}", reported[0]);
        assert!(reported[1].contains("spec.domain.firmware.kernelBoot.container.image: "), "{}", reported[1]);
    }
    Ok(())
}

/// Of a VMI: why its image cannot be used.
fn image_error(vmi: &Value) -> Option<&str> {
    let conditions = vmi["status"]["conditions"].as_array()?;
    let failed = conditions.iter().find(|one| one["type"] == "Synchronized")?;
    let reason = failed["reason"].as_str()?;
    ["ErrImagePull", "ImagePullBackOff"].contains(&reason).then(|| failed["message"].as_str()).flatten()
}

fn tells_nothing_of_what_is_none(standalone: &Standalone<'_>, images: &Images) -> Result<(), HostError> {
    let traps = images.traps()?;
    for (name, image) in &traps {
        for manifest in [
            instance(name, &container_disk(image), None),
            instance(&format!("{name}-kernel"), EMPTY, Some(image)),
        ] {
            standalone.kubectl("apply -f -", Some(&manifest))?.ok();
        }
    }
    let mut reported = Vec::new();
    let all = eventually("all say that their images cannot be used", BOOT, || {
        reported = standalone.items("vmi")?;
        Ok(reported.iter().filter_map(image_error).count() == 2 * traps.len())
    });
    all.inspect_err(|_| eprintln!("{reported:#?}"))?;
    for kind in ["vmi", "events"] {
        let all = standalone.kubectl(&format!("get {kind} -A -o yaml"), None)?.ok();
        assert!(!all.contains(SECRET), "{kind}:\n{all}");
    }
    let said = |name: &str, wanted: &str| {
        let vmi = reported.iter().find(|vmi| vmi["metadata"]["name"] == name);
        let message = vmi.and_then(image_error).unwrap_or_default();
        assert!(message.contains(wanted), "{name}: {message}");
    };
    said("archive", "spec.volumes[0].containerDisk: ");
    said("archive", "not an uncompressed tar archive");
    said("archive-kernel", "spec.domain.firmware.kernelBoot.container: ");
    said("linked", "symbolic link");
    said("swapped", "symbolic link");
    said("directory", "index.json of the image is not valid");
    said("qcow2", "the qcow2 image");
    said("fifo", "is not a regular file");
    standalone.kubectl("delete vmi --all --timeout=60s", None)?.ok();
    Ok(())
}

fn does_not_block_on_fifos(standalone: &Standalone<'_>, images: &Images) -> Result<(), HostError> {
    standalone.kubectl("create ns fifos", None)?.ok();
    let disk = container_disk(&format!("oci-archive:{}", images.at("fifo").display()));
    let all: Vec<_> = (0..FIFOS).map(|number| instance(&format!("fifo-{number}"), &disk, None)).collect();
    standalone.kubectl("apply -n fifos -f -", Some(&all.join("---\n")))?.ok();
    standalone.kubectl("apply -f -", Some(&instance("beside", EMPTY, None)))?.ok();
    standalone.becomes_ready("vmi/beside")?;
    standalone.kubectl("delete ns fifos --timeout=60s", None)?.ok();
    Ok(())
}

/// By KubeVirt's words, and to the VirtualMachine, too.
fn tells_of_what_is_missing_until_it_is_there(
    standalone: &Standalone<'_>,
    images: &Images,
) -> Result<(), HostError> {
    let later = images.at("later");
    let disk = container_disk(&format!("oci:{}", later.display()));
    let vm = vm_of(&instance("missing", &disk, None), "missing", "Always");
    let line = "kubectl get vm -w -o jsonpath='{.status.printableStatus} '";
    let watch = standalone.host.shell(line).env("KUBECONFIG", &standalone.kubeconfig());
    let mut watch = watch.deadline(BOOT).spawn()?;
    standalone.kubectl("apply -f -", Some(&vm))?.ok();
    let seen = watch.wait_for("ImagePullBackOff", BOOT)?;
    assert!(seen.contains("ErrImagePull"), "{seen}");
    let missing = standalone.json("get vmi missing")?;
    let message = image_error(&missing).unwrap_or_default();
    let why = format!("cannot open {}: No such file or directory", later.display());
    assert!(message.starts_with("Back-off pulling image") && message.contains(&why), "{message}");
    let events = standalone.kubectl("get events", None)?.ok();
    assert!(events.contains("ErrImagePull") && events.contains("ImagePullBackOff"), "{events}");
    images.layout("later", &[7; 4096])?;
    standalone.printable("missing", "Running")
}

/// What waits for an image, however long, is deleted at once, and others do not wait for it.
fn lets_go_of_what_hangs(standalone: &Standalone<'_>, images: &Images) -> Result<(), HostError> {
    let layout = images.layout("hangs", &[8; 4096])?;
    let lock = standalone.file(&format!("images/{}.lock", stored_name(&layout)));
    // As an import does that is never over.
    let hold =
        standalone.host.command("flock").args([lock.as_str(), "sh", "-c", "echo held; exec sleep 600"]);
    let mut hold = hold.deadline(2 * BOOT).spawn()?;
    hold.wait_for("held", SOON)?;
    let disk = container_disk(&format!("oci:{}", layout.display()));
    for number in 0..8 {
        let manifest = instance(&format!("hangs-{number}"), &disk, None);
        standalone.kubectl("apply -f -", Some(&manifest))?.ok();
    }
    let other = images.layout("other", &[9; 4096])?;
    let disk = container_disk(&format!("oci:{}", other.display()));
    standalone.kubectl("apply -f -", Some(&instance("other", &disk, None)))?.ok();
    standalone.becomes_ready("vmi/other")?;
    // A phase that passes within a second is not written.
    eventually("all others wait", BOOT, || {
        let phases = standalone.kubectl("get vmi -o jsonpath='{.items[*].status.phase}'", None)?.ok();
        Ok(phases.matches("Scheduling").count() == 8)
    })?;
    let waiting: Vec<_> = (0..8).map(|number| format!("hangs-{number}")).collect();
    standalone.kubectl(&format!("delete vmi {} --timeout=30s", waiting.join(" ")), None)?.ok();
    drop(hold);
    Ok(())
}

/// What the only disk of a layout is called in the image store.
fn stored_name(layout: &Path) -> String {
    let index = fs::read(layout.join("index.json")).expect("the layout's index");
    let index: Value = serde_json::from_slice(&index).expect("the layout's index");
    let digest = index["manifests"][0]["digest"].as_str().unwrap_or_default();
    let name = Sha256::digest(format!("disk\0{digest}\0"));
    name.iter().map(|byte| format!("{byte:02x}")).collect()
}
