//! What a new pod must be.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use serde_json::Value;

use super::{containers, list, text};
use crate::meta::{is_dns_label, is_dns_name};
use crate::resource::Cause;

const RESTART: [&str; 3] = ["Always", "Never", "OnFailure"];
const DNS: [&str; 4] = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
const PULL: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const DEADLINES: RangeInclusive<i64> = 1..=i32::MAX as i64;
const PORTS: RangeInclusive<i64> = 1..=65535;
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// Everything that is wrong with the spec of a new pod.
pub(super) fn spec(pod: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let names = |field: &str| list(pod, &format!("/spec/{field}"));
    unique_labels(names("volumes"), "spec.volumes", &mut HashSet::new(), &mut causes);
    if names("containers").is_empty() {
        causes.push(Cause::required("spec.containers", "Required value"));
    }
    let mut seen = HashSet::new();
    unique_labels(names("containers"), "spec.containers", &mut seen, &mut causes);
    unique_labels(names("initContainers"), "spec.initContainers", &mut seen, &mut causes);
    let volumes: HashSet<&str> = names("volumes").iter().map(|volume| text(volume, "/name")).collect();
    for (field, index, one) in containers(pod) {
        container(one, &format!("spec.{field}[{index}]"), &volumes, &mut causes);
    }
    supported(pod, "spec.restartPolicy", "/spec/restartPolicy", &RESTART, &mut causes);
    supported(pod, "spec.dnsPolicy", "/spec/dnsPolicy", &DNS, &mut causes);
    if let Some(seconds) = integer(pod, "/spec/activeDeadlineSeconds") {
        in_range("spec.activeDeadlineSeconds", seconds, DEADLINES, &mut causes);
    }
    for (field, fits, why) in [
        ("nodeName", is_dns_name as fn(&str) -> bool, SUBDOMAIN),
        ("serviceAccountName", is_dns_name, SUBDOMAIN),
        ("hostname", is_dns_label, LABEL),
        ("subdomain", is_dns_label, LABEL),
    ] {
        let has = text(pod, &format!("/spec/{field}"));
        if !has.is_empty() && !fits(has) {
            causes.push(Cause::invalid(format!("spec.{field}"), format!("Invalid value: {has:?}: {why}")));
        }
    }
    if !names("schedulingGates").is_empty() && !text(pod, "/spec/nodeName").is_empty() {
        let why = "Forbidden: cannot be set until all schedulingGates have been cleared";
        causes.push(Cause::forbidden("spec.nodeName", why));
    }
    causes
}

fn container(container: &Value, at: &str, volumes: &HashSet<&str>, causes: &mut Vec<Cause>) {
    if text(container, "/image").is_empty() {
        causes.push(Cause::required(format!("{at}.image"), "Required value"));
    }
    supported(container, &format!("{at}.imagePullPolicy"), "/imagePullPolicy", &PULL, causes);
    for (index, variable) in list(container, "/env").iter().enumerate() {
        if text(variable, "/name").is_empty() {
            causes.push(Cause::required(format!("{at}.env[{index}].name"), "Required value"));
        }
    }
    for (index, port) in list(container, "/ports").iter().enumerate() {
        let at = format!("{at}.ports[{index}]");
        match integer(port, "/containerPort") {
            None => causes.push(Cause::required(format!("{at}.containerPort"), "Required value")),
            Some(number) => in_range(&format!("{at}.containerPort"), number, PORTS, causes),
        }
        supported(port, &format!("{at}.protocol"), "/protocol", &PROTOCOLS, causes);
    }
    for (field, path) in [("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")] {
        for (index, used) in list(container, &format!("/{field}")).iter().enumerate() {
            let (at, name) = (format!("{at}.{field}[{index}]"), text(used, "/name"));
            if name.is_empty() {
                causes.push(Cause::required(format!("{at}.name"), "Required value"));
            } else if !volumes.contains(name) {
                causes.push(Cause::not_found(format!("{at}.name"), name));
            }
            if text(used, &format!("/{path}")).is_empty() {
                causes.push(Cause::required(format!("{at}.{path}"), "Required value"));
            }
        }
    }
}

/// Names that are DNS labels and that no other element has.
fn unique_labels<'a>(elements: &'a [Value], at: &str, seen: &mut HashSet<&'a str>, causes: &mut Vec<Cause>) {
    for (index, element) in elements.iter().enumerate() {
        let (field, name) = (format!("{at}[{index}].name"), text(element, "/name"));
        if name.is_empty() {
            causes.push(Cause::required(field, "Required value"));
        } else if !is_dns_label(name) {
            causes.push(Cause::invalid(field, format!("Invalid value: {name:?}: {LABEL}")));
        } else if !seen.insert(name) {
            causes.push(Cause::duplicate(field, name));
        }
    }
}

fn supported(object: &Value, at: &str, pointer: &str, values: &[&str], causes: &mut Vec<Cause>) {
    let has = text(object, pointer);
    if !values.contains(&has) {
        let values: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
        let why = format!("Unsupported value: {has:?}: supported values: {}", values.join(", "));
        causes.push(Cause::unsupported(at, why));
    }
}

pub(super) fn in_range(at: &str, has: i64, range: RangeInclusive<i64>, causes: &mut Vec<Cause>) {
    if !range.contains(&has) {
        let (least, most) = (range.start(), range.end());
        let why = format!("Invalid value: {has}: must be between {least} and {most}, inclusive");
        causes.push(Cause::invalid(at, why));
    }
}

pub(super) fn integer(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer).and_then(Value::as_i64)
}
