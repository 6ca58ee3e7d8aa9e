//! What is served at which path.

use vireo_api::spec::is_dns_subdomain;
use vireo_client::{Kind, ObjectKey};

use super::unserved::Unserved;
use super::{ApiError, GROUP, VERSIONS};

/// A port of the guest.
const PORT_FORWARD: &str = "portforward";
/// What a VMI's console, displays, slots for USB devices and VSOCK ports are called.
const STREAMS: [&str; 5] = ["console", "usbredir", "vnc", "vnc/screenshot", "vsock"];
/// What the agent in the guest knows.
pub(super) const AGENT: [&str; 3] = ["filesystemlist", "guestosinfo", "userlist"];
/// What is done to a running guest, by `PUT`.
pub(super) const CONTROLS: [&str; 6] = ["freeze", "pause", "reset", "softreboot", "unfreeze", "unpause"];
pub(super) const ADD_VOLUME: &str = "addvolume";
pub(super) const REMOVE_VOLUME: &str = "removevolume";
pub(super) const MEMORY_DUMP: &str = "memorydump";
pub(super) const REMOVE_MEMORY_DUMP: &str = "removememorydump";
pub(super) const OBJECT_GRAPH: &str = "objectgraph";

/// A path below a version of [`GROUP`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path<'a> {
    /// The version of the group.
    pub version: &'a str,
    /// Absent for what is in no namespace.
    pub namespace: Option<&'a str>,
    /// The plural of a kind, or the name of a document.
    pub resource: &'a str,
    /// The name of an object.
    pub name: Option<&'a str>,
    /// What follows the name.
    pub subresource: Vec<&'a str>,
}

impl<'a> Path<'a> {
    /// The path of a URI; absent where nothing of the group can be there. Nothing in it needs an escape.
    pub(super) fn parse(path: &'a str) -> Option<Self> {
        let rest = path.strip_prefix("/apis/")?.strip_prefix(GROUP)?.strip_prefix('/')?;
        let segments: Vec<&str> = rest.split('/').collect();
        if segments.iter().any(|segment| segment.is_empty() || segment.contains('%')) {
            return None;
        }
        let (version, namespace, rest) = match segments.as_slice() {
            [version, "namespaces", namespace, rest @ ..] => (*version, Some(*namespace), rest),
            [version, rest @ ..] => (*version, None, rest),
            [] => return None,
        };
        let (resource, rest) = rest.split_first()?;
        let (name, subresource) = match rest.split_first() {
            Some((name, subresource)) => (Some(*name), subresource.to_vec()),
            None => (None, Vec::new()),
        };
        Some(Self { version, namespace, resource, name, subresource })
    }

    /// The subresource as roles name it: a port is not part of it.
    pub(super) fn rbac_subresource(&self) -> String {
        match self.subresource.as_slice() {
            [PORT_FORWARD, ..] => PORT_FORWARD.to_owned(),
            subresource => subresource.join("/"),
        }
    }
}

/// Something that is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A document about KubeVirt.
    Document(Document),
    /// `start`, `stop` or `restart` of a VM.
    Lifecycle(ObjectKey, Operation),
    /// `addvolume` or `removevolume`.
    Volume(VolumeEndpoint),
    /// `memorydump` of a VM, or `removememorydump`.
    MemoryDump(ObjectKey, bool),
    /// `expand-spec` of a VM.
    ExpandSpec(ObjectKey),
    /// `expand-vm-spec` of a VM that the request carries, in this namespace.
    ExpandVmSpec(String),
    /// `objectgraph` of a VM or a VMI.
    ObjectGraph(Kind, ObjectKey),
    /// What the agent of a VMI's node answers.
    Node(NodeEndpoint),
    /// KubeVirt has it, and it is refused.
    Unserved(Unserved),
}

/// A document about KubeVirt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Document {
    /// The image of libguestfs' tools.
    Guestfs,
    /// Whether the API server can be reached.
    Health,
    /// The version of KubeVirt.
    Version,
}

