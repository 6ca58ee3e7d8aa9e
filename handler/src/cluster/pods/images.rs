//! Imports the files of images that containers of launcher Pods offer.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tracing::info;
use vireo_client::controller::{self, Reconcile, Requeue};
use vireo_client::events::{EventRecorder, Reason, Regarding};
use vireo_client::queue::WorkQueue;
use vireo_client::{Kind, ObjectKey};

use crate::launcher;
use crate::launcher::link::chain;
use crate::launcher::pod::ImageContainer;
use crate::node::Node;
use crate::settings::Runtime;
use crate::storage::{ERR_IMAGE_PULL, ImageError};

const COMPONENT: &str = "virt-handler";
/// Delay after the first import that failed, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// How many images are imported at a time; the pool of imports has a limit of its own.
const WORKERS: usize = 4;

/// An image that the kubelet has pulled, in a container that runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PulledImage {
    /// The UID of the Pod.
    pub(super) pod: String,
    /// The container.
    pub(super) container: String,
    /// The ID that the runtime gave the container.
    pub(super) id: String,
    /// The digest of the image.
    pub(super) digest: String,
}

/// The same with the VMI that needs it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct OfferedImage {
    pub(super) vmi: ObjectKey,
    pub(super) uid: String,
    pub(super) image: PulledImage,
}

impl std::fmt::Display for OfferedImage {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(form, "{} of {}", self.image.container, self.vmi)
    }
}

/// Imports offered images.
pub(super) struct ImageImporter {
    node: Arc<Node>,
    recorder: EventRecorder,
    queue: Arc<WorkQueue<OfferedImage>>,
}

impl ImageImporter {
    pub(super) fn new(client: Client, node: Arc<Node>) -> Self {
        let recorder = EventRecorder::new(client, COMPONENT, Some(&node.settings.node_name));
        Self { node, recorder, queue: Arc::new(WorkQueue::new(RETRY.0, RETRY.1)) }
    }

    pub(super) fn queue(&self) -> Arc<WorkQueue<OfferedImage>> {
        Arc::clone(&self.queue)
    }

    pub(super) async fn run(&self) {
        controller::run(self, &self.queue, WORKERS).await;
    }
}

impl Reconcile for ImageImporter {
    type Key = OfferedImage;
    type Error = ImageError;
    const NAME: &'static str = "virt-handler-image";

    async fn reconcile(&self, offered: &OfferedImage) -> Result<Requeue, ImageError> {
        let Runtime::Pods(pods) = &self.node.settings.runtime else { return Ok(None) };
        let OfferedImage { vmi, uid, image } = offered;
        let is_needed = uid.parse().ok().and_then(|uid| self.node.launcher_pod(&vmi.namespace, uid));
        if is_needed.is_none_or(|pod| pod.uid != image.pod) {
            return Ok(None);
        }
        let socket = launcher::pod::image_socket(pods, &image.pod, &image.container);
        let container = ImageContainer { socket, id: image.id.clone() };
        let source = (&*image.digest, container);
        let imported = self.node.images.import_pulled(&self.node.jobs, &vmi.namespace, source).await;
        match &imported {
            Ok(()) => info!(vmi = %vmi, container = image.container, "the image is in the store"),
            // The container has just been started, or has just ended.
            Err(ImageError::Fetch(_)) => {}
            Err(error) => {
                let kind = Kind::VMI;
                let regarding = Regarding { kind, namespace: &vmi.namespace, name: &vmi.name, uid };
                let text = format!("{}: {}", image.container, chain(error as &dyn Error));
                self.recorder.publish(regarding, Reason::of_failure(ERR_IMAGE_PULL), text).await;
            }
        }
        imported.map(|()| None)
    }
}
