//! This node as a Node object: what it has, and that it is alive.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{DynamicObject, PostParams};
use kube::runtime::watcher::Config;
use kube::{Api, Client, Error};
use serde_json::{Value, json};
use tokio::sync::Notify;
use vireo_api::names::{CPU_MANAGER_LABEL, HEARTBEAT_ANNOTATION, SCHEDULABLE_LABEL};
use vireo_client::Kind;
use vireo_client::informer::Informer;
use vireo_client::write::{self, Version};

use crate::devices::SHARED_DEVICES;
use crate::ksm::{self, Ksm};
use crate::live_settings::LiveSettings;
use crate::node_labeller::{self, Facts, Labels};

/// Where the kubelet keeps which CPUs its containers have, as the Pod of the node agent sees it.
const KUBELET_STATE: &str = "/proc/1/root/var/lib/kubelet/cpu_manager_state";
/// Interval of heartbeats. As KubeVirt's, which takes a node for dead after five minutes.
const INTERVAL: Duration = Duration::from_secs(60);
/// How soon a heartbeat that failed is retried.
const RETRY: Duration = Duration::from_secs(5);
/// How many VMs may have one device. As KubeVirt's.
const DEVICES: &str = "1k";
/// The memory in KiB that a node reserves for itself: a tenth of its memory, within these bounds.
const RESERVED_MEMORY: (u128, u128) = (256 << 10, 2 << 20);

/// Who writes the Node object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The node agent: it creates the object, and recreates it when it was deleted.
    NodeAgent,
    /// The kubelet: the node agent adds labels and the time of its heartbeat.
    Kubelet,
}

/// Writes a heartbeat once a minute until it is dropped, with the labels of the node. Watches the settings.
pub async fn run(client: Client, name: &str, owner: Owner, settings: LiveSettings) {
    let api = Kind::NODE.all(&client);
    let config = Config::default().fields(&format!("metadata.name={name}"));
    let nodes = Informer::new(api.clone(), config, |_| Ok(()));
    let changed = Arc::new(Notify::new());
    let (deleted, configured) = (Arc::clone(&changed), Arc::clone(&changed));
    nodes.on_change(move |node| {
        if node.after.is_none() {
            deleted.notify_one();
        }
    });
    settings.on_change(move || configured.notify_one());
    let heartbeats = async {
        // It panics only where reading does.
        let facts = tokio::task::spawn_blocking(Facts::of_this_node).await.unwrap_or_default();
        // Without the setting there would be labels that go again.
        let _ = tokio::time::timeout(RETRY, settings.synced()).await;
        let (mut obsolete, mut labels) = (None, Labels::new());
        loop {
            let configured = settings.obsolete_models();
            if obsolete.as_ref() != Some(&configured) {
                labels = node_labeller::labels(&facts, &configured);
                obsolete = Some(configured);
            }
            let heartbeat = Heartbeat { api: &api, name, owner, labels: &labels, settings: &settings };
            let wait = match heartbeat.write(Timestamp::now()).await {
                Ok(()) => INTERVAL,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "cannot write the node's heartbeat; the write is retried");
                    RETRY
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = changed.notified() => {}
            }
        }
    };
    tokio::join!(nodes.run(), settings.run(), heartbeats);
}

/// What a heartbeat is made of.
struct Heartbeat<'a> {
    api: &'a Api<DynamicObject>,
    /// The node's.
    name: &'a str,
    owner: Owner,
    labels: &'a Labels,
    settings: &'a LiveSettings,
}

