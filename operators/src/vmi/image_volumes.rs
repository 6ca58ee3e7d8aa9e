//! Whether the images of launcher Pods are volumes: the API server keeps image volumes, and all nodes mount them.
//!
//! An API server whose feature is disabled or absent drops the field of a Pod without saying so. It is therefore asked to
//! create a Pod with an image volume, without storing it, and what it answers is looked at.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ImageVolumeSource, Pod, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client, Error};
use tokio::sync::watch;
use tracing::{debug, info, warn};
use vireo_api::names::NAMESPACE;
use vireo_client::informer::Informer;
use vireo_client::write;

use super::images::ImageDelivery;
use super::template::unprivileged;
use super::volumes::mount;
use crate::node::Node;

/// How often the API server is asked for its version: another one may have image volumes.
const INTERVAL: Duration = Duration::from_secs(60);
const VOLUME: &str = "image";

/// Whether a cluster has image volumes.
pub struct ImageVolumes {
    client: Client,
    nodes: Arc<Informer<Node>>,
    /// Whether the API server keeps them. Absent until it was asked.
    served: watch::Sender<Option<bool>>,
}

impl std::fmt::Debug for ImageVolumes {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("ImageVolumes").field("served", &*self.served.borrow()).finish_non_exhaustive()
    }
}

impl ImageVolumes {
    /// Those of the cluster of a client with these nodes, whose cache the caller keeps. Nothing is known yet.
    pub fn new(client: Client, nodes: Arc<Informer<Node>>) -> Self {
        Self { client, nodes, served: watch::Sender::new(None) }
    }

    /// How the files of images come to node agents now.
    pub fn delivery(&self) -> ImageDelivery {
        self.delivery_to(self.nodes.all().iter().map(|node| &node.value))
    }

    fn delivery_to<'n>(&self, nodes: impl Iterator<Item = &'n Node>) -> ImageDelivery {
        // Without nodes, an instance waits for one that may have an older kubelet.
        let mounting = nodes.filter_map(Node::mounts_images).reduce(|all, one| all && one);
        match (*self.served.borrow(), mounting) {
            (Some(true), Some(true)) => ImageDelivery::Volumes,
            _ => ImageDelivery::Containers,
        }
    }

    /// Waits until the API server was asked.
    pub async fn synced(&self) {
        // The sender is a field: it is not gone.
        let _ = self.served.subscribe().wait_for(Option::is_some).await;
    }

    /// Asks the API server now, and whenever it is another one, until it is dropped.
    pub async fn run(&self) {
        let mut answered = None;
        loop {
            if let Err(error) = self.ask(&mut answered).await {
                debug!(%error, "the API server does not say whether it has image volumes");
                // Init containers serve on any cluster meanwhile.
                self.served.send_if_modified(|served| served.is_none() && served.replace(false).is_none());
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Asks the API server, unless it is of the version that has answered.
    async fn ask(&self, answered: &mut Option<String>) -> Result<(), Error> {
        let version = self.client.apiserver_version().await?.git_version;
        if answered.as_ref() == Some(&version) {
            return Ok(());
        }
        let served = match is_kept(&self.client).await {
            Err(error) if write::rejection(&error).is_some() => {
                warn!(%error, "a Pod with an image volume is refused");
                false
            }
            kept => kept?,
        };
        match served {
            true => {
                info!(version, "the API server has image volumes: images are volumes if all nodes mount them")
            }
            false => info!(version, "the API server has no image volumes: images have init containers"),
        }
        *answered = Some(version);
        self.served.send_replace(Some(served));
        Ok(())
    }
}

/// Whether the API server keeps the image volume of a Pod, which it does not store.
async fn is_kept(client: &Client) -> Result<bool, Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let answered = pods.create(&PostParams { dry_run: true, ..PostParams::default() }, &probe()).await?;
    let volumes = answered.spec.and_then(|spec| spec.volumes).unwrap_or_default();
    Ok(volumes.iter().any(|volume| volume.name == VOLUME && volume.image.is_some()))
}

fn probe() -> Pod {
    let image = Some("localhost/vireo/image-volume".to_owned());
    let container = Container {
        name: "probe".to_owned(),
        image: image.clone(),
        security_context: Some(unprivileged()),
        volume_mounts: Some(vec![mount(VOLUME, "/image", true)]),
        ..Container::default()
    };
    let volume = Volume {
        name: VOLUME.to_owned(),
        image: Some(ImageVolumeSource { reference: image, pull_policy: None }),
        ..Volume::default()
    };
    Pod {
        metadata: ObjectMeta {
            generate_name: Some("image-volume-".to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            automount_service_account_token: Some(false),
            containers: vec![container],
            volumes: Some(vec![volume]),
            ..PodSpec::default()
        }),
        status: None,
    }
}

#[cfg(test)]
mod tests;
