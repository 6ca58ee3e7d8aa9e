//! The secondary networks of an instance in its launcher Pod: Multus gives the Pod an interface on each, by annotations.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Map, Value, json};
use vireo_api::names::pod_interface;
use vireo_api::spec::NetworkAttachment;
use vireo_api::v1::{Interface, VirtualMachineInstance};

use super::pod::NETWORKS_ANNOTATION;

/// The network that Multus attaches instead of it.
const DEFAULT_NETWORK_ANNOTATION: &str = "v1.multus-cni.io/default-network";
/// The annotation of a NetworkAttachmentDefinition with the resource of nodes that its network needs.
pub(super) const RESOURCE_ANNOTATION: &str = "k8s.v1.cni.cncf.io/resourceName";

/// The namespace and the name of a NetworkAttachmentDefinition.
pub(super) type DefinitionKey = (String, String);

/// The resources that networks need, by their NetworkAttachmentDefinitions, which exist.
pub(super) type Definitions = BTreeMap<DefinitionKey, Option<String>>;

/// A network of Multus.
struct MultusNetwork<'a> {
    name: &'a str,
    definition: DefinitionKey,
    is_default: bool,
}

/// Those that the Pod is to be on: one whose NIC is unplugged goes after the guest has released it.
fn multus_networks(vmi: &VirtualMachineInstance) -> impl Iterator<Item = MultusNetwork<'_>> {
    let nic = |name: &str| vmi.spec.domain.devices.interfaces.iter().find(|nic| nic.name == name);
    let is_shown = |name: &str| vmi.status.interfaces.iter().any(|nic| nic.name == name);
    let is_gone = move |name: &str| nic(name).is_some_and(Interface::is_absent) && !is_shown(name);
    let networks = vmi.spec.networks.iter().filter(move |network| !is_gone(&network.name));
    networks.filter_map(|network| {
        let attachment = NetworkAttachment::read(network.multus.as_ref()?)?;
        let namespace = attachment.namespace().unwrap_or(&vmi.metadata.namespace);
        Some(MultusNetwork {
            name: &network.name,
            definition: (namespace.to_owned(), attachment.name().to_owned()),
            is_default: attachment.is_default(),
        })
    })
}

/// The NetworkAttachmentDefinitions that an instance names.
pub(super) fn definitions(vmi: &VirtualMachineInstance) -> impl Iterator<Item = DefinitionKey> {
    multus_networks(vmi).map(|network| network.definition)
}

/// Adds an instance's networks to its launcher Pod, whose first container is the launcher.
pub(super) fn add(pod: &mut Pod, vmi: &VirtualMachineInstance, definitions: &Definitions) {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    let mut secondary = Vec::new();
    let mut resources: BTreeMap<&str, u32> = BTreeMap::new();
    for network in multus_networks(vmi) {
        let (namespace, name) = &network.definition;
        match network.is_default {
            true => {
                let name = format!("{namespace}/{name}");
                annotations.insert(DEFAULT_NETWORK_ANNOTATION.to_owned(), name);
            }
            false => secondary.push(requested(vmi, &network)),
        }
        if let Some(resource) = definitions.get(&network.definition).and_then(Option::as_deref) {
            *resources.entry(resource).or_default() += 1;
        }
    }
    if !secondary.is_empty() {
        annotations.insert(NETWORKS_ANNOTATION.to_owned(), Value::Array(secondary).to_string());
    }
    let container = pod.spec.as_mut().and_then(|spec| spec.containers.first_mut());
    let Some(container) = container.filter(|_| !resources.is_empty()) else { return };
    let required = container.resources.get_or_insert_default();
    // The request of a device is its limit.
    for list in [&mut required.requests, &mut required.limits] {
        let list = list.get_or_insert_default();
        for (name, count) in &resources {
            let requested = list.entry((*name).to_owned()).or_insert_with(|| Quantity("0".to_owned()));
            // Devices of the host may be of the same resource, and are counted already.
            let devices: u32 = requested.0.parse().unwrap_or_default();
            requested.0 = devices.saturating_add(*count).to_string();
        }
    }
}

/// What Multus is to be asked for, if that is not what the annotation of the launcher Pod asks for.
pub(super) fn changed(vmi: &VirtualMachineInstance, annotation: &str) -> Option<String> {
    let secondary = multus_networks(vmi).filter(|network| !network.is_default);
    let wanted: Vec<Value> = secondary.map(|network| requested(vmi, &network)).collect();
    let has: Vec<Value> = match annotation {
        "" => Vec::new(),
        // What another client has written there stays.
        text => serde_json::from_str(text).ok()?,
    };
    let differs = wanted.len() != has.len() || wanted.iter().any(|one| !has.contains(one));
    differs.then(|| Value::Array(wanted).to_string())
}

