//! KubeVirt's API server: subresources of VMs and VMIs, and what it says of itself.

mod ask;
mod documents;
mod expand;
mod plug;
mod subresource;
pub mod upload;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::Method;
use axum::response::Response;
use serde_json::{Value, json};

use documents::Document;
use vireo_api::v1::{VirtualMachine, VirtualMachineInstance};
use vireo_apiserver::http::{Answer, ApiError, ApiService, Endpoint, ResourcePath};
use vireo_apiserver::store::{Object, Store};
use vireo_operators::vm::orphan;

use crate::resource::kubevirt;

/// The group of consoles and screens.
const STREAMS: &str = "subresources.kubevirt.io";

/// What the guest's agent says.
const AGENT: [&str; 3] = ["filesystemlist", "guestosinfo", "userlist"];

/// A port of the guest.
const PORT_FORWARD: &str = "portforward";

/// What steers a running machine, by `PUT`.
const STEERING: [&str; 4] = ["pause", "reset", "softreboot", "unpause"];

/// Plugs a volume in.
const ADD_VOLUME: &str = "addvolume";

/// Plugs it out.
const REMOVE_VOLUME: &str = "removevolume";

const STREAM_NAMES: [&str; 4] = [
    "virtualmachineinstances/console",
    "virtualmachineinstances/portforward",
    "virtualmachineinstances/vnc",
    "virtualmachineinstances/vnc/screenshot",
];
const ASKED: [&str; 5] = [
    "virtualmachines/addvolume",
    "virtualmachines/removevolume",
    "virtualmachines/restart",
    "virtualmachines/start",
    "virtualmachines/stop",
];
const STREAM_VERSIONS: [&str; 2] = ["v1", "v1alpha3"];

/// KubeVirt's API server.
#[derive(Debug)]
pub struct VirtApi {
    /// The objects.
    pub store: Arc<Store>,
    /// The node agent's own endpoint, for consoles and screens.
    pub node: Router,
}

/// The VMI that a VM owns.
fn vmi_of(store: &Store, vm: &VirtualMachine) -> Option<(Arc<Object>, VirtualMachineInstance)> {
    let object = store.get(&kubevirt::VMIS.key(&vm.metadata.namespace, &vm.metadata.name))?;
    let vmi: VirtualMachineInstance = serde_json::from_value(object.value.clone()).ok()?;
    orphan::owns(&vm.metadata, &vmi.metadata).then_some((object, vmi))
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Asked {
    Document(Document),
    Stream(Stream),
    Ask(Ask),
    Plug(Plug),
    Expand(Expand),
}

/// What is asked of a VirtualMachine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// `start`, `stop` or `restart`.
    pub(crate) what: String,
}

/// A volume to be plugged into a machine that runs, or out of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plug {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Its VirtualMachine is named, which keeps the volume.
    pub(crate) of_machine: bool,
    /// In, and not out.
    pub(crate) add: bool,
}

/// A machine to be shown with what it chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expand {
    pub(crate) namespace: String,
    /// Absent: the one that the request carries.
    pub(crate) name: Option<String>,
}

/// A subresource of a running machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// `console`, `vnc`, `vnc/screenshot`, `portforward/PORT[/PROTOCOL]`, or one of [`AGENT`] or [`STEERING`].
    pub(crate) what: String,
    /// Named by its VirtualMachine.
    pub(crate) of_machine: bool,
}

impl Stream {
    /// Whether it goes on for as long as its client wants.
    pub(crate) fn is_connection(&self) -> bool {
        matches!(self.what.as_str(), "console" | "vnc") || self.what.starts_with(PORT_FORWARD)
    }
}

fn asked(path: &ResourcePath) -> Option<Result<Asked, ApiError>> {
    if let Some(document) = documents::at(path) {
        return Some(Ok(Asked::Document(document)));
    }
    (path.group == STREAMS).then(|| subresource(path))
}

impl ApiService for VirtApi {
    fn groups(&self) -> Vec<(&'static str, Vec<&'static str>)> {
        vec![(STREAMS, STREAM_VERSIONS.to_vec())]
    }

    fn resources(&self, group: &str, version: &str) -> Vec<Value> {
        if group == STREAMS && STREAM_VERSIONS.contains(&version) { resources() } else { Vec::new() }
    }

    fn paths(&self) -> Vec<String> {
        let documents = STREAM_VERSIONS.iter().flat_map(|version| {
            Document::ALL.map(|document| format!("/apis/{STREAMS}/{version}/{}", document.name()))
        });
        documents.collect()
    }

    fn endpoint(&self, path: &ResourcePath) -> Option<Result<Endpoint, ApiError>> {
        let endpoint = |asked| match asked {
            Asked::Stream(stream) if stream.is_connection() => Endpoint::Connection,
            _ => Endpoint::Request,
        };
        Some(asked(path)?.map(endpoint))
    }

    fn serve(self: Arc<Self>, path: ResourcePath, request: Request) -> Answer<Result<Response, ApiError>> {
        Box::pin(async move {
            match asked(&path).ok_or_else(ApiError::path_not_found)?? {
                Asked::Document(document) => {
                    if request.method() != Method::GET && request.method() != Method::HEAD {
                        return Err(ApiError::method_not_allowed());
                    }
                    documents::document(document)
                }
                Asked::Stream(stream) => subresource::serve(&self, stream, request).await,
                Asked::Ask(ask) => ask::serve(&self, ask, request).await,
                Asked::Plug(plug) => plug::serve(&self, plug, request).await,
                Asked::Expand(expand) => expand::serve(&self, expand, request).await,
            }
        })
    }
}

