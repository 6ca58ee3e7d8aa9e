//! The images of disks and kernels in a launcher Pod, which the kubelet pulls as those of all Pods.
//!
//! Where the cluster has image volumes, each is a volume of the container `compute`, in which the node agent opens its files.
//! Elsewhere each has an init container, from which the node agent gets its files, and which ends as soon as the node's image
//! store has them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, ImageVolumeSource, LocalObjectReference, PodSpec, Volume};
use vireo_api::names::{
    COMPUTE, IMAGES_DIRECTORY, IMAGES_VOLUME, KERNEL_BOOT_CONTAINER, disk_container, image_mount,
};
use vireo_api::spec::ImageRef;
use vireo_api::v1::VirtualMachineInstance;

use super::template::unprivileged;
use super::volumes::{empty_dir, mount};
use crate::config::{ClusterConfig, ContainerResources};

/// The volume with the launcher, which the containers of images run.
const PROGRAM_VOLUME: &str = "launcher";
/// Where they have it.
const PROGRAM_DIRECTORY: &str = "/vireo";

/// How the files of images come to the node agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageDelivery {
    /// By init containers, on any cluster.
    Containers,
    /// By image volumes.
    Volumes,
}

/// An image that an instance needs.
struct Image<'a> {
    /// Its init container or its volume.
    name: String,
    image: &'a str,
    pull_policy: &'a str,
    pull_secret: &'a str,
    /// The subcommand of the launcher, and its operands.
    offer: (&'static str, Vec<&'a str>),
}

impl Image<'_> {
    /// When it is pulled; absent for Kubernetes' default.
    fn pull_policy(&self) -> Option<String> {
        Some(self.pull_policy.to_owned()).filter(|policy| !policy.is_empty())
    }
}

/// The images of registries that an instance needs.
fn images(vmi: &VirtualMachineInstance) -> Vec<Image<'_>> {
    let disks = vmi.spec.volumes.iter().filter_map(|volume| {
        let disk = volume.container_disk.as_ref()?;
        let path = Some(disk.path.as_str()).filter(|path| !path.is_empty());
        Some(Image {
            name: disk_container(&volume.name),
            image: &disk.image,
            pull_policy: &disk.image_pull_policy,
            pull_secret: &disk.image_pull_secret,
            offer: ("offer-disk", path.into_iter().collect()),
        })
    });
    let firmware = vmi.spec.domain.firmware.as_ref();
    let kernel = firmware.and_then(|firmware| firmware.kernel_boot.as_ref()?.container.as_ref());
    let kernel = kernel.map(|kernel| Image {
        name: KERNEL_BOOT_CONTAINER.to_owned(),
        image: &kernel.image,
        pull_policy: &kernel.image_pull_policy,
        pull_secret: &kernel.image_pull_secret,
        offer: (
            "offer-files",
            [&*kernel.kernel_path, &*kernel.initrd_path]
                .into_iter()
                .filter(|path| !path.is_empty())
                .collect(),
        ),
    });
    let is_pulled = |image: &Image<'_>| matches!(image.image.parse(), Ok(ImageRef::Registry(_)));
    disks.chain(kernel).filter(is_pulled).collect()
}

/// Adds an instance's images to its launcher Pod. `launcher` is the image of the launcher.
pub(super) fn add(
    spec: &mut PodSpec,
    vmi: &VirtualMachineInstance,
    launcher: &str,
    config: &ClusterConfig,
    delivery: ImageDelivery,
) {
    let images = images(vmi);
    if images.is_empty() {
        return;
    }
    let secrets: BTreeSet<&str> =
        images.iter().map(|image| image.pull_secret).filter(|secret| !secret.is_empty()).collect();
    if !secrets.is_empty() {
        let reference = |name: &str| LocalObjectReference { name: name.to_owned() };
        spec.image_pull_secrets = Some(secrets.into_iter().map(reference).collect());
    }
    match delivery {
        ImageDelivery::Containers => add_containers(spec, images, launcher, config),
        ImageDelivery::Volumes => add_volumes(spec, &images),
    }
}

fn add_volumes(spec: &mut PodSpec, images: &[Image<'_>]) {
    let volume = |image: &Image<'_>| Volume {
        name: image.name.clone(),
        image: Some(ImageVolumeSource {
            pull_policy: image.pull_policy(),
            reference: Some(image.image.to_owned()),
        }),
        ..Volume::default()
    };
    spec.volumes.get_or_insert_default().extend(images.iter().map(volume));
    let compute = spec.containers.iter_mut().find(|container| container.name == COMPUTE);
    let mounts = images.iter().map(|image| mount(&image.name, &image_mount(&image.name), true));
    if let Some(compute) = compute {
        compute.volume_mounts.get_or_insert_default().extend(mounts);
    }
}

