//! `objectgraph`: what a VM or a VMI depends on, as KubeVirt's tree.

use std::collections::BTreeMap;

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use kube::api::ListParams;
use serde::Deserialize;
use serde_json::{Value, json};
use vireo_api::names::CREATED_BY_LABEL;
use vireo_api::v1::{
    AccessCredential, LabelSelector, Matcher, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceSpec, Volume,
};
use vireo_client::{Kind, ObjectKey};

use super::{ApiError, VirtApi, body, json_response, read};
use crate::selector;

/// The label of a node: `compute`, `config`, `network` or `storage`.
const DEPENDENCY: &str = "kubevirt.io/dependency-type";

/// KubeVirt's `ObjectGraphOptions`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Options {
    include_optional_nodes: Option<bool>,
    label_selector: Option<LabelSelector>,
}

/// An object, and those that it depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    kind: Kind,
    /// Empty for an object of the cluster.
    namespace: String,
    name: String,
    optional: bool,
    children: Vec<Node>,
}

/// Answers for a VM or a VMI.
pub(super) async fn serve(
    server: &VirtApi,
    kind: Kind,
    key: ObjectKey,
    request: Request,
) -> Result<Response, ApiError> {
    if request.method() != Method::GET {
        return Err(ApiError::method_not_allowed());
    }
    let options: Options = match body::object(request).await? {
        None => Options::default(),
        Some(value) => serde_json::from_value(value)
            .map_err(|error| ApiError::bad_request(format!("the options cannot be read: {error}")))?,
    };
    let mut graph = match kind == Kind::VM {
        true => of_vm(server, &key).await?,
        false => of_vmi(server, &key).await?,
    };
    graph.children = options.filter(graph.children);
    Ok(json_response(StatusCode::OK, &graph.to_value()))
}

async fn of_vm(server: &VirtApi, key: &ObjectKey) -> Result<Node, ApiError> {
    let vm: VirtualMachine = read(Kind::VM.namespaced(&server.client, &key.namespace).get(&key.name).await?)?;
    let vmi = server.vmi_of(&vm).await?;
    let mut children = Vec::new();
    if let Some(vmi) = vmi {
        children.push(Node { children: pods(server, &vmi).await?, ..Node::new(Kind::VMI, key) });
    }
    let spec = vm.spec;
    let chosen = [
        (spec.instancetype, [Kind::INSTANCETYPE, Kind::CLUSTER_INSTANCETYPE]),
        (spec.preference, [Kind::PREFERENCE, Kind::CLUSTER_PREFERENCE]),
    ];
    for (matcher, kinds) in chosen {
        children.extend(matcher.into_iter().flat_map(|matcher| of_matcher(&matcher, kinds, &key.namespace)));
    }
    if let Some(template) = spec.template {
        children.extend(of_spec(&template.spec, &key.namespace));
    }
    Ok(Node { children, ..Node::new(Kind::VM, key) })
}

async fn of_vmi(server: &VirtApi, key: &ObjectKey) -> Result<Node, ApiError> {
    let vmis = Kind::VMI.namespaced(&server.client, &key.namespace);
    let vmi: VirtualMachineInstance = read(vmis.get(&key.name).await?)?;
    let mut children = pods(server, &vmi).await?;
    children.extend(of_spec(&vmi.spec, &key.namespace));
    Ok(Node { children, ..Node::new(Kind::VMI, key) })
}

/// The launcher Pods of a VMI.
async fn pods(server: &VirtApi, vmi: &VirtualMachineInstance) -> Result<Vec<Node>, ApiError> {
    let namespace = &vmi.metadata.namespace;
    let of_vmi = ListParams::default().labels(&format!("{CREATED_BY_LABEL}={}", vmi.metadata.uid));
    let pods = Kind::POD.namespaced(&server.client, namespace).list(&of_vmi).await?;
    let names = pods.items.into_iter().filter_map(|pod| pod.metadata.name);
    Ok(names.map(|name| Node::of(Kind::POD, namespace, &name)).collect())
}