impl Document {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Guestfs, Self::Health, Self::Version];

    /// The last segment of its path.
    pub fn name(self) -> &'static str {
        match self {
            Self::Guestfs => "guestfs",
            Self::Health => "healthz",
            Self::Version => "version",
        }
    }
}

/// What a VM is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `start`
    Start,
    /// `stop`
    Stop,
    /// `restart`
    Restart,
}

/// `addvolume` or `removevolume`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeEndpoint {
    /// A VM, whose controller does it, or a VMI alone.
    pub(super) kind: Kind,
    pub(super) key: ObjectKey,
    pub(super) adds: bool,
}

/// What the agent of a VMI's node answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEndpoint {
    pub(super) key: ObjectKey,
    /// `console`, `usbredir`, `vnc`, `vnc/screenshot`, `vsock`, `portforward/PORT[/PROTOCOL]`, or one of [`AGENT`] or [`CONTROLS`].
    pub(super) subresource: String,
    /// Whether the VMI is named by its VM.
    pub(super) of_vm: bool,
}

impl Endpoint {
    /// What is served at a path.
    ///
    /// # Errors
    /// When nothing is.
    pub fn at(path: &Path<'_>) -> Result<Self, ApiError> {
        Self::find(path).ok_or_else(ApiError::path_not_found)
    }

    /// Whether it is a connection, which goes on for as long as its client wants.
    pub fn is_connection(&self) -> bool {
        match self {
            Self::Node(NodeEndpoint { subresource, .. }) => {
                matches!(subresource.as_str(), "console" | "usbredir" | "vnc" | "vsock")
                    || subresource.starts_with(PORT_FORWARD)
            }
            Self::Document(_)
            | Self::Lifecycle(..)
            | Self::Volume(_)
            | Self::MemoryDump(..)
            | Self::ExpandSpec(_)
            | Self::ExpandVmSpec(_)
            | Self::ObjectGraph(..)
            | Self::Unserved(_) => false,
        }
    }

    fn find(path: &Path<'_>) -> Option<Self> {
        if !VERSIONS.contains(&path.version) {
            return None;
        }
        let Some(namespace) = path.namespace else {
            if path.name.is_some() {
                return None;
            }
            let document = Document::ALL.into_iter().find(|document| document.name() == path.resource);
            let unserved = || Unserved::document(path.resource).map(Self::Unserved);
            return document.map(Self::Document).or_else(unserved);
        };
        // As part of a path, only a valid name means the object of that name.
        if !is_dns_subdomain(namespace) || !path.name.is_none_or(is_dns_subdomain) {
            return None;
        }
        if (path.resource, path.name) == ("expand-vm-spec", None) {
            return Some(Self::ExpandVmSpec(namespace.to_owned()));
        }
        let kind = [Kind::VM, Kind::VMI].into_iter().find(|kind| kind.plural == path.resource)?;
        Self::of_object(kind, ObjectKey::new(namespace, path.name?), &path.subresource)
    }

    fn of_object(kind: Kind, key: ObjectKey, subresource: &[&str]) -> Option<Self> {
        let of_vm = kind == Kind::VM;
        let operation = match subresource {
            ["expand-spec"] if of_vm => return Some(Self::ExpandSpec(key)),
            [MEMORY_DUMP] if of_vm => return Some(Self::MemoryDump(key, false)),
            [REMOVE_MEMORY_DUMP] if of_vm => return Some(Self::MemoryDump(key, true)),
            [ADD_VOLUME] => return Some(Self::Volume(VolumeEndpoint { kind, key, adds: true })),
            [REMOVE_VOLUME] => return Some(Self::Volume(VolumeEndpoint { kind, key, adds: false })),
            [OBJECT_GRAPH] => return Some(Self::ObjectGraph(kind, key)),
            ["start"] => Operation::Start,
            ["stop"] => Operation::Stop,
            ["restart"] => Operation::Restart,
            subresource => {
                let unserved = Unserved::of_object(kind, subresource).map(Self::Unserved);
                return unserved.or_else(|| node(key, of_vm, subresource));
            }
        };
        of_vm.then_some(Self::Lifecycle(key, operation))
    }
}

