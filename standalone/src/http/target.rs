//! What a path means.

use percent_encoding::percent_decode_str;

use super::Refusal;
use super::review::{self, Review};
use super::upload::{self, Cdi};
use super::virt_api::{self, Document};
use std::sync::Arc;

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
    Health,
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
    Review(&'static Review),
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
    /// Reads a path. A segment that is empty, or that names a directory when decoded, means nothing.
    pub(super) fn parse(path: &str, catalog: &Catalog) -> Result<Self, Refusal> {
        let segments = segments(path)?;
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        if let Some(review) = review::at(&segments) {
            return Ok(Self::Review(review));
        }
        if let Some(cdi) = upload::at(&segments) {
            return Ok(Self::Cdi(cdi));
        }
        if let Some(document) = virt_api::at(&segments) {
            return Ok(Self::VirtApi(document));
        }
        Ok(match segments.as_slice() {
            [] => Self::Root,
            ["version"] => Self::Version,
            ["healthz" | "livez" | "readyz"] => Self::Health,
            ["metrics"] => Self::Metrics,
            ["openapi", "v2"] => Self::OpenApiV2,
            ["openapi", "v3"] => Self::OpenApiV3Index,
            ["openapi", "v3", place @ ..] => Self::OpenApiV3(place.join("/")),
            ["api"] => Self::Core,
            ["apis"] => Self::Groups,
            ["apis", group] => Self::Group((*group).to_owned()),
            ["api", version] => Self::Resources(String::new(), (*version).to_owned()),
            ["apis", group, version] => Self::Resources((*group).to_owned(), (*version).to_owned()),
            ["api", version, rest @ .., "token"]
                if matches!(rest, ["namespaces", _, "serviceaccounts", _]) =>
            {
                Self::Token(object(catalog, "", version, rest)?)
            }
            ["api", version, rest @ ..] => Self::Object(object(catalog, "", version, rest)?),
            [
                "apis",
                STREAMS,
                "v1" | "v1alpha3",
                "namespaces",
                namespace,
                "virtualmachines",
                name,
                what @ ("start" | "stop" | "restart"),
            ] => Self::Ask(Ask {
                namespace: (*namespace).to_owned(),
                name: (*name).to_owned(),
                what: (*what).to_owned(),
            }),
            [
                "apis",
                STREAMS,
                "v1" | "v1alpha3",
                "namespaces",
                namespace,
                plural @ ("virtualmachines" | "virtualmachineinstances"),
                name,
                what @ (ADD_VOLUME | REMOVE_VOLUME),
            ] => Self::Plug(Plug {
                namespace: (*namespace).to_owned(),
                name: (*name).to_owned(),
                of_machine: *plural == "virtualmachines",
                add: *what == ADD_VOLUME,
            }),
            ["apis", STREAMS, "v1" | "v1alpha3", "namespaces", namespace, rest @ ..]
                if matches!(rest, ["expand-vm-spec"] | ["virtualmachines", _, "expand-spec"]) =>
            {
                let name = rest.get(1).map(|name| (*name).to_owned());
                Self::Expand(Expand { namespace: (*namespace).to_owned(), name })
            }
            ["apis", STREAMS, "v1" | "v1alpha3", rest @ ..] => Self::Stream(stream(rest)?),
            ["apis", group, version, rest @ .., "scale"] => {
                Self::Scale(scaled(catalog, group, version, rest)?)
            }
            ["apis", group, version, rest @ ..] => Self::Object(object(catalog, group, version, rest)?),
            _ => return Err(Refusal::nowhere()),
        })
    }
}

/// The parts of a path, decoded.
pub(super) fn segments(path: &str) -> Result<Vec<String>, Refusal> {
    let path = path.strip_prefix('/').ok_or_else(Refusal::nowhere)?;
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Ok(Vec::new());
    }
    path.split('/').map(segment).collect::<Option<_>>().ok_or_else(Refusal::nowhere)
}

fn segment(text: &str) -> Option<String> {
    let text = percent_decode_str(text).decode_utf8().ok()?;
    let odd = text.is_empty() || text == "." || text == ".." || text.contains(['/', '\\', '\0']);
    (!odd).then(|| text.into_owned())
}

fn object(catalog: &Catalog, group: &str, version: &str, rest: &[&str]) -> Result<Object, Refusal> {
    let (namespace, rest) = match rest {
        // `/api/v1/namespaces/x` and its status are the namespace itself.
        ["namespaces", namespace, rest @ ..] if !(group.is_empty() && matches!(rest, [] | ["status"])) => {
            (Some((*namespace).to_owned()), rest)
        }
        rest => (None, rest),
    };
    let (plural, name, status) = match rest {
        [plural] => (*plural, None, None),
        [plural, name] => (*plural, Some((*name).to_owned()), None),
        [plural, name, "status"] => (*plural, Some((*name).to_owned()), Some(Status)),
        _ => return Err(Refusal::nowhere()),
    };
    let resource = Arc::clone(catalog.at(group, version, plural).ok_or_else(Refusal::nowhere)?);
    let in_place = match (resource.namespaced, &namespace, &name) {
        (true, None, Some(_)) => false,
        (namespaced, namespace, _) => namespaced || namespace.is_none(),
    };
    if !in_place || (status.is_some() && !resource.status) {
        return Err(Refusal::nowhere());
    }
    Ok(Object { resource, namespace, name, status })
}

fn scaled(catalog: &Catalog, group: &str, version: &str, rest: &[&str]) -> Result<Object, Refusal> {
    let object = object(catalog, group, version, rest)?;
    let has_scale = object.resource.scale.is_some() && object.name.is_some() && object.status.is_none();
    if has_scale { Ok(object) } else { Err(Refusal::nowhere()) }
}

fn stream(rest: &[&str]) -> Result<Stream, Refusal> {
    let ["namespaces", namespace, plural, name, what @ ..] = rest else {
        return Err(Refusal::nowhere());
    };
    let forwarded = match what {
        [PORT_FORWARD, port] => is_word(port),
        [PORT_FORWARD, port, protocol] => is_word(port) && is_word(protocol),
        _ => false,
    };
    let what = what.join("/");
    let served =
        || [&["console", "vnc", "vnc/screenshot"][..], &AGENT, &STEERING].concat().contains(&what.as_str());
    let of_machine = match *plural {
        "virtualmachineinstances" if forwarded || served() => false,
        "virtualmachines" if forwarded => true,
        _ => return Err(Refusal::nowhere()),
    };
    Ok(Stream { namespace: (*namespace).to_owned(), name: (*name).to_owned(), what, of_machine })
}

/// Whether it needs no escape in a path.
fn is_word(text: &str) -> bool {
    text.chars().all(|letter| letter.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(path: &str) -> Option<(String, Option<String>, Option<String>, bool)> {
        match Target::parse(path, &Catalog::default()) {
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
                assert_eq!(
                    Target::parse(&path, &Catalog::default()).unwrap(),
                    Target::Stream(stream),
                    "{path}"
                );
            }
        }
    }

    #[test]
    fn what_is_not_served_is_nowhere() {
        for path in [
            "/api/v1/services",
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
            assert!(Target::parse(path, &Catalog::default()).is_err(), "{path}");
        }
    }
}