fn resources() -> Vec<Value> {
    let mut resources = Vec::new();
    let stream = |name: &&str| json!({"name": name, "singularName": "", "namespaced": true, "kind": "VirtualMachineInstance", "verbs": ["get"]});
    resources.extend(STREAM_NAMES.iter().map(stream));
    let document = |one: Document| json!({"name": one.name(), "singularName": "", "namespaced": false, "kind": "", "verbs": ["get"]});
    resources.extend(Document::ALL.map(document));
    resources.extend(AGENT.iter().map(|what| stream(&format!("virtualmachineinstances/{what}").as_str())));
    let steered = |what: &&str| {
        let name = format!("virtualmachineinstances/{what}");
        json!({"name": name, "singularName": "", "namespaced": true, "kind": "VirtualMachineInstance", "verbs": ["update"]})
    };
    resources.extend(STEERING.iter().chain(&[ADD_VOLUME, REMOVE_VOLUME]).map(steered));
    let asked = |name: &&str| json!({"name": name, "singularName": "", "namespaced": true, "kind": "VirtualMachine", "verbs": ["update"]});
    resources.extend(ASKED.iter().map(asked));
    for (name, verb) in [
        ("expand-vm-spec", "update"),
        ("virtualmachines/expand-spec", "get"),
        ("virtualmachines/portforward", "get"),
    ] {
        resources.push(json!({"name": name, "singularName": "", "namespaced": true, "kind": "VirtualMachine", "verbs": [verb]}));
    }
    resources
}

/// What is asked of the group of consoles and screens.
fn subresource(path: &ResourcePath) -> Result<Asked, ApiError> {
    let ("v1" | "v1alpha3", Some(namespace)) = (path.version.as_str(), path.namespace.clone()) else {
        return Err(ApiError::path_not_found());
    };
    if (path.resource.as_str(), &path.name) == ("expand-vm-spec", &None) {
        return Ok(Asked::Expand(Expand { namespace, name: None }));
    }
    let name = path.name.clone().ok_or_else(ApiError::path_not_found)?;
    let of_machine = match path.resource.as_str() {
        "virtualmachines" => true,
        "virtualmachineinstances" => false,
        _ => return Err(ApiError::path_not_found()),
    };
    Ok(match path.subresource().as_slice() {
        ["expand-spec"] if of_machine => Asked::Expand(Expand { namespace, name: Some(name) }),
        [what @ ("start" | "stop" | "restart")] if of_machine => {
            Asked::Ask(Ask { namespace, name, what: (*what).to_owned() })
        }
        [what @ (ADD_VOLUME | REMOVE_VOLUME)] => {
            Asked::Plug(Plug { namespace, name, of_machine, add: *what == ADD_VOLUME })
        }
        what => Asked::Stream(stream((namespace, name), of_machine, what)?),
    })
}

fn stream((namespace, name): (String, String), of_machine: bool, what: &[&str]) -> Result<Stream, ApiError> {
    let forwarded = match what {
        [PORT_FORWARD, port] => is_word(port),
        [PORT_FORWARD, port, protocol] => is_word(port) && is_word(protocol),
        _ => false,
    };
    let what = what.join("/");
    let served =
        || [&["console", "vnc", "vnc/screenshot"][..], &AGENT, &STEERING].concat().contains(&what.as_str());
    if !forwarded && (of_machine || !served()) {
        return Err(ApiError::path_not_found());
    }
    Ok(Stream { namespace, name, what, of_machine })
}

/// Whether it needs no escape in a path.
fn is_word(text: &str) -> bool {
    text.chars().all(|letter| letter.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str) -> Result<Asked, ApiError> {
        let info = vireo_apiserver::http::RequestInfo::of_path(path)?;
        asked(info.resource().ok_or_else(ApiError::path_not_found)?).ok_or_else(ApiError::path_not_found)?
    }

    #[test]
    fn ports_are_those_of_machines_and_instances() {
        for (path, of_machine) in [("virtualmachines/b", true), ("virtualmachineinstances/b", false)] {
            for what in ["portforward/22", "portforward/53/udp"] {
                let path = format!("/apis/subresources.kubevirt.io/v1/namespaces/a/{path}/{what}");
                let (namespace, name) = ("a".to_owned(), "b".to_owned());
                let stream = Stream { namespace, name, what: what.to_owned(), of_machine };
                assert_eq!(parse(&path).unwrap(), Asked::Stream(stream), "{path}");
            }
        }
    }

    #[test]
    fn what_is_not_served_is_nowhere() {
        for path in [
            "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/b/freeze",
            "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/console",
            "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/portforward",
            "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/portforward/22%3f",
            "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/portforward/22/tcp/x",
        ] {
            assert!(parse(path).is_err(), "{path}");
        }
    }

    #[test]
    fn consoles_are_connections() {
        let path = "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/b/console";
        assert!(matches!(parse(path), Ok(Asked::Stream(stream)) if stream.is_connection()));
    }
}