/// An instance type or a preference, which need not exist any longer, and the revision that is kept of it.
fn of_matcher(matcher: &Matcher, [namespaced, cluster]: [Kind; 2], namespace: &str) -> Vec<Node> {
    let referent = match matcher.kind.eq_ignore_ascii_case(namespaced.kind) {
        true => Node::of(namespaced, namespace, &matcher.name),
        false => Node::of(cluster, "", &matcher.name),
    };
    let revision = Node::of(Kind::CONTROLLER_REVISION, namespace, &matcher.revision_name);
    let nodes = [Node { optional: true, ..referent }, revision];
    nodes.into_iter().filter(|node| !node.name.is_empty()).collect()
}

/// The objects that a VMI refers to.
fn of_spec(spec: &VirtualMachineInstanceSpec, namespace: &str) -> Vec<Node> {
    let credentials = spec.access_credentials.iter().filter_map(secret);
    let mut nodes: Vec<Node> = credentials.map(|name| Node::of(Kind::SECRET, namespace, name)).collect();
    nodes.extend(spec.volumes.iter().flat_map(|volume| of_volume(volume, namespace)));
    for network in spec.networks.iter().filter_map(|network| network.multus.as_ref()) {
        let (namespace, name) =
            network.network_name.split_once('/').unwrap_or((namespace, &network.network_name));
        nodes.push(Node::of(Kind::NETWORK, namespace, name));
    }
    nodes
}

fn secret(credential: &AccessCredential) -> Option<&str> {
    let key = credential.ssh_public_key.as_ref().map(|key| &key.source);
    let source = key.or_else(|| credential.user_password.as_ref().map(|password| &password.source))?;
    source.secret.as_ref().map(|secret| secret.secret_name.as_str())
}

fn of_volume(volume: &Volume, namespace: &str) -> Vec<Node> {
    let of = |kind: Kind, name: &str| Node::of(kind, namespace, name);
    let mut nodes = Vec::new();
    let claim = volume.used_claim().map(|claim| of(Kind::CLAIM, claim.name));
    match &volume.data_volume {
        Some(source) => {
            nodes.push(Node { children: claim.into_iter().collect(), ..of(Kind::DATA_VOLUME, &source.name) });
        }
        None => nodes.extend(claim),
    }
    nodes.extend(volume.config_map.iter().map(|source| of(Kind::CONFIG_MAP, &source.name)));
    nodes.extend(volume.secret.iter().map(|source| of(Kind::SECRET, &source.secret_name)));
    let account = volume.service_account.iter();
    nodes.extend(account.map(|source| of(Kind::SERVICE_ACCOUNT, &source.service_account_name)));
    for source in [&volume.cloud_init_no_cloud, &volume.cloud_init_config_drive].into_iter().flatten() {
        let references = [&source.secret_ref, &source.network_data_secret_ref].into_iter().flatten();
        nodes.extend(references.map(|reference| of(Kind::SECRET, &reference.name)));
    }
    if let Some(source) = &volume.sysprep {
        nodes.extend(source.secret.iter().map(|reference| of(Kind::SECRET, &reference.name)));
        nodes.extend(source.config_map.iter().map(|reference| of(Kind::CONFIG_MAP, &reference.name)));
    }
    nodes
}

impl Options {
    /// The nodes that are requested, with those of their children that are.
    fn filter(&self, nodes: Vec<Node>) -> Vec<Node> {
        let kept = nodes.into_iter().filter(|node| {
            let selector = self.label_selector.as_ref();
            let is_selected = selector.filter(|one| !selector::text(one).is_empty());
            (!node.optional || self.include_optional_nodes != Some(false))
                && is_selected.is_none_or(|selector| selector::matches(selector, &node.labels()))
        });
        kept.map(|node| Node { children: self.filter(node.children), ..node }).collect()
    }
}

impl Node {
    fn new(kind: Kind, key: &ObjectKey) -> Self {
        Self::of(kind, &key.namespace, &key.name)
    }