fn add_containers(spec: &mut PodSpec, images: Vec<Image<'_>>, launcher: &str, config: &ClusterConfig) {
    spec.volumes.get_or_insert_default().extend([IMAGES_VOLUME, PROGRAM_VOLUME].map(empty_dir));
    spec.init_containers.get_or_insert_default().push(Container {
        name: "container-disk-binary".to_owned(),
        image: Some(launcher.to_owned()),
        image_pull_policy: Some(config.image_pull_policy.clone()),
        command: Some(command("/usr/bin/virt-launcher", &["install", PROGRAM_DIRECTORY])),
        volume_mounts: Some(vec![mount(PROGRAM_VOLUME, PROGRAM_DIRECTORY, false)]),
        ..small(&config.container_disk)
    });
    let containers = images.into_iter().map(|image| container(image, config));
    spec.init_containers.get_or_insert_default().extend(containers);
}

fn container(image: Image<'_>, config: &ClusterConfig) -> Container {
    let socket = format!("{IMAGES_DIRECTORY}/{}.sock", image.name);
    let pull_policy = image.pull_policy();
    let (subcommand, operands) = image.offer;
    let arguments = [&[subcommand, "--socket", &socket][..], &operands].concat();
    Container {
        name: image.name.clone(),
        image: Some(image.image.to_owned()),
        image_pull_policy: pull_policy,
        command: Some(command(&format!("{PROGRAM_DIRECTORY}/virt-launcher"), &arguments)),
        volume_mounts: Some(vec![
            mount(PROGRAM_VOLUME, PROGRAM_DIRECTORY, true),
            mount(IMAGES_VOLUME, IMAGES_DIRECTORY, false),
        ]),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..small(&config.container_disk)
    }
}

fn command(program: &str, arguments: &[&str]) -> Vec<String> {
    [program].iter().chain(arguments).map(|&word| word.to_owned()).collect()
}

/// A container of little use and no privilege. Its user is the one who owns the files of container disks.
pub(crate) fn small(resources: &ContainerResources) -> Container {
    Container {
        resources: Some(resources.into()),
        security_context: Some(unprivileged()),
        ..Container::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn added(spec: Value) -> Value {
        added_by(ImageDelivery::Containers, spec)
    }

    fn added_by(delivery: ImageDelivery, spec: Value) -> Value {
        let vmi = serde_json::from_value(json!({ "spec": spec })).unwrap();
        let mut pod = PodSpec::default();
        add(&mut pod, &vmi, "launcher:1", &ClusterConfig::default(), delivery);
        json!(pod)
    }

    #[test]
    fn each_image_of_a_registry_has_a_container_that_offers_its_files() {
        let container =
            json!({"image": "example.com/k:1", "kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initrd"});
        let pod = added(json!({
            "domain": {"firmware": {"kernelBoot": {"container": container}}},
            "volumes": [
                {"name": "root", "containerDisk": {"image": "example.com/d:1", "imagePullSecret": "s", "imagePullPolicy": "Never"}},
                {"name": "data", "containerDisk": {"image": "example.com/d:2", "path": "/data.img", "imagePullSecret": "s"}},
                {"name": "here", "containerDisk": {"image": "oci:/images/x"}},
            ],
        }));
        let containers = pod["initContainers"].as_array().unwrap();
        let names: Vec<&Value> = containers.iter().map(|container| &container["name"]).collect();
        assert_eq!(names, ["container-disk-binary", "volumeroot", "volumedata", "kernel-boot-volume"]);
        let containers = &containers[1..];
        let command = json!([
            "/vireo/virt-launcher",
            "offer-disk",
            "--socket",
            "/var/run/vireo-images/volumedata.sock",
            "/data.img"
        ]);
        assert_eq!(containers[1]["command"], command);
        assert_eq!(containers[2]["command"][4], "/boot/vmlinuz");
        assert_eq!(containers[2]["command"][5], "/boot/initrd");
        assert_eq!(containers[0]["imagePullPolicy"], "Never");
        assert_eq!(pod["imagePullSecrets"], json!([{"name": "s"}]));
        assert_eq!(pod["initContainers"][0]["image"], "launcher:1");
        assert_eq!(pod["volumes"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn an_instance_without_images_gets_none() {
        for delivery in [ImageDelivery::Containers, ImageDelivery::Volumes] {
            assert_eq!(
                added_by(delivery, json!({"volumes": [{"name": "a", "emptyDisk": {"capacity": "1Gi"}}]})),
                json!({"containers": []})
            );
        }
    }
}
