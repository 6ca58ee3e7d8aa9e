//! The template of a VM.

use serde_json::Value;
use uuid::Uuid;

use super::fields::{Fields, fill, object};
use crate::config::{ARCHITECTURE, ClusterConfig};

/// What the firmware of a VM shows, if its template does not say. What is empty is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    uuid: String,
    serial: String,
}

impl Identity {
    /// That of a VM: another one for each that is new. One that is stored keeps what it has, also when a manifest or the
    /// template of a pool replaces its own.
    pub(crate) fn new(old: Option<&Value>) -> Self {
        let Some(old) = old else {
            return Self { uuid: Uuid::new_v4().to_string(), serial: Uuid::new_v4().to_string() };
        };
        let text = |name: &str| {
            let text = old.pointer(&format!("/spec/template/spec/domain/firmware/{name}"));
            text.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        Self { uuid: text("uuid"), serial: text("serial") }
    }
}

/// Completes the template of a VM, by the spec of its preference if it has one. To do it again changes nothing.
pub(crate) fn fill_template(
    template: &mut Fields,
    preference: Option<&Value>,
    config: &ClusterConfig,
    identity: &Identity,
) {
    let preferred = |pointer: &str, default: &str| {
        let preferred = preference.and_then(|preference| preference.pointer(pointer)?.as_str());
        preferred.filter(|preferred| !preferred.is_empty()).unwrap_or(default).to_owned()
    };
    let Some(spec) = object(template, "spec") else { return };
    fill(spec, "architecture", preferred("/preferredArchitecture", ARCHITECTURE));
    let Some(domain) = object(spec, "domain") else { return };
    if let Some(machine) = object(domain, "machine") {
        fill(machine, "type", preferred("/machine/preferredMachineType", &config.machine_type));
    }
    for (name, known) in [("uuid", &identity.uuid), ("serial", &identity.serial)] {
        if known.is_empty() {
            continue;
        }
        if let Some(firmware) = object(domain, "firmware") {
            fill(firmware, name, known.as_str());
        }
    }
}
