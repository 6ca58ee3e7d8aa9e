//! Guests whose images are in a registry that asks for a user, without Kubernetes.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use vireo_tests::eventually::eventually;
use vireo_tests::registry::{PASSWORD, Registry, USER};
use vireo_tests::{Host, HostError, Process, Status, oci};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::probes::condition;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

const SIGKILL: i32 = 9;
pub(crate) const PORT: u16 = 5000;
const BOOT: Duration = Duration::from_secs(120);
/// What the only disk of the second image holds.
const DISK: [u8; 1024] = [7; 1024];

pub(crate) fn serve<'h>(host: &'h Host, registry: &Registry) -> Result<Process<'h>, HostError> {
    let program = host.command("docker-registry").arg("serve");
    let process = program.arg(registry.configuration().to_string_lossy()).deadline(10 * BOOT).spawn()?;
    let answers = format!("exec 3<>/dev/tcp/localhost/{PORT}");
    eventually("the registry answers", SOON, || Ok(host.shell(&answers).run()?.status == Status::Code(0)))?;
    Ok(process)
}

/// The registry with the guest's kernel, and with a disk that a test can tell.
fn fill(host: &Host, directory: &Path) -> std::io::Result<Registry> {
    let registry = with_a_disk(directory, &DISK)?;
    registry.put("guests/kernel", "v1", Path::new(&host.input("kernel-oci")))?;
    Ok(registry)
}

/// A registry with the image `disk`, whose disk holds these bytes, and `registries.yaml` for nodes.
pub(crate) fn with_a_disk(directory: &Path, bytes: &[u8]) -> std::io::Result<Registry> {
    let registry = Registry::new(&directory.join("registry"), PORT)?;
    let (disk, layout) = (directory.join("disk"), directory.join("layout"));
    fs::write(&disk, bytes)?;
    oci::write_layout(&layout, &[("disk/disk.img", &disk)])?;
    registry.put("disk", "latest", &layout)?;
    let authority = registry.authority();
    let configs = json!({format!("localhost:{PORT}"): {"tls": {"ca_file": authority}}});
    fs::write(directory.join("registries.yaml"), json!({"configs": configs}).to_string())?;
    Ok(registry)
}

/// A Secret of `kubectl create secret docker-registry`, for users of a path of the registry.
pub(crate) fn secret(standalone: &Standalone<'_>, name: &str, password: &str) -> Result<(), HostError> {
    let server = format!("--docker-server=localhost:{PORT}");
    let user = format!("--docker-username={USER} --docker-password={password}");
    standalone.kubectl(&format!("create secret docker-registry {name} {server} {user}"), None)?.ok();
    Ok(())
}

/// A VMI that starts without an operating system, with the disk of the registry.
fn instance(name: &str, options: &Value) -> String {
    instance_of(name, &format!("localhost:{PORT}/disk"), options)
}

/// The same with this image.
pub(crate) fn instance_of(name: &str, image: &str, options: &Value) -> String {
    let mut disk = json!({"image": image});
    disk.as_object_mut()
        .into_iter()
        .for_each(|disk| disk.extend(options.as_object().cloned().unwrap_or_default()));
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "domain": {
                "memory": {"guest": "64Mi"},
                "devices": {
                    "autoattachGraphicsDevice": false,
                    "autoattachPodInterface": false,
                    "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                },
            },
            "volumes": [{"name": "root", "containerDisk": disk}],
        },
    })
    .to_string()
}

/// Waits until it is said why a VMI does not start.
pub(crate) fn says(
    standalone: &Standalone<'_>,
    name: &str,
    reasons: &[&str],
    words: &str,
) -> Result<(), HostError> {
    let mut last = Value::Null;
    let said = eventually(&format!("{name} says {words:?}"), SOON, || {
        last = condition(&standalone.json(&format!("get vmi {name}"))?, "Synchronized");
        let is_reason = reasons.iter().any(|reason| last["reason"] == *reason);
        Ok(is_reason && last["message"].as_str().is_some_and(|message| message.contains(words)))
    });
    said.inspect_err(|_| eprintln!("{name} as last seen: {last:#}"))
}

#[test]
fn images_come_from_a_registry() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let work = host.work("");
    let registry = fill(&host, Path::new(&work)).map_err(HostError::Start)?;
    let mut serving = serve(&host, &registry)?;
    let options = vec!["--registries".to_owned(), host.work("registries.yaml")];
    let standalone = Standalone::start_with(&host, "qemu", options)?;

    boots_a_kernel(&standalone)?;
    is_denied_without_credentials(&standalone)?;
    takes_those_of_the_account(&standalone)?;
    is_not_pulled_when_it_may_not_be(&standalone)?;
    serving.signal(SIGKILL)?;
    serving.wait(SOON)?;
    starts_what_the_node_has(&standalone)?;
    standalone.kubectl("delete vmi --all --timeout=60s", None)?.ok();
    assert_eq!(standalone.launchers()?, "0");
    Ok(())
}

