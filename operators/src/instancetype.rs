//! Instance types and preferences: what they make of a VM's template.
//!
//! Both work on templates as they are stored, so that a field that this release does not know is carried along.

mod expand;
mod fill;
mod find;
mod infer;
mod infer_names;
mod informers;
pub mod reads;
mod requirements;
mod revision;
mod topology;

use serde_json::{Value, json};
use vireo_api::spec::Bytes;
use vireo_api::v1::{Matcher, VirtualMachineSpec};
use vireo_client::Kind;

pub use expand::{Expanded, expand, expand_with, is_replaced};
pub use fill::prefer;
pub use find::{Chosen, Lookup, find};
pub use infer::{CannotInfer, flaws, ignores, infer};
pub use infer_names::infer_names;
pub use informers::Informers;
pub use requirements::missing;
pub use revision::clear;
pub use topology::Topology;

/// Kinds that a matcher may name, as they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In the VM's namespace.
    Namespaced,
    /// Of the whole cluster.
    Cluster,
}

/// What is chosen: an instance type or a preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// `spec.instancetype`
    Instancetype,
    /// `spec.preference`
    Preference,
}

impl Choice {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Instancetype, Self::Preference];

    /// The matcher of a VM.
    pub fn matcher(self, spec: &VirtualMachineSpec) -> Option<&Matcher> {
        match self {
            Self::Instancetype => spec.instancetype.as_ref(),
            Self::Preference => spec.preference.as_ref(),
        }
    }

    /// The field of a VM's spec that names it.
    pub fn field(self) -> &'static str {
        match self {
            Self::Instancetype => "instancetype",
            Self::Preference => "preference",
        }
    }

    /// The name of its kind.
    pub fn kind(self, scope: Scope) -> &'static str {
        self.resource(scope).kind
    }

    /// Its kind, and where its objects are.
    pub fn resource(self, scope: Scope) -> Kind {
        match (self, scope) {
            (Self::Instancetype, Scope::Namespaced) => Kind::INSTANCETYPE,
            (Self::Instancetype, Scope::Cluster) => Kind::CLUSTER_INSTANCETYPE,
            (Self::Preference, Scope::Namespaced) => Kind::PREFERENCE,
            (Self::Preference, Scope::Cluster) => Kind::CLUSTER_PREFERENCE,
        }
    }

    /// What a matcher's `kind` means: in any case, singular or plural; nothing is the cluster's.
    pub fn scope(self, kind: &str) -> Option<Scope> {
        let kind = kind.to_lowercase();
        let kind = kind.strip_suffix('s').unwrap_or(&kind);
        [Scope::Cluster, Scope::Namespaced].into_iter().find(|&scope| {
            kind.is_empty() && scope == Scope::Cluster || kind == self.kind(scope).to_lowercase()
        })
    }
}

/// Fields of an instance type and where they go in an instance's spec.
const FIELDS: [(&str, &str); 13] = [
    ("/cpu/model", "domain.cpu.model"),
    ("/cpu/dedicatedCPUPlacement", "domain.cpu.dedicatedCpuPlacement"),
    ("/cpu/isolateEmulatorThread", "domain.cpu.isolateEmulatorThread"),
    ("/cpu/numa", "domain.cpu.numa"),
    ("/cpu/realtime", "domain.cpu.realtime"),
    ("/cpu/maxSockets", "domain.cpu.maxSockets"),
    ("/memory/hugepages", "domain.memory.hugepages"),
    ("/memory/maxGuest", "domain.memory.maxGuest"),
    ("/gpus", "domain.devices.gpus"),
    ("/hostDevices", "domain.devices.hostDevices"),
    ("/ioThreadsPolicy", "domain.ioThreadsPolicy"),
    ("/ioThreads", "domain.ioThreads"),
    ("/launchSecurity", "domain.launchSecurity"),
];

/// Fields of a template that an instance type decides alone.
const OWNED: [&str; 8] = [
    "domain.cpu.cores",
    "domain.cpu.sockets",
    "domain.cpu.threads",
    "domain.memory.guest",
    "domain.resources.requests.cpu",
    "domain.resources.limits.cpu",
    "domain.resources.requests.memory",
    "domain.resources.limits.memory",
];

