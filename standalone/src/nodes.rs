//! This machine as a Node: what it has, and that it is alive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vireo_apiserver::controller::{self, RETRY};
use vireo_apiserver::meta;
use vireo_apiserver::store::{DiskError, Store};

use crate::place;

/// When the node agent said last that it is alive; KubeVirt's name and form.
const HEARTBEAT: &str = "kubevirt.io/heartbeat";
/// How often it says so. As KubeVirt's, which takes a node for dead after five minutes.
const BEAT: Duration = Duration::from_secs(60);
/// How many machines may have one device. As KubeVirt's.
const DEVICES: &str = "1k";
/// How much of its memory, in KiB, a machine keeps for itself at least and at most: else a tenth.
const KEPT: (u128, u128) = (256 << 10, 2 << 20);

/// What is remembered from beat to beat.
#[derive(Debug)]
struct Beats {
    name: String,
    last: Option<Instant>,
}

/// Says again and again that the node is alive, and makes it anew when somebody deleted it, until the store is gone.
pub async fn run(store: Arc<Store>, name: &str) {
    let begin = || Beats { name: name.to_owned(), last: None };
    controller::go_from(store, "this node", begin, |store, beats| Some(beats.round(store, Instant::now())))
        .await;
}

impl Beats {
    /// How long until the next one. Blocks.
    fn round(&mut self, store: &Store, now: Instant) -> Duration {
        let since = self.last.map(|last| now.duration_since(last));
        let there = store.get(&place::nodes().key("", &self.name)).is_some();
        if let Some(since) = since.filter(|since| *since < BEAT && there) {
            return BEAT.saturating_sub(since);
        }
        match beat(store, &self.name) {
            Ok(()) => {
                self.last = Some(now);
                BEAT
            }
            Err(error) => {
                tracing::warn!(%error, "the node's heartbeat cannot be written; it is tried again");
                RETRY
            }
        }
    }
}

fn beat(store: &Store, name: &str) -> Result<(), DiskError> {
    place::make(store, place::nodes(), name, |value| {
        describe(value, name);
        let now = meta::now();
        value["status"]["conditions"][0]["lastHeartbeatTime"] = json!(now);
        let annotations = meta::of(value).entry("annotations").or_insert_with(|| json!({}));
        annotations[HEARTBEAT] = json!(json!(now).to_string());
    })
}

/// Says of a node what this machine is; what others said of it stays.
pub fn describe(value: &mut Value, name: &str) {
    let uname = rustix::system::uname();
    let system = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let pretty = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let information = rustix::system::sysinfo();
    let memory = u128::from(information.totalram) * u128::from(information.mem_unit) / 1024;
    let mut capacity = json!({"cpu": cpus.to_string(), "memory": format!("{memory}Ki")});
    for device in ["kvm", "net/tun", "vhost-net"] {
        let there = std::fs::exists(format!("/dev/{device}")).unwrap_or(false);
        let resource = format!("devices.kubevirt.io/{}", device.rsplit('/').next().unwrap_or(device));
        capacity[resource] = json!(if there { DEVICES } else { "0" });
    }
    let mut allocatable = capacity.clone();
    allocatable["memory"] =
        json!(format!("{}Ki", memory.saturating_sub((memory / 10).clamp(KEPT.0, KEPT.1))));
    let labels = meta::of(value).entry("labels").or_insert_with(|| json!({}));
    for (label, text) in [
        ("kubernetes.io/hostname", name),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
        ("kubevirt.io/schedulable", "true"),
        ("kubevirt.io/cpumanager", "false"),
        ("cpumanager", "false"),
        ("machine-type.node.kubevirt.io/q35", "true"),
    ] {
        labels[label] = json!(text);
    }
    if let Some(vendor) = std::fs::read_to_string("/proc/cpuinfo").ok().as_deref().and_then(vendor) {
        labels[format!("cpu-vendor.node.kubevirt.io/{vendor}")] = json!("true");
    }
    let since = value
        .pointer("/status/conditions/0/lastTransitionTime")
        .cloned()
        .unwrap_or_else(|| json!(meta::now()));
    value["status"] = json!({
        "capacity": capacity, "allocatable": allocatable,
        "conditions": [{"type": "Ready", "status": "True", "reason": "NodeAgentReady",
            "message": "the node agent runs in the same process", "lastTransitionTime": since}],
        "addresses": [{"type": "Hostname", "address": name}],
        "nodeInfo": {
            "kubeletVersion": format!("vireo-{}", env!("CARGO_PKG_VERSION")), "operatingSystem": "linux",
            "architecture": "amd64", "osImage": pretty.trim_matches('"'),
            "kernelVersion": uname.release().to_string_lossy(),
        },
    });
}

/// Who made the processors, in KubeVirt's words.
fn vendor(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("vendor_id"))?;
    Some(match line.split_once(':')?.1.trim() {
        "GenuineIntel" => "Intel",
        "AuthenticAMD" => "AMD",
        "HygonGenuine" => "Hygon",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_that_it_is_alive_and_cannot_be_deleted_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        place::prepare(&store, "node1").unwrap();
        let node = || store.get(&place::nodes().key("", "node1"));
        assert!(node().unwrap().value.pointer("/metadata/annotations").is_none());
        let mut beats = Beats { name: "node1".to_owned(), last: None };
        let start = Instant::now();
        assert_eq!(beats.round(&store, start), BEAT);
        let value = node().unwrap().value.clone();
        let said = value["metadata"]["annotations"][HEARTBEAT].as_str().unwrap();
        assert!(said.starts_with('"') && said.ends_with("Z\""), "{said}");
        assert!(value["status"]["conditions"][0]["lastHeartbeatTime"].is_string());
        assert!(value["status"]["capacity"]["devices.kubevirt.io/tun"].is_string());
        let revision = store.revision();
        assert_eq!(beats.round(&store, start + BEAT / 2), BEAT / 2);
        assert_eq!(store.revision(), revision, "once a minute is enough");
        place::change(&store, &node().unwrap(), |value| {
            value["spec"]["unschedulable"] = json!(true);
            true
        })
        .unwrap();
        beats.round(&store, start + BEAT);
        assert_eq!(node().unwrap().value["spec"]["unschedulable"], true, "what others said stays");
        place::remove(&store, &node().unwrap()).unwrap();
        beats.round(&store, start + BEAT);
        assert!(node().is_some());
    }

    #[test]
    fn vendors_are_called_as_kubevirt_calls_them() {
        assert_eq!(vendor("processor\t: 0\nvendor_id\t: AuthenticAMD\n"), Some("AMD"));
        assert_eq!(vendor("vendor_id\t: GenuineIntel"), Some("Intel"));
        assert_eq!(vendor("processor\t: 0\n"), None);
    }
}
