//! Another release, and back, while a guest runs.

use serde_json::Value;
use vireo_tests::HostError;
use vireo_tests::eventually::eventually;
use vireo_tests::installed::Login;

use super::guest::{BOOT_ID, is_the_same};
use super::installation::OPERATOR;
use super::{REGISTRY, STEP, Vireo};
use crate::scenarios::probes::condition;

/// The tag of the other release's images.
const TAG: &str = "another-release";
/// In the order in which they are updated.
const COMPONENTS: [&str; 3] = ["virt-handler", "virt-controller", "virt-api"];
/// The label of an instance whose launcher is of another release.
const OUTDATED: &str = "kubevirt.io/outdatedLauncherImage";

/// virt-operator of another release updates the components one after the other, and so does that of the release before when
/// it is applied again. A guest goes on in its launcher, and so does its console, which is open.
pub(super) fn leaves_guests_alone(
    vireo: &Vireo<'_>,
    mut console: Login<'_>,
    boot: &str,
) -> Result<(), HostError> {
    vireo.step("another release is applied");
    let before = vireo.json("-n kubevirt get kubevirt kubevirt")?;
    let before = before["status"]["observedKubeVirtVersion"].as_str().unwrap_or_default().to_owned();
    let pod = vireo.pod("demo")?["metadata"]["uid"].clone();
    let other = manifests(vireo, &before)?;
    for (manifests, version) in [(other.as_str(), TAG), (OPERATOR, &before)] {
        let lost = lost_connections(&mut console)?;
        vireo.feed("apply -f -", manifests);
        becomes_version(vireo, version)?;
        are_updated_in_order(vireo, version)?;
        vireo.step(&format!("its version is {version}"));
        is_connected(&mut console, lost, boot)?;
        vireo.becomes("vmi demo", "tells whether its launcher is of this release", |vmi| {
            vmi["metadata"]["labels"][OUTDATED].is_string() == (version == TAG)
        })?;
    }
    drop(console);
    is_the_same(vireo, &pod, boot)
}

/// The manifests of another release, whose images are those of this one by another name.
fn manifests(vireo: &Vireo<'_>, version: &str) -> Result<String, HostError> {
    let images = ["vireo", "virt-launcher"].map(|name| format!("{REGISTRY}{name}"));
    for image in &images {
        vireo.on_node(&format!("ctr -n k8s.io images tag --force {image}:{version} {image}:{TAG}"))?;
    }
    let [components, launcher] = images;
    let program = vireo.host.input("vireo");
    let other = vireo.shell(&format!(
        "{program} manifests --image {components}:{TAG} --launcher-image {launcher}:{TAG}"
    ))?;
    assert_eq!(OPERATOR.replace(&format!(":{version}\n"), &format!(":{TAG}\n")), other);
    Ok(other)
}

/// Waits until the KubeVirt object says that a version is installed. It is available and deployed all the time.
fn becomes_version(vireo: &Vireo<'_>, version: &str) -> Result<(), HostError> {
    let mut was_progressing = false;
    let kubevirt = vireo.becomes("-n kubevirt kubevirt kubevirt", &format!("is {version}"), |kubevirt| {
        let status = &kubevirt["status"];
        assert_eq!(status["phase"], "Deployed", "{status:#}");
        was_progressing |= status["targetKubeVirtVersion"] == version
            && condition(kubevirt, "Progressing")["reason"] == "UpdateInProgress";
        status["observedKubeVirtVersion"] == version
    })?;
    assert!(was_progressing, "it was said while it was updated");
    assert_eq!(kubevirt["status"]["targetKubeVirtVersion"], version, "{:#}", kubevirt["status"]);
    for (kind, holds) in [("Available", "True"), ("Progressing", "False"), ("Degraded", "False")] {
        assert_eq!(condition(&kubevirt, kind)["status"], holds, "{:#}", kubevirt["status"]);
    }
    Ok(())
}

/// All Pods of the components are of a version, and those of each were created when those of the one before ran.
fn are_updated_in_order(vireo: &Vireo<'_>, version: &str) -> Result<(), HostError> {
    let tag = format!(":{version}");
    let mut pods = Vec::new();
    eventually("the Pods of the other version are gone", STEP, || {
        pods = vireo.items("pods -n kubevirt")?;
        Ok(pods.iter().all(|pod| {
            let image = pod["spec"]["containers"][0]["image"].as_str();
            image.is_some_and(|image| image.ends_with(&tag)) && pod["metadata"]["deletionTimestamp"].is_null()
        }))
    })?;
    // Times of the API server and of the kubelet, in seconds, which compare as their texts do.
    let times = COMPONENTS.map(|component| {
        let pods = pods.iter().filter(|pod| pod["metadata"]["labels"]["kubevirt.io"] == component);
        let time = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let times = pods.map(|pod| {
            let running = &pod["status"]["containerStatuses"][0]["state"]["running"];
            (time(&pod["metadata"]["creationTimestamp"]), time(&running["startedAt"]))
        });
        let (created, started): (Vec<String>, Vec<String>) = times.unzip();
        (
            component,
            created.into_iter().min().unwrap_or_default(),
            started.into_iter().max().unwrap_or_default(),
        )
    });
    for pair in times.windows(2) {
        let [(before, created, started), (after, next, _)] = pair else { continue };
        assert!(!created.is_empty() && !started.is_empty(), "{before} runs: {times:#?}");
        assert!(started <= next, "{before} runs before {after} is updated: {times:#?}");
    }
    Ok(())
}

/// How often the connection of a console was lost, while `virtctl` runs.
fn lost_connections(console: &mut Login<'_>) -> Result<usize, HostError> {
    let process = console.monitor();
    if let Some(status) = process.ended()? {
        panic!("virtctl ended with {status:?}: {}", process.stderr());
    }
    Ok(process.stderr().matches("connection was lost").count())
}

/// The console, whose connection was lost since then, is that of the same guest.
fn is_connected(console: &mut Login<'_>, before: usize, boot: &str) -> Result<(), HostError> {
    eventually("the console is connected again", STEP, || {
        let lost = lost_connections(console)?;
        let again = console.monitor().stderr().matches("Connected again").count();
        Ok(lost > before && again == lost)
    })?;
    assert_eq!(console.run(BOOT_ID)?, boot);
    Ok(())
}