impl Heartbeat<'_> {
    async fn write(&self, now: Timestamp) -> Result<(), Error> {
        let Self { api, name, owner, labels, .. } = *self;
        let node = match api.get_opt(name).await? {
            Some(node) => node,
            None if owner == Owner::Kubelet => api.get(name).await?,
            None => {
                let mut new = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
                describe(&mut new, name, now);
                let new: DynamicObject = serde_json::from_value(new).map_err(Error::SerdeError)?;
                api.create(&PostParams::default(), &new).await?
            }
        };
        let before = serde_json::to_value(&node).map_err(Error::SerdeError)?;
        let mut after = before.clone();
        let mut ksm = None;
        match owner {
            Owner::NodeAgent => {
                describe(&mut after, name, now);
                after["status"]["conditions"][0]["lastHeartbeatTime"] = json!(seconds(now));
            }
            Owner::Kubelet => {
                label(&mut after, is_static(KUBELET_STATE));
                ksm = self.stop_ksm(&before).await;
                if let Some(ksm) = ksm {
                    show_ksm(&mut after, ksm);
                }
            }
        }
        node_labeller::apply(&mut after, labels);
        after["metadata"]["annotations"][HEARTBEAT_ANNOTATION] = json!(json!(seconds(now)).to_string());
        let uid = node.metadata.uid.unwrap_or_default();
        let version = Version { name, uid: &uid, resource_version: "" };
        if let Some(change) = write::merge_diff(&before["metadata"], &after["metadata"]) {
            write::patch(api, version, json!({ "metadata": change })).await?;
        }
        if ksm == Some(Ksm::Ours)
            && let Err(error) = blocking(|| ksm::start(Path::new(ksm::DIRECTORY))).await
        {
            tracing::warn!(%error, "cannot have the kernel merge equal pages");
        }
        if owner == Owner::NodeAgent {
            write::patch_status(api, version, &before["status"], &after["status"]).await?;
        }
        Ok(())
    }

    /// Stops KSM where it is not to run. How it is to run, where that is known.
    async fn stop_ksm(&self, node: &Value) -> Option<Ksm> {
        let has: BTreeMap<String, String> =
            serde_json::from_value(node["metadata"]["labels"].clone()).unwrap_or_default();
        let is_selected = self.settings.merges_pages(&has);
        let is_managed = node["metadata"]["annotations"][ksm::MANAGED_ANNOTATION] == "true";
        let applied = blocking(move || ksm::apply(Path::new(ksm::DIRECTORY), is_managed, is_selected)).await;
        applied.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot look whether the kernel merges equal pages, or stop it");
            None
        })
    }
}

/// Runs work with files of the kernel on the runtime's thread pool: they may wait for what the kernel is at.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Has the object of this node say how KSM is to run.
fn show_ksm(node: &mut Value, ksm: Ksm) {
    node["metadata"]["labels"][ksm::ENABLED_LABEL] = json!((ksm != Ksm::Stopped).to_string());
    node["metadata"]["annotations"][ksm::MANAGED_ANNOTATION] = json!((ksm == Ksm::Ours).to_string());
}

/// Whether the CPU manager of the kubelet with this state gives containers CPUs for themselves.
fn is_static(state: &str) -> bool {
    let state = std::fs::read(state).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    state.is_some_and(|state| state["policyName"] == "static")
}

/// A time as Kubernetes writes it.
fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

/// Writes what this node has into its object; what others wrote stays.
pub fn describe(value: &mut Value, name: &str, now: Timestamp) {
    let now = seconds(now);
    let uname = rustix::system::uname();
    let system = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let pretty = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let information = rustix::system::sysinfo();
    let memory = u128::from(information.totalram) * u128::from(information.mem_unit) / 1024;
    let mut capacity = json!({"cpu": cpus.to_string(), "memory": format!("{memory}Ki")});
    for device in SHARED_DEVICES {
        let there = std::fs::exists(device.path).unwrap_or(false);
        capacity[device.resource()] = json!(if there { DEVICES } else { "0" });
    }
    let mut allocatable = capacity.clone();
    allocatable["memory"] = json!(format!(
        "{}Ki",
        memory.saturating_sub((memory / 10).clamp(RESERVED_MEMORY.0, RESERVED_MEMORY.1))
    ));
    // The node agent gives VMs CPUs for themselves.
    label(value, true);
    let labels = &mut value["metadata"]["labels"];
    for (label, text) in
        [("kubernetes.io/hostname", name), ("kubernetes.io/os", "linux"), ("kubernetes.io/arch", "amd64")]
    {
        labels[label] = json!(text);
    }
    let conditions = value.pointer("/status/conditions").and_then(Value::as_array).cloned();
    let (ready, mut conditions): (Vec<Value>, Vec<Value>) =
        conditions.unwrap_or_default().into_iter().partition(|condition| condition["type"] == "Ready");
    let since = ready.first().and_then(|ready| ready.get("lastTransitionTime")).cloned();
    conditions.insert(
        0,
        json!({"type": "Ready", "status": "True", "reason": "NodeAgentReady",
            "message": "the node agent runs in the same process",
            "lastTransitionTime": since.unwrap_or_else(|| json!(now))}),
    );
    let status = &mut value["status"];
    status["conditions"] = json!(conditions);
    status["addresses"] = json!([{"type": "Hostname", "address": name}]);
    let info = json!({
        "kubeletVersion": format!("vireo-{}", env!("CARGO_PKG_VERSION")), "operatingSystem": "linux",
        "architecture": "amd64", "osImage": pretty.trim_matches('"'),
        "kernelVersion": uname.release().to_string_lossy(),
    });
    for (part, new) in [("capacity", capacity), ("allocatable", allocatable), ("nodeInfo", info)] {
        for (field, text) in new.as_object().into_iter().flatten() {
            status[part][field] = text.clone();
        }
    }
}

