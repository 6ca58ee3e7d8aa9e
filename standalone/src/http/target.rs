//! What a request is about among what is served.

use std::sync::Arc;

use super::Refusal;
use super::health::Endpoint;
use super::request_info::{RequestInfo, ResourcePath};
use super::review::{self, Review};
use super::upload::{self, Cdi};
use super::virt_api::{self, Document};

use crate::catalog::Catalog;
use crate::resource::Resource;

/// The group of consoles and screens.
pub(super) const STREAMS: &str = "subresources.kubevirt.io";

/// What the guest's agent says.
pub(super) const AGENT: [&str; 3] = ["filesystemlist", "guestosinfo", "userlist"];

/// A port of the guest.
pub(super) const PORT_FORWARD: &str = "portforward";

/// What steers a running machine, by `PUT`.
pub(super) const STEERING: [&str; 4] = ["pause", "reset", "softreboot", "unpause"];

/// Plugs a volume in.
pub(super) const ADD_VOLUME: &str = "addvolume";

/// Plugs it out.
pub(super) const REMOVE_VOLUME: &str = "removevolume";

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Root,
    Version,
    /// Whether the server is well, or one check of that.
    Health(Endpoint, Option<String>),
    /// What Prometheus reads.
    Metrics,
    /// `/api`
    Core,
    /// `/apis`
    Groups,
    Group(String),
    Resources(String, String),
    OpenApiV2,
    OpenApiV3Index,
    OpenApiV3(String),
    Object(Object),
    /// The number of replicas of an object.
    Scale(Object),
    Stream(Stream),
    Ask(Ask),
    Plug(Plug),
    Expand(Expand),
    /// A token for an account.
    Token(Object),
    /// A review, in a namespace if it is one of those.
    Review(&'static Review, Option<String>),
    Cdi(Cdi),
    /// What KubeVirt's API server says of itself.
    VirtApi(Document),
}

/// Objects of a resource: all, those of a namespace, or one.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) resource: Arc<Resource>,
    /// Absent: of all namespaces, or of none.
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    /// Its status apart.
    pub(super) status: Option<Status>,
}

/// The `/status` of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Status;

impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.resource, &other.resource)
            && (&self.namespace, &self.name, self.status) == (&other.namespace, &other.name, other.status)
    }
}

impl Eq for Object {}

impl Object {
    /// The key of one object.
    pub(super) fn key(&self, name: &str) -> crate::store::Key {
        self.resource.key(self.namespace.as_deref().unwrap_or_default(), name)
    }
}

/// What is asked of a VirtualMachine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) namespace: String,
    pub(super) name: String,
    /// `start`, `stop` or `restart`.
    pub(super) what: String,
}

/// A volume to be plugged into a machine that runs, or out of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plug {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Its VirtualMachine is named, which keeps the volume.
    pub(super) of_machine: bool,
    /// In, and not out.
    pub(super) add: bool,
}

/// A machine to be shown with what it chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Expand {
    pub(super) namespace: String,
    /// Absent: the one that the request carries.
    pub(super) name: Option<String>,
}

/// A subresource of a running machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stream {
    pub(super) namespace: String,
    pub(super) name: String,
    /// `console`, `vnc`, `vnc/screenshot`, `portforward/PORT[/PROTOCOL]`, or one of [`AGENT`] or [`STEERING`].
    pub(super) what: String,
    /// Named by its VirtualMachine.
    pub(super) of_machine: bool,
}

impl Stream {
    /// Whether it goes on for as long as its client wants.
    pub(super) fn is_connection(&self) -> bool {
        matches!(self.what.as_str(), "console" | "vnc") || self.what.starts_with(PORT_FORWARD)
    }
}