fn node(key: ObjectKey, of_vm: bool, subresource: &[&str]) -> Option<Endpoint> {
    let is_port = match subresource {
        [PORT_FORWARD, port] => is_word(port),
        [PORT_FORWARD, port, protocol] => is_word(port) && is_word(protocol),
        _ => false,
    };
    let subresource = subresource.join("/");
    let is_of_vmi =
        || [&STREAMS[..], &AGENT, &CONTROLS].iter().any(|names| names.contains(&subresource.as_str()));
    (is_port || !of_vm && is_of_vmi()).then_some(Endpoint::Node(NodeEndpoint {
        key,
        subresource: subresource.clone(),
        of_vm,
    }))
}

/// Whether it needs no escape in a path.
fn is_word(text: &str) -> bool {
    text.chars().all(|letter| letter.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(rest: &str) -> Option<Endpoint> {
        Endpoint::at(&Path::parse(&format!("/apis/subresources.kubevirt.io/{rest}"))?).ok()
    }

    #[test]
    fn roles_name_subresources_without_ports() {
        let named = |rest: &str| {
            let path =
                format!("/apis/subresources.kubevirt.io/v1/namespaces/n/virtualmachineinstances/x/{rest}");
            Path::parse(&path).unwrap().rbac_subresource()
        };
        assert_eq!(named("portforward/22/tcp"), "portforward");
        assert_eq!(named("vnc/screenshot"), "vnc/screenshot");
    }

    #[test]
    fn ports_are_those_of_vms_and_vmis() {
        for (path, of_vm) in [("virtualmachines/b", true), ("virtualmachineinstances/b", false)] {
            for what in ["portforward/22", "portforward/53/udp"] {
                let endpoint = at(&format!("v1/namespaces/a/{path}/{what}")).unwrap();
                let key = ObjectKey::new("a", "b");
                let expected = Endpoint::Node(NodeEndpoint { key, subresource: what.to_owned(), of_vm });
                assert!(endpoint.is_connection());
                assert_eq!(endpoint, expected, "{path}");
            }
        }
    }

    #[test]
    fn what_is_not_served_is_not_found() {
        for path in [
            "v1/namespaces/a/virtualmachines/b/freeze",
            "v1/namespaces/a/virtualmachineinstances/b/sev",
            "v1/namespaces/a/virtualmachineinstances/b/start",
            "v1/namespaces/a/virtualmachineinstances/b",
            "v1/namespaces/a/virtualmachines/b/console",
            "v1/namespaces/a/virtualmachines/b/portforward",
            "v1/namespaces/a/virtualmachines/b/portforward/22%3f",
            "v1/namespaces/a/virtualmachines/b/portforward/22?",
            "v1/namespaces/a/virtualmachines/b/portforward/22/tcp/x",
            "v1/namespaces/a/virtualmachines/../start",
            "v1/namespaces/a/virtualmachines/b%2Fc/start",
            "v1/namespaces/a/virtualmachines//start",
            "v1/namespaces/a/expand-vm-spec/b",
            "v1/namespaces/a",
            "v2/namespaces/a/virtualmachines/b/start",
        ] {
            assert_eq!(at(path), None, "{path}");
        }
    }

    /// KubeVirt's subresources, and what becomes of each: `-` is refused with a reason, as are documents.
    const ROUTES: [(&str, &str); 46] = [
        ("version", "document"),
        ("healthz", "document"),
        ("guestfs", "document"),
        ("start-cluster-profiler", "-"),
        ("stop-cluster-profiler", "-"),
        ("dump-cluster-profiler", "-"),
        ("namespaces/a/expand-vm-spec", "expand"),
        ("namespaces/a/virtualmachines/b/start", "lifecycle"),
        ("namespaces/a/virtualmachines/b/stop", "lifecycle"),
        ("namespaces/a/virtualmachines/b/restart", "lifecycle"),
        ("namespaces/a/virtualmachines/b/migrate", "-"),
        ("namespaces/a/virtualmachines/b/expand-spec", "expand"),
        ("namespaces/a/virtualmachines/b/portforward/22", "node"),
        ("namespaces/a/virtualmachines/b/portforward/22/tcp", "node"),
        ("namespaces/a/virtualmachines/b/addvolume", "volume"),
        ("namespaces/a/virtualmachines/b/removevolume", "volume"),
        ("namespaces/a/virtualmachines/b/memorydump", "dump"),
        ("namespaces/a/virtualmachines/b/removememorydump", "dump"),
        ("namespaces/a/virtualmachines/b/objectgraph", "graph"),
        ("namespaces/a/virtualmachines/b/evacuate/cancel", "-"),
        ("namespaces/a/virtualmachineinstances/b/console", "node"),
        ("namespaces/a/virtualmachineinstances/b/vnc", "node"),
        ("namespaces/a/virtualmachineinstances/b/vnc/screenshot", "node"),
        ("namespaces/a/virtualmachineinstances/b/usbredir", "node"),
        ("namespaces/a/virtualmachineinstances/b/vsock", "node"),
        ("namespaces/a/virtualmachineinstances/b/portforward/22", "node"),
        ("namespaces/a/virtualmachineinstances/b/portforward/22/udp", "node"),
        ("namespaces/a/virtualmachineinstances/b/pause", "node"),
        ("namespaces/a/virtualmachineinstances/b/unpause", "node"),
        ("namespaces/a/virtualmachineinstances/b/freeze", "node"),
        ("namespaces/a/virtualmachineinstances/b/unfreeze", "node"),
        ("namespaces/a/virtualmachineinstances/b/reset", "node"),
        ("namespaces/a/virtualmachineinstances/b/softreboot", "node"),
        ("namespaces/a/virtualmachineinstances/b/guestosinfo", "node"),
        ("namespaces/a/virtualmachineinstances/b/userlist", "node"),
        ("namespaces/a/virtualmachineinstances/b/filesystemlist", "node"),
        ("namespaces/a/virtualmachineinstances/b/addvolume", "volume"),
        ("namespaces/a/virtualmachineinstances/b/removevolume", "volume"),
        ("namespaces/a/virtualmachineinstances/b/objectgraph", "graph"),
        ("namespaces/a/virtualmachineinstances/b/evacuate/cancel", "-"),
        ("namespaces/a/virtualmachineinstances/b/sev/fetchcertchain", "-"),
        ("namespaces/a/virtualmachineinstances/b/sev/querylaunchmeasurement", "-"),
        ("namespaces/a/virtualmachineinstances/b/sev/setupsession", "-"),
        ("namespaces/a/virtualmachineinstances/b/sev/injectlaunchsecret", "-"),
        ("namespaces/a/virtualmachineinstances/b/backup", "-"),
        ("namespaces/a/virtualmachineinstances/b/redefine-checkpoint", "-"),
    ];

    #[test]
    fn each_subresource_of_kubevirt_is_served_or_refused_with_a_reason() {
        for version in VERSIONS {
            for (route, expected) in ROUTES {
                let endpoint = at(&format!("{version}/{route}"));
                let found = match &endpoint {
                    Some(Endpoint::Document(_)) => "document",
                    Some(Endpoint::Lifecycle(..)) => "lifecycle",
                    Some(Endpoint::Volume(_)) => "volume",
                    Some(Endpoint::MemoryDump(..)) => "dump",
                    Some(Endpoint::ExpandSpec(_) | Endpoint::ExpandVmSpec(_)) => "expand",
                    Some(Endpoint::ObjectGraph(..)) => "graph",
                    Some(Endpoint::Node(_)) => "node",
                    Some(Endpoint::Unserved(_)) => "-",
                    None => "not found",
                };
                assert_eq!(found, expected, "{version}/{route}");
            }
        }
    }

    #[test]
    fn documents_are_in_both_versions_only() {
        for version in VERSIONS {
            for document in Document::ALL {
                let path = format!("{version}/{}", document.name());
                assert_eq!(at(&path), Some(Endpoint::Document(document)));
                assert_eq!(at(&format!("{path}/x")), None);
            }
        }
        assert_eq!((at("v2/version"), at("v1/namespaces/a/version")), (None, None));
        assert_eq!(Path::parse("/apis/kubevirt.io/v1/version"), None);
    }
}