/// Writes KubeVirt's labels of a node that do not depend on it.
///
/// `has_cpus`: containers, or VMs, can have CPUs for themselves.
fn label(node: &mut Value, has_cpus: bool) {
    let labels = &mut node["metadata"]["labels"];
    let has_cpus = if has_cpus { "true" } else { "false" };
    for (label, text) in
        [(SCHEDULABLE_LABEL, "true"), ("kubevirt.io/cpumanager", has_cpus), (CPU_MANAGER_LABEL, has_cpus)]
    {
        labels[label] = json!(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_of_the_cpu_manager_is_that_of_its_state() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("state");
        let is_static = |text: &str| {
            std::fs::write(&path, text).unwrap();
            super::is_static(path.to_str().unwrap())
        };
        assert!(is_static(r#"{"policyName":"static","defaultCpuSet":"0-3","checksum":1}"#));
        assert!(!is_static(r#"{"policyName":"none","defaultCpuSet":""}"#));
        assert!(!is_static("{"));
        assert!(!super::is_static("/vireo-no-such-file"));
    }

    #[test]
    fn a_node_says_how_ksm_is_to_run() {
        for (ksm, enabled, managed) in
            [(Ksm::Stopped, "false", "false"), (Ksm::Ours, "true", "true"), (Ksm::Foreign, "true", "false")]
        {
            let mut node = json!({"metadata": {}});
            show_ksm(&mut node, ksm);
            assert_eq!(node["metadata"]["labels"]["kubevirt.io/ksm-enabled"], enabled, "{ksm:?}");
            assert_eq!(
                node["metadata"]["annotations"]["kubevirt.io/ksm-handler-managed"], managed,
                "{ksm:?}"
            );
        }
    }

    #[test]
    fn a_node_is_described_and_what_others_wrote_stays() {
        let mut node = json!({"metadata": {"labels": {"disk": "ssd"}}, "spec": {"unschedulable": true},
            "status": {"capacity": {"example.com/gpu": "1"}, "conditions": [{"type": "DiskPressure"}]}});
        let now = "2026-01-01T00:00:00.5Z".parse().unwrap();
        describe(&mut node, "node1", now);
        assert_eq!(node["metadata"]["labels"]["disk"], "ssd");
        assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "node1");
        assert_eq!(node["spec"]["unschedulable"], true);
        assert_eq!(node["status"]["capacity"]["example.com/gpu"], "1");
        assert_eq!(node["status"]["conditions"][1]["type"], "DiskPressure");
        assert_eq!(node["status"]["conditions"][0]["lastTransitionTime"], "2026-01-01T00:00:00Z");
        assert!(node["status"]["capacity"]["devices.kubevirt.io/tun"].is_string());
        let described = node.clone();
        describe(&mut node, "node1", Timestamp::now());
        assert_eq!(node, described, "the time of the transition stays");
    }
}