/// Puts an instance type's spec into a template, with the CPU topology of `preference`. Fields of the template
/// that are set already are conflicts: they are returned, by their paths below the template, and then the template
/// is not to be used.
///
/// # Errors
/// What is wrong with the instance type or the preference, for people.
pub fn apply(
    template: &mut Value,
    instancetype: &Value,
    preference: Option<&Value>,
) -> Result<Vec<String>, String> {
    let mut conflicts = Vec::new();
    for field in OWNED {
        if says_something(at(template, "spec", field)) {
            conflicts.push(format!("spec.{field}"));
        }
    }
    for (from, to) in FIELDS {
        let Some(value) = instancetype.pointer(from).filter(|value| says_something(Some(value))) else {
            continue;
        };
        put(template, "spec", to, value.clone(), &mut conflicts);
    }
    if let Some(name) = instancetype.get("schedulerName").filter(|name| says_something(Some(name))) {
        put(template, "spec", "schedulerName", name.clone(), &mut conflicts);
    }
    for (from, (root, to)) in
        [("nodeSelector", ("spec", "nodeSelector")), ("annotations", ("metadata", "annotations"))]
    {
        for (name, value) in instancetype.get(from).and_then(Value::as_object).into_iter().flatten() {
            let held = template.pointer(&format!("/{root}/{to}")).and_then(|map| map.get(name));
            match held {
                Some(held) if held != value => conflicts.push(format!("{root}.{to}.{name}")),
                _ => template[root][to][name] = value.clone(),
            }
        }
    }
    let topology = Topology::of(instancetype, preference)?;
    let memory = memory(instancetype)?;
    if conflicts.is_empty() {
        let Topology { sockets, cores, threads } = topology;
        for (field, number) in [("sockets", sockets), ("cores", cores), ("threads", threads)] {
            template["spec"]["domain"]["cpu"][field] = json!(number);
        }
        template["spec"]["domain"]["memory"]["guest"] = instancetype["memory"]["guest"].clone();
        if let Some(requested) = memory {
            template["spec"]["domain"]["resources"]["requests"]["memory"] = json!(requested);
        }
    }
    Ok(conflicts)
}

/// What is asked of the node for the memory, where that is less than the guest's: bytes, as a quantity.
fn memory(instancetype: &Value) -> Result<Option<String>, String> {
    let guest = instancetype.pointer("/memory/guest").and_then(Value::as_str).unwrap_or_default();
    let guest: Bytes = guest.parse().map_err(|error| format!("memory.guest: {error}"))?;
    let percent =
        instancetype.pointer("/memory/overcommitPercent").and_then(Value::as_u64).unwrap_or(0).min(100);
    let requested = u128::from(guest.get()) * u128::from(100 - percent) / 100;
    Ok((percent > 0).then(|| requested.to_string()))
}

/// The value of a field, by its dotted path below a field of the template.
fn at<'a>(template: &'a Value, root: &str, path: &str) -> Option<&'a Value> {
    template.pointer(&format!("/{root}/{}", path.replace('.', "/")))
}

/// Whether a field was filled: what is absent, empty or zero was not.
fn says_something(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::Number(number)) => number.as_i64() != Some(0),
        Some(Value::Bool(_) | Value::Object(_)) => true,
    }
}

fn put(template: &mut Value, root: &str, path: &str, value: Value, conflicts: &mut Vec<String>) {
    if says_something(at(template, root, path)) {
        conflicts.push(format!("{root}.{path}"));
    } else {
        set(&mut template[root], path, value);
    }
}

/// Sets a field by its dotted path. A value on the path that is not an object is left alone: it is rejected elsewhere.
fn set(value: &mut Value, path: &str, to: Value) {
    let mut here = value;
    for name in path.split('.') {
        if here.is_null() {
            *here = json!({});
        }
        let Some(fields) = here.as_object_mut() else { return };
        here = fields.entry(name).or_insert(Value::Null);
    }
    *here = to;
}

#[cfg(test)]
mod tests;
