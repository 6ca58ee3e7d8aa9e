//! What clients and an aggregating API server learn about the group.

use serde_json::{Value, json};
use vireo_client::Kind;

use super::endpoint::{
    ADD_VOLUME, AGENT, CONTROLS, Document, MEMORY_DUMP, OBJECT_GRAPH, REMOVE_MEMORY_DUMP, REMOVE_VOLUME,
};
use super::{GROUP, VERSIONS};

const CONNECTIONS: [&str; 6] = ["console", "portforward", "usbredir", "vnc", "vnc/screenshot", "vsock"];
const VM_UPDATES: [&str; 7] =
    [ADD_VOLUME, MEMORY_DUMP, REMOVE_MEMORY_DUMP, REMOVE_VOLUME, "restart", "start", "stop"];

/// The document at a path; absent where it is none of discovery.
pub(super) fn document(path: &str) -> Option<Value> {
    let rest = path.strip_prefix("/apis/")?.strip_prefix(GROUP)?;
    if rest.is_empty() {
        return Some(group());
    }
    let version = rest.strip_prefix('/').filter(|version| VERSIONS.contains(version))?;
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{version}"),
        "resources": resources(),
    }))
}

fn group() -> Value {
    let version = |version: &str| json!({"groupVersion": format!("{GROUP}/{version}"), "version": version});
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": VERSIONS.map(version),
        "preferredVersion": version(VERSIONS[0]),
    })
}

/// The elements of the APIResourceList.
pub fn resources() -> Vec<Value> {
    let subresource = |kind: Kind, name: &str, verb: &str| {
        json!({"name": format!("{}/{name}", kind.plural), "singularName": "", "namespaced": true,
            "kind": kind.kind, "verbs": [verb]})
    };
    let mut resources = Vec::new();
    resources.extend(CONNECTIONS.map(|name| subresource(Kind::VMI, name, "get")));
    resources.extend(Document::ALL.map(|document| {
        json!({"name": document.name(), "singularName": "", "namespaced": false, "kind": "",
            "verbs": ["get"]})
    }));
    resources.extend(AGENT.map(|name| subresource(Kind::VMI, name, "get")));
    resources.extend([Kind::VM, Kind::VMI].map(|kind| subresource(kind, OBJECT_GRAPH, "get")));
    let updates = CONTROLS.into_iter().chain([ADD_VOLUME, REMOVE_VOLUME]);
    resources.extend(updates.map(|name| subresource(Kind::VMI, name, "update")));
    resources.extend(VM_UPDATES.map(|name| subresource(Kind::VM, name, "update")));
    resources.push(json!({"name": "expand-vm-spec", "singularName": "", "namespaced": true,
        "kind": Kind::VM.kind, "verbs": ["update"]}));
    resources.extend(["expand-spec", "portforward"].map(|name| subresource(Kind::VM, name, "get")));
    resources
}

/// The paths of documents.
pub fn paths() -> Vec<String> {
    let of_version =
        |version: &&str| Document::ALL.map(|document| format!("/apis/{GROUP}/{version}/{}", document.name()));
    VERSIONS.iter().flat_map(of_version).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_discovered() {
        assert_eq!(document("/apis/subresources.kubevirt.io").unwrap()["preferredVersion"]["version"], "v1");
        let list = document("/apis/subresources.kubevirt.io/v1alpha3").unwrap();
        let names: Vec<&str> =
            list["resources"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
        for name in ["version", "virtualmachines/start", "virtualmachineinstances/vnc/screenshot"] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        for none in ["/apis", "/apis/subresources.kubevirt.io/v2", "/apis/subresources.kubevirt.iox"] {
            assert_eq!(document(none), None, "{none}");
        }
    }
}