    fn of(kind: Kind, namespace: &str, name: &str) -> Self {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Self { kind, namespace, name, optional: false, children: Vec::new() }
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let dependency = match self.kind {
            Kind::DATA_VOLUME | Kind::CLAIM => "storage",
            Kind::POD | Kind::VM | Kind::VMI => "compute",
            Kind::SERVICE_ACCOUNT | Kind::NETWORK => "network",
            _ => "config",
        };
        BTreeMap::from([(DEPENDENCY.to_owned(), dependency.to_owned())])
    }

    fn to_value(&self) -> Value {
        let reference = json!({"apiGroup": self.kind.group, "kind": self.kind.kind, "name": self.name,
            "namespace": self.namespace});
        let mut value = json!({"objectReference": reference, "labels": self.labels()});
        if self.optional {
            value["optional"] = json!(true);
        }
        if !self.children.is_empty() {
            value["children"] = self.children.iter().map(Self::to_value).collect();
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vmi_depends_on_what_its_spec_names() {
        let spec: VirtualMachineInstanceSpec = serde_json::from_value(json!({
            "accessCredentials": [{"sshPublicKey": {"source": {"secret": {"secretName": "keys"}}}}],
            "networks": [{"name": "lan", "multus": {"networkName": "other/lan"}}, {"name": "default", "pod": {}}],
            "volumes": [
                {"name": "a", "dataVolume": {"name": "dv"}},
                {"name": "b", "ephemeral": {"persistentVolumeClaim": {"claimName": "base"}}},
                {"name": "c", "cloudInitNoCloud": {"secretRef": {"name": "user"}, "networkDataSecretRef": {"name": "net"}}},
                {"name": "d", "sysprep": {"configMap": {"name": "answers"}}},
                {"name": "e", "serviceAccount": {"serviceAccountName": "robot"}},
                {"name": "f", "emptyDisk": {"capacity": "1Gi"}},
            ],
        }))
        .unwrap();
        let nodes = of_spec(&spec, "n");
        let seen: Vec<_> =
            nodes.iter().map(|node| (node.kind.kind, node.namespace.as_str(), node.name.as_str())).collect();
        let expected = [
            ("Secret", "n", "keys"),
            ("DataVolume", "n", "dv"),
            ("PersistentVolumeClaim", "n", "base"),
            ("Secret", "n", "user"),
            ("Secret", "n", "net"),
            ("ConfigMap", "n", "answers"),
            ("ServiceAccount", "n", "robot"),
            ("NetworkAttachmentDefinition", "other", "lan"),
        ];
        assert_eq!(seen, expected);
        assert_eq!(nodes[1].children, [Node::of(Kind::CLAIM, "n", "dv")]);
    }

    #[test]
    fn optional_and_other_nodes_are_left_out_on_request() {
        let matcher = Matcher {
            name: "small".to_owned(),
            kind: "virtualmachineinstancetype".to_owned(),
            revision_name: "rev".to_owned(),
            ..Matcher::default()
        };
        let nodes = of_matcher(&matcher, [Kind::INSTANCETYPE, Kind::CLUSTER_INSTANCETYPE], "n");
        let names = |options: Value| -> Vec<String> {
            let options: Options = serde_json::from_value(options).unwrap();
            options.filter(nodes.clone()).into_iter().map(|node| node.name).collect()
        };
        assert_eq!(names(json!({})), ["small", "rev"]);
        assert_eq!(names(json!({"includeOptionalNodes": false})), ["rev"]);
        assert_eq!(names(json!({"labelSelector": {}})), ["small", "rev"]);
        let storage = json!({"labelSelector": {"matchLabels": {DEPENDENCY: "storage"}}});
        assert_eq!(names(storage), Vec::<String>::new());
        assert_eq!(
            nodes[0].to_value(),
            json!({"objectReference": {"apiGroup": "instancetype.kubevirt.io", "kind": "VirtualMachineInstancetype",
                "name": "small", "namespace": "n"}, "labels": {DEPENDENCY: "config"}, "optional": true})
        );
    }
}