/// What Multus is asked for.
fn requested(vmi: &VirtualMachineInstance, network: &MultusNetwork<'_>) -> Value {
    let interfaces = &vmi.spec.domain.devices.interfaces;
    let mac = interfaces.iter().find(|one| one.name == network.name).map(|one| one.mac_address.as_str());
    let (namespace, name) = &network.definition;
    let mut request = Map::from_iter([
        ("name".to_owned(), json!(name)),
        ("namespace".to_owned(), json!(namespace)),
        ("interface".to_owned(), json!(pod_interface(network.name))),
    ]);
    if let Some(mac) = mac.filter(|mac| !mac.is_empty()) {
        request.insert("mac".to_owned(), json!(mac));
    }
    Value::Object(request)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Container, PodSpec};

    use super::*;

    fn vmi(networks: &Value) -> VirtualMachineInstance {
        let nic = json!({"name": "blue", "bridge": {}, "macAddress": "52:54:00:00:00:07"});
        serde_json::from_value(json!({"metadata": {"name": "demo", "namespace": "n"}, "spec": {
            "domain": {"devices": {"interfaces": [nic, {"name": "red", "bridge": {}}]}}, "networks": networks}}))
        .unwrap()
    }

    fn with(vmi: &VirtualMachineInstance, definitions: &Definitions) -> Value {
        let containers = vec![Container::default()];
        let mut pod = Pod { spec: Some(PodSpec { containers, ..PodSpec::default() }), ..Pod::default() };
        add(&mut pod, vmi, definitions);
        json!(pod)
    }

    #[test]
    fn multus_is_asked_for_an_interface_on_each_secondary_network() {
        let vmi =
            vmi(&json!([{"name": "pods", "pod": {}}, {"name": "blue", "multus": {"networkName": "lan"}},
            {"name": "red", "multus": {"networkName": "net/lan"}}]));
        let named: Vec<_> = definitions(&vmi).collect();
        let key = |namespace: &str| (namespace.to_owned(), "lan".to_owned());
        assert_eq!(named, [key("n"), key("net")]);
        let found = Definitions::from([(key("n"), Some("example.com/port".to_owned())), (key("net"), None)]);
        let pod = with(&vmi, &found);
        let annotation = pod["metadata"]["annotations"][NETWORKS_ANNOTATION].as_str().unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(annotation).unwrap(),
            json!([{"name": "lan", "namespace": "n", "interface": "pod16477688c0e", "mac": "52:54:00:00:00:07"},
                {"name": "lan", "namespace": "net", "interface": "podb1f51a511f1"}])
        );
        let one = json!({"example.com/port": "1"});
        assert_eq!(pod["spec"]["containers"][0]["resources"], json!({"requests": one, "limits": one}));
    }

    #[test]
    fn the_default_network_has_an_annotation_of_its_own() {
        let vmi = vmi(&json!([{"name": "blue", "multus": {"networkName": "lan", "default": true}}]));
        let pod = with(&vmi, &Definitions::new());
        assert_eq!(pod["metadata"]["annotations"], json!({DEFAULT_NETWORK_ANNOTATION: "n/lan"}));
        assert_eq!(pod["spec"]["containers"][0].get("resources"), None);
    }

    #[test]
    fn a_resource_is_counted_once_for_each_network() {
        let vmi = vmi(&json!([{"name": "blue", "multus": {"networkName": "lan"}},
            {"name": "red", "multus": {"networkName": "lan"}}]));
        let found =
            Definitions::from([(("n".to_owned(), "lan".to_owned()), Some("example.com/port".to_owned()))]);
        let pod = with(&vmi, &found);
        assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"], json!({"example.com/port": "2"}));
        let mut pod: Pod = serde_json::from_value(pod).unwrap();
        add(&mut pod, &vmi, &found);
        let limits = pod.spec.unwrap().containers.remove(0).resources.unwrap().limits.unwrap();
        assert_eq!(limits["example.com/port"].0, "4", "as host devices of the resource are counted");
    }

    #[test]
    fn pods_of_instances_without_such_networks_stay_as_they_are() {
        let pod = with(&vmi(&json!([{"name": "pods", "pod": {}}])), &Definitions::new());
        assert_eq!(pod["metadata"]["annotations"], json!({}));
    }
}