/// A kernel and its RAM disk, with the Secret that the manifest names and that comes later.
fn boots_a_kernel(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let here = format!("image: oci:{}\n", standalone.host.input("kernel-oci"));
    let there = format!("image: localhost:{PORT}/guests/kernel:v1\n          imagePullSecret: puller\n");
    let manifest = manifest(standalone.host, "one");
    assert!(manifest.contains(&here), "{manifest}");
    standalone.kubectl("apply -f -", Some(&manifest.replace(&here, &there)))?.ok();
    says(standalone, "one", &["FailedMount"], "imagePullSecret")?;
    secret(standalone, "puller", PASSWORD)?;
    standalone.becomes_ready("vmi/one")?;
    standalone.console("one")?.ready()?;
    standalone.kubectl("delete vmi one --timeout=60s", None)?.ok();
    Ok(())
}

fn is_denied_without_credentials(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let failed = ["ErrImagePull", "ImagePullBackOff"];
    standalone.kubectl("apply -f -", Some(&instance("anonymous", &json!({}))))?.ok();
    says(standalone, "anonymous", &failed, &format!("localhost:{PORT}: it denies access"))?;
    secret(standalone, "wrong", "guessed")?;
    let wrong = instance("wrong", &json!({"imagePullSecret": "wrong"}));
    standalone.kubectl("apply -f -", Some(&wrong))?.ok();
    says(standalone, "wrong", &failed, &format!("localhost:{PORT}: it denies access"))?;
    let absent = instance("absent", &json!({"imagePullSecret": "puller"}));
    let absent = absent.replace("/disk\"", "/disk:v9\"");
    standalone.kubectl("apply -f -", Some(&absent))?.ok();
    says(standalone, "absent", &failed, "manifest unknown")?;
    standalone.kubectl("delete vmi --all --timeout=60s", None)?.ok();
    Ok(())
}

/// As the kubelet does.
fn takes_those_of_the_account(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let patch = r#"patch serviceaccount default -p '{"imagePullSecrets": [{"name": "puller"}]}'"#;
    standalone.kubectl(patch, None)?.ok();
    standalone.kubectl("apply -f -", Some(&instance("accounted", &json!({}))))?.ok();
    standalone.becomes_ready("vmi/accounted")?;
    let images = standalone.host.shell(&format!("cat {}", standalone.file("images/*.raw"))).run()?;
    assert_eq!(images.stdout.into_bytes(), DISK);
    Ok(())
}

/// Also not by a namespace that has no credentials, of what others have pulled.
fn is_not_pulled_when_it_may_not_be(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let never = instance("never", &json!({"imagePullPolicy": "Never"}));
    let absent = never.replace("/disk\"", "/disk:v9\"");
    standalone.kubectl("apply -f -", Some(&absent))?.ok();
    says(standalone, "never", &["ErrImageNeverPull"], "imagePullPolicy is Never")?;
    standalone.kubectl("delete vmi never --timeout=60s", None)?.ok();
    standalone.kubectl("apply -f -", Some(&never))?.ok();
    standalone.becomes_ready("vmi/never")?;

    standalone.kubectl("create ns others", None)?.ok();
    let others = instance("other", &json!({"imagePullPolicy": "IfNotPresent"}));
    standalone.kubectl("apply -n others -f -", Some(&others))?.ok();
    eventually("others are denied", SOON, || {
        let vmi = standalone.json("get vmi other -n others")?;
        let message = condition(&vmi, "Synchronized")["message"].as_str().unwrap_or_default().to_owned();
        Ok(message.contains("denies access"))
    })?;
    standalone.kubectl("delete ns others --timeout=60s", None)?.ok();
    Ok(())
}

/// While the registry does not answer.
fn starts_what_the_node_has(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let present = instance("present", &json!({"imagePullPolicy": "IfNotPresent"}));
    standalone.kubectl("apply -f -", Some(&present))?.ok();
    standalone.becomes_ready("vmi/present")?;
    let asks = instance("asks", &json!({"imagePullPolicy": "Always"}));
    standalone.kubectl("apply -f -", Some(&asks))?.ok();
    says(standalone, "asks", &["ErrImagePull", "ImagePullBackOff"], "Connection refused")
}
