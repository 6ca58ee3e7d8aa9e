use serde_json::Value;
use vireo_api::spec::Bytes;

use super::at;

/// The unmet requirements of a preference in a VM's expanded template: the field below the template, and the message.
pub fn missing(template: &Value, preference: &Value) -> Vec<(String, String)> {
    let mut lacks = Vec::new();
    let Some(requirements) = preference.get("requirements") else { return lacks };
    let number =
        |field: &str| at(template, "spec", field).and_then(Value::as_u64).filter(|number| *number > 0);
    if let Some(wanted) = requirements.pointer("/cpu/guest").and_then(Value::as_u64) {
        let parts =
            ["sockets", "cores", "threads"].map(|part| number(&format!("domain.cpu.{part}")).unwrap_or(1));
        let has = parts.iter().fold(1, |all: u64, part| all.saturating_mul(*part));
        if has < wanted {
            let why = format!(
                "insufficient CPU resources of {has} vCPU provided, preference requires {wanted} vCPU"
            );
            lacks.push(("spec.domain.cpu".to_owned(), why));
        }
    }
    let bytes = |value: Option<&Value>| value.and_then(Value::as_str)?.parse::<Bytes>().ok();
    if let Some(wanted) = bytes(requirements.pointer("/memory/guest")) {
        let has = bytes(at(template, "spec", "domain.memory.guest"));
        if has.is_none_or(|has| has.get() < wanted.get()) {
            let has = has.map_or_else(|| "nothing".to_owned(), |has| has.to_string());
            let why =
                format!("insufficient Memory resources of {has} provided, preference requires {wanted}");
            lacks.push(("spec.domain.memory".to_owned(), why));
        }
    }
    let architecture = |value: Option<&Value>| {
        value.and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
    };
    if let Some(wanted) = architecture(requirements.get("architecture")) {
        let has = architecture(at(template, "spec", "architecture")).unwrap_or_else(|| "amd64".to_owned());
        if has != wanted {
            let why = format!("preference requires architecture {wanted} but {has} is being requested");
            lacks.push(("spec.architecture".to_owned(), why));
        }
    }
    lacks
}
