//! Objects that are created at once, until all of them run.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use vireo_client::Kind;

use super::Error;

/// Requests at the same time.
const CLIENTS: usize = 8;
/// Objects of the benchmark, and the Pods of its VMIs.
const LABEL: (&str, &str) = ("app", "bench-cluster");
/// Bytes of a VMI's guest. No other mapping of its processes has this size.
pub(super) const GUEST_MEMORY: u64 = 32 << 20;
/// How often it is asked whether Pods are gone.
const ASK: Duration = Duration::from_millis(200);

/// What is measured.
pub(super) struct Subject {
    /// Of the kind.
    pub(super) name: &'static str,
    api: Api<DynamicObject>,
    pods: Api<DynamicObject>,
    spec: Value,
    kind: Kind,
}

impl Subject {
    /// The name of VMIs.
    pub(super) const VMI: &'static str = "VMI";

    /// Pods of a launcher that waits for a VM, as launcher Pods are.
    pub(super) fn pod(client: &Client, image: &str) -> Self {
        let security = json!({"runAsUser": 107, "runAsNonRoot": true, "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}});
        let container = json!({"name": "compute", "image": image, "imagePullPolicy": "IfNotPresent",
            "command": ["/usr/bin/virt-launcher", "--socket", "/run/launcher/launcher.sock"],
            "volumeMounts": [{"name": "run", "mountPath": "/run/launcher"}], "securityContext": security});
        let spec = json!({"containers": [container], "volumes": [{"name": "run", "emptyDir": {}}],
            "restartPolicy": "Never", "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0});
        Self::new(client, "Pod", Kind::POD, spec)
    }

    /// VMIs whose firmware finds nothing to start.
    pub(super) fn vmi(client: &Client) -> Self {
        let spec = json!({
            "terminationGracePeriodSeconds": 0,
            "domain": {
                "memory": {"guest": GUEST_MEMORY.to_string()},
                // They do nothing, and so do not take a tenth of a CPU each.
                "resources": {"requests": {"cpu": "1m"}},
                "devices": {"autoattachGraphicsDevice": false,
                    "disks": [{"name": "empty", "disk": {"bus": "virtio"}}]},
            },
            "volumes": [{"name": "empty", "emptyDisk": {"capacity": "1Mi"}}],
        });
        Self::new(client, Self::VMI, Kind::VMI, spec)
    }

    fn new(client: &Client, name: &'static str, kind: Kind, spec: Value) -> Self {
        let (api, pods) = (kind.namespaced(client, "default"), Kind::POD.namespaced(client, "default"));
        Self { name, api, pods, spec, kind }
    }

    fn object(&self, number: usize) -> Result<DynamicObject, serde_json::Error> {
        serde_json::from_value(json!({
            "apiVersion": self.kind.api_version(), "kind": self.kind.kind,
            "metadata": {"name": format!("bench-{number}"), "labels": {LABEL.0: LABEL.1}},
            "spec": self.spec,
        }))
    }

    fn selector() -> String {
        format!("{}={}", LABEL.0, LABEL.1)
    }

    /// Creates so many. Returns how long it took until all of them ran.
    pub(super) async fn create(&self, count: usize) -> Result<Duration, Error> {
        let listed = self.api.list(&ListParams::default().labels(&Self::selector())).await?;
        let version = listed.metadata.resource_version.unwrap_or_default();
        let mut events =
            self.api.watch(&WatchParams::default().labels(&Self::selector()), &version).await?.boxed();
        let begin = Instant::now();
        let creating = stream::iter(0..count)
            .map(|number| async move {
                self.api.create(&PostParams::default(), &self.object(number)?).await?;
                Ok::<_, Error>(())
            })
            .buffer_unordered(CLIENTS)
            .try_collect::<()>();
        let running = async {
            let mut run = HashSet::new();
            while run.len() < count {
                let event = events.try_next().await?.ok_or("the watch ended")?;
                if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event {
                    match object.data["status"]["phase"].as_str() {
                        Some("Running") => drop(run.insert(object.name_any())),
                        Some("Failed" | "Succeeded") => {
                            return Err(format!("{} ended: {}", object.name_any(), object.data).into());
                        }
                        _ => {}
                    }
                }
            }
            Ok(())
        };
        tokio::try_join!(creating, running)?;
        Ok(begin.elapsed())
    }

    /// Deletes all, and waits until they and their Pods are gone.
    pub(super) async fn delete(&self) -> Result<(), Error> {
        let ours = ListParams::default().labels(&Self::selector());
        self.api.delete_collection(&DeleteParams::default(), &ours).await?;
        for api in [&self.api, &self.pods] {
            while !api.list(&ours).await?.items.is_empty() {
                tokio::time::sleep(ASK).await;
            }
        }
        Ok(())
    }
}