impl Target {
    /// What a request is about among what is served.
    pub(super) fn of(info: &RequestInfo, catalog: &Catalog) -> Result<Self, Refusal> {
        let Some(path) = info.resource() else {
            return Self::document(&info.segments()).ok_or_else(Refusal::nowhere);
        };
        if let Some(review) = review::at(path) {
            return Ok(Self::Review(review, path.namespace.clone()));
        }
        if let Some(cdi) = upload::at(path) {
            return Ok(Self::Cdi(cdi));
        }
        if let Some(document) = virt_api::at(path) {
            return Ok(Self::VirtApi(document));
        }
        if path.group == STREAMS {
            return subresource(path);
        }
        Ok(match path.subresource().as_slice() {
            ["token"] if path.group.is_empty() && path.resource == "serviceaccounts" => {
                Self::Token(object(catalog, path, None)?)
            }
            ["scale"] if !path.group.is_empty() => Self::Scale(scaled(catalog, path)?),
            ["status"] => Self::Object(object(catalog, path, Some(Status))?),
            [] => Self::Object(object(catalog, path, None)?),
            _ => return Err(Refusal::nowhere()),
        })
    }

    fn document(segments: &[&str]) -> Option<Self> {
        Some(match segments {
            [] => Self::Root,
            ["version"] => Self::Version,
            [name, check @ ..]
                if check.len() < 2
                    && let Some(endpoint) = Endpoint::named(name) =>
            {
                Self::Health(endpoint, check.first().map(|check| (*check).to_owned()))
            }
            ["metrics"] => Self::Metrics,
            ["openapi", "v2"] => Self::OpenApiV2,
            ["openapi", "v3"] => Self::OpenApiV3Index,
            ["openapi", "v3", place @ ..] => Self::OpenApiV3(place.join("/")),
            ["api"] => Self::Core,
            ["apis"] => Self::Groups,
            ["apis", group] => Self::Group((*group).to_owned()),
            ["api", version] => Self::Resources(String::new(), (*version).to_owned()),
            ["apis", group, version] => Self::Resources((*group).to_owned(), (*version).to_owned()),
            _ => return None,
        })
    }
}

fn object(catalog: &Catalog, path: &ResourcePath, status: Option<Status>) -> Result<Object, Refusal> {
    let resource = catalog.at(&path.group, &path.version, &path.resource).ok_or_else(Refusal::nowhere)?;
    let in_scope = match (resource.namespaced, &path.namespace, &path.name) {
        (true, None, Some(_)) => false,
        (namespaced, namespace, _) => namespaced || namespace.is_none(),
    };
    if !in_scope || (status.is_some() && !resource.status) {
        return Err(Refusal::nowhere());
    }
    let (namespace, name) = (path.namespace.clone(), path.name.clone());
    Ok(Object { resource: Arc::clone(resource), namespace, name, status })
}

fn scaled(catalog: &Catalog, path: &ResourcePath) -> Result<Object, Refusal> {
    let object = object(catalog, path, None)?;
    if object.resource.scale.is_some() { Ok(object) } else { Err(Refusal::nowhere()) }
}

/// What is asked of the group of consoles and screens.
fn subresource(path: &ResourcePath) -> Result<Target, Refusal> {
    let ("v1" | "v1alpha3", Some(namespace)) = (path.version.as_str(), path.namespace.clone()) else {
        return Err(Refusal::nowhere());
    };
    if (path.resource.as_str(), &path.name) == ("expand-vm-spec", &None) {
        return Ok(Target::Expand(Expand { namespace, name: None }));
    }
    let name = path.name.clone().ok_or_else(Refusal::nowhere)?;
    let of_machine = match path.resource.as_str() {
        "virtualmachines" => true,
        "virtualmachineinstances" => false,
        _ => return Err(Refusal::nowhere()),
    };
    Ok(match path.subresource().as_slice() {
        ["expand-spec"] if of_machine => Target::Expand(Expand { namespace, name: Some(name) }),
        [what @ ("start" | "stop" | "restart")] if of_machine => {
            Target::Ask(Ask { namespace, name, what: (*what).to_owned() })
        }
        [what @ (ADD_VOLUME | REMOVE_VOLUME)] => {
            Target::Plug(Plug { namespace, name, of_machine, add: *what == ADD_VOLUME })
        }
        what => Target::Stream(stream((namespace, name), of_machine, what)?),
    })
}

fn stream((namespace, name): (String, String), of_machine: bool, what: &[&str]) -> Result<Stream, Refusal> {
    let forwarded = match what {
        [PORT_FORWARD, port] => is_word(port),
        [PORT_FORWARD, port, protocol] => is_word(port) && is_word(protocol),
        _ => false,
    };
    let what = what.join("/");
    let served =
        || [&["console", "vnc", "vnc/screenshot"][..], &AGENT, &STEERING].concat().contains(&what.as_str());
    if !forwarded && (of_machine || !served()) {
        return Err(Refusal::nowhere());
    }
    Ok(Stream { namespace, name, what, of_machine })
}

/// Whether it needs no escape in a path.
fn is_word(text: &str) -> bool {
    text.chars().all(|letter| letter.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use axum::http::Method;

    use super::*;
    use crate::http::query::Query;
    use crate::resource::{Registry, kubevirt};

    fn parse(path: &str) -> Result<Target, Refusal> {
        let registry = Arc::new(Registry::new(kubevirt::rows()));
        let catalog = Catalog::of_a_test(registry);
        Target::of(&RequestInfo::parse(&Method::GET, path, &Query::default())?, &catalog)
    }

    fn told(path: &str) -> Option<(String, Option<String>, Option<String>, bool)> {
        match parse(path) {
            Ok(Target::Object(object)) => {
                Some((object.resource.name(), object.namespace, object.name, object.status.is_some()))
            }
            _ => None,
        }
    }

    fn of(
        resource: &str,
        namespace: &str,
        name: &str,
        status: bool,
    ) -> Option<(String, Option<String>, Option<String>, bool)> {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Some((resource.to_owned(), some(namespace), some(name), status))
    }

    #[test]
    fn objects_are_found_by_their_paths() {
        for (path, expected) in [
            ("/api/v1/namespaces", of("namespaces", "", "", false)),
            ("/api/v1/namespaces/a", of("namespaces", "", "a", false)),
            ("/api/v1/namespaces/a/status", of("namespaces", "", "a", true)),
            ("/api/v1/namespaces/a/configmaps", of("configmaps", "a", "", false)),
            ("/api/v1/namespaces/a/configmaps/b", of("configmaps", "a", "b", false)),
            ("/api/v1/configmaps", of("configmaps", "", "", false)),
            ("/api/v1/nodes/n/status", of("nodes", "", "n", true)),
            (
                "/apis/kubevirt.io/v1/virtualmachineinstances/",
                of("virtualmachineinstances.kubevirt.io", "", "", false),
            ),
            ("/api/v1/namespaces/a/configmaps/b%2Dc", of("configmaps", "a", "b-c", false)),
        ] {
            assert_eq!(told(path), expected, "{path}");
        }
    }

    #[test]
    fn ports_are_those_of_machines_and_instances() {
        for (path, of_machine) in [("virtualmachines/b", true), ("virtualmachineinstances/b", false)] {
            for what in ["portforward/22", "portforward/53/udp"] {
                let path = format!("/apis/subresources.kubevirt.io/v1/namespaces/a/{path}/{what}");
                let (namespace, name) = ("a".to_owned(), "b".to_owned());
                let stream = Stream { namespace, name, what: what.to_owned(), of_machine };
                assert_eq!(parse(&path).unwrap(), Target::Stream(stream), "{path}");
            }
        }
    }

    #[test]
    fn what_is_not_served_is_nowhere() {
        for path in [
            "/api/v1/podtemplates",
            "/api/v2/configmaps",
            "/api/v1/configmaps/b",
            "/api/v1/namespaces/a/nodes",
            "/api/v1/namespaces/a/configmaps/b/status",
            "/api/v1/namespaces/a/configmaps/b/c/d",
            "/api/v1/namespaces//configmaps",
            "/api/v1/namespaces/a/configmaps/..",
            "/api/v1/namespaces/a/configmaps/%2e%2e",
            "/api/v1/namespaces/a/configmaps/x%2fy",
            "/api/v1/namespaces/a/configmaps/%ff",
            "/api/v1/namespaces/a/configmaps/x%00",
            "/apis/kubevirt.io/v1/namespaces/a/virtualmachines/b/scale",
            "/apis/kubevirt.io/v1/namespaces/a/virtualmachineinstancereplicasets/scale/b/scale/c",
            "/../etc/passwd",
            "//version",
            "nothing",
            "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/b/freeze",
            "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/console",
            "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/portforward",
            "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/portforward/22%3f",
            "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/portforward/22/tcp/x",
        ] {
            assert!(parse(path).is_err(), "{path}");
        }
    }
}
