//! The installation that a KubeVirt object specifies, with virt-operator's defaults.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Value, json};
use vireo_api::v1::{ComponentConfig, KubeVirt, KubeVirtSpec, NodePlacement};
use vireo_client::Kind;
use vireo_client::program::log_level;
use vireo_operators::config::MANUAL;

/// The default of `productComponent`.
const COMPONENT: &str = "kubevirt";
/// How many nodes one more replica of virt-api is for.
const NODES_OF_A_REPLICA: usize = 10;

/// What virt-operator installs where the KubeVirt object names no other images.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Images {
    /// The image of virt-operator, virt-controller, virt-api and virt-handler.
    #[arg(long = "image", value_name = "IMAGE", default_value_t = default_image("vireo"))]
    pub components: String,
    /// The image of virt-launcher.
    #[arg(long = "launcher-image", value_name = "IMAGE", default_value_t = default_image("virt-launcher"))]
    pub launcher: String,
    /// When the images are pulled: Always, IfNotPresent or Never.
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent")]
    pub pull_policy: String,
}

/// The name of an image as `hack/images release` makes it.
fn default_image(name: &str) -> String {
    format!("localhost/vireo/{name}:{}", env!("CARGO_PKG_VERSION"))
}

impl Default for Images {
    fn default() -> Self {
        Self {
            components: default_image("vireo"),
            launcher: default_image("virt-launcher"),
            pull_policy: "IfNotPresent".to_owned(),
        }
    }
}

/// What virt-operator knows of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cluster {
    /// The number of its nodes that accept Pods.
    pub nodes: usize,
    /// PodDisruptionBudgets, in the version that it serves.
    pub disruption_budgets: Kind,
    /// Whether it has Prometheus's operator.
    pub monitoring: bool,
}

/// The Prometheus of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Monitoring {
    /// The name of its ServiceAccount.
    pub account: String,
    /// Where that may be.
    pub namespaces: Vec<String>,
}

impl Monitoring {
    /// KubeVirt's defaults.
    const ACCOUNT: &str = "prometheus-k8s";
    const NAMESPACES: [&str; 2] = ["openshift-monitoring", "monitoring"];

    fn new(spec: &KubeVirtSpec) -> Self {
        let (account, namespace) = (&spec.monitor_account, &spec.monitor_namespace);
        Self {
            account: if account.is_empty() { Self::ACCOUNT.to_owned() } else { account.clone() },
            namespaces: match namespace.as_str() {
                "" => Self::NAMESPACES.map(str::to_owned).into(),
                namespace => vec![namespace.to_owned()],
            },
        }
    }
}

/// A component.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Component {
    /// Further words of its command line.
    pub flags: Vec<String>,
    /// The filter of its log; none for the usual one.
    pub log: Option<&'static str>,
}

/// What is installed.
#[derive(Debug, Clone, PartialEq)]
pub struct Installation {
    /// The images of the components.
    pub images: Images,
    /// Names of Secrets with credentials for their registry.
    pub pull_secrets: Vec<String>,
    /// Replicas of virt-api.
    pub api_replicas: usize,
    /// Replicas of virt-controller.
    pub controller_replicas: usize,
    /// Where virt-api and virt-controller run.
    pub infra: NodePlacement,
    /// Where virt-handler runs.
    pub workloads: NodePlacement,
    /// virt-api.
    pub api: Component,
    /// virt-controller.
    pub controller: Component,
    /// virt-handler.
    pub handler: Component,
    /// Whether the roles of users become part of Kubernetes' roles.
    pub aggregates_roles: bool,
    /// Labels of all objects.
    pub labels: BTreeMap<&'static str, String>,
    /// PodDisruptionBudgets, in the version of the cluster.
    pub disruption_budgets: Kind,
    /// The Prometheus that reads the metrics, where Prometheus's operator is.
    pub monitoring: Option<Monitoring>,
    /// The authority of virt-api's certificate, in PEM.
    pub authority: String,
}

/// An image in another registry or with another tag, where they are given.
fn image(default: &str, registry: &str, tag: &str) -> String {
    let (name, digest) = default.split_once('@').map_or((default, ""), |(name, digest)| (name, digest));
    let (path, default_tag) = match name.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, tag),
        _ => (name, "latest"),
    };
    let path = match registry {
        "" => path.to_owned(),
        registry => {
            format!("{}/{}", registry.trim_end_matches('/'), path.rsplit('/').next().unwrap_or(path))
        }
    };
    match (tag, digest) {
        ("", "") => format!("{path}:{default_tag}"),
        ("", digest) => format!("{path}@{digest}"),
        (tag, _) => format!("{path}:{tag}"),
    }
}

/// The tag of an image.
pub fn tag(image: &str) -> &str {
    image.rsplit_once(':').map_or("", |(_, tag)| tag)
}

/// The registry and path of an image.
pub fn registry(image: &str) -> &str {
    image.rsplit_once('/').map_or("", |(registry, _)| registry)
}

fn flags(given: Option<&BTreeMap<String, String>>) -> Vec<String> {
    let word = |(name, value): (&String, &String)| match value.as_str() {
        "" => format!("--{name}"),
        value => format!("--{name}={value}"),
    };
    given.into_iter().flatten().map(word).collect()
}

fn placement(config: Option<&ComponentConfig>) -> NodePlacement {
    config.and_then(|config| config.node_placement.clone()).unwrap_or_default()
}

impl Installation {
    /// What a KubeVirt object asks for.
    pub fn new(kubevirt: &KubeVirt, defaults: &Images, cluster: &Cluster, authority: String) -> Self {
        let spec = &kubevirt.spec;
        let developer = spec.configuration.developer_configuration.clone().unwrap_or_default();
        let verbosity = developer.log_verbosity.unwrap_or_default();
        let extra = spec.customize_components.flags.as_ref();
        let component = |given: Option<&BTreeMap<String, String>>, verbosity: Option<u32>| Component {
            flags: flags(given),
            log: verbosity.and_then(log_level),
        };
        let or = |given: &str, default: &str| {
            if given.is_empty() { default.to_owned() } else { given.to_owned() }
        };
        let replicas = |several: usize| {
            let wanted = spec.infra.as_ref().and_then(|infra| infra.replicas);
            let wanted = wanted.and_then(|wanted| usize::try_from(wanted).ok()).filter(|wanted| *wanted > 0);
            wanted.unwrap_or(if cluster.nodes > 1 { several } else { 1 })
        };
        let image = |default: &str| image(default, &spec.image_registry, &spec.image_tag);
        let mut labels = BTreeMap::from([
            ("app.kubernetes.io/component", or(&spec.product_component, COMPONENT)),
            ("app.kubernetes.io/version", or(&spec.product_version, env!("CARGO_PKG_VERSION"))),
        ]);
        if !spec.product_name.is_empty() {
            labels.insert("app.kubernetes.io/part-of", spec.product_name.clone());
        }
        Self {
            images: Images {
                components: image(&defaults.components),
                launcher: image(&defaults.launcher),
                pull_policy: or(&spec.image_pull_policy, &defaults.pull_policy),
            },
            pull_secrets: spec.image_pull_secrets.iter().map(|secret| secret.name.clone()).collect(),
            api_replicas: replicas((cluster.nodes / NODES_OF_A_REPLICA).max(2)),
            controller_replicas: replicas(2),
            infra: placement(spec.infra.as_ref()),
            workloads: placement(spec.workloads.as_ref()),
            api: component(extra.map(|flags| &flags.api), verbosity.virt_api),
            controller: component(extra.map(|flags| &flags.controller), verbosity.virt_controller),
            handler: component(extra.map(|flags| &flags.handler), verbosity.virt_handler),
            aggregates_roles: spec.configuration.role_aggregation_strategy != MANUAL,
            labels,
            disruption_budgets: cluster.disruption_budgets,
            monitoring: cluster.monitoring.then(|| Monitoring::new(spec)),
            authority,
        }
    }
}

impl Images {
    /// The command line flags of virt-operator for them.
    pub fn words(&self) -> Vec<String> {
        [
            ("--image", &self.components),
            ("--launcher-image", &self.launcher),
            ("--pull-policy", &self.pull_policy),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value.clone()])
        .collect()
    }
}

/// A Pod's spec with where its components run.
pub(crate) fn apply_placement(pod: &mut Value, placement: &NodePlacement) {
    if !placement.node_selector.is_empty() {
        pod["nodeSelector"] = json!(placement.node_selector);
    }
    if let Some(affinity) = &placement.affinity {
        pod["affinity"] = json!(affinity);
    }
    if let Some(tolerations) = pod["tolerations"].as_array_mut() {
        tolerations.extend(placement.tolerations.iter().map(|toleration| json!(toleration)));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::objects::DISRUPTION_BUDGETS;

    pub(crate) fn images() -> Images {
        Images {
            components: "registry:5000/vireo/vireo:1".to_owned(),
            launcher: "registry:5000/vireo/virt-launcher:1".to_owned(),
            pull_policy: "IfNotPresent".to_owned(),
        }
    }

    pub(crate) fn installation(spec: Value, nodes: usize) -> Installation {
        let kubevirt: KubeVirt = serde_json::from_value(json!({ "spec": spec })).unwrap();
        let [disruption_budgets, _] = DISRUPTION_BUDGETS;
        Installation::new(
            &kubevirt,
            &images(),
            &Cluster { nodes, disruption_budgets, monitoring: true },
            "authority".to_owned(),
        )
    }

    #[test]
    fn what_an_object_leaves_open_is_as_virt_operator_was_started() {
        let usual = installation(json!({}), 3);
        assert_eq!(usual.images, images());
        assert_eq!((usual.api_replicas, usual.controller_replicas), (2, 2));
        assert_eq!(installation(json!({}), 1).api_replicas, 1);
        assert_eq!(installation(json!({}), 45).api_replicas, 4);
        assert_eq!(usual.labels["app.kubernetes.io/component"], "kubevirt");
    }

    #[test]
    fn settings_of_the_object_are_used() {
        let given = installation(
            json!({
                "imageRegistry": "other/path/", "imageTag": "2", "imagePullPolicy": "Always",
                "imagePullSecrets": [{"name": "key"}], "productName": "hco",
                "infra": {"replicas": 3, "nodePlacement": {"nodeSelector": {"infra": "yes"}}},
                "customizeComponents": {"flags": {"api": {"listen": "0.0.0.0:1", "x": ""}}},
                "configuration": {"developerConfiguration": {
                    "logVerbosity": {"virtAPI": 4, "virtHandler": 9, "virtController": 2}}},
            }),
            1,
        );
        assert_eq!(given.images.components, "other/path/vireo:2");
        assert_eq!(given.images.launcher, "other/path/virt-launcher:2");
        assert_eq!(given.images.pull_policy, "Always");
        assert_eq!((given.api_replicas, given.controller_replicas, given.pull_secrets.len()), (3, 3, 1));
        assert_eq!(
            given.api,
            Component { flags: vec!["--listen=0.0.0.0:1".to_owned(), "--x".to_owned()], log: Some("debug") }
        );
        assert_eq!((given.handler.log, given.controller.log), (Some("trace"), None));
        assert_eq!(given.infra.node_selector["infra"], "yes");
        assert_eq!(given.labels["app.kubernetes.io/part-of"], "hco");
    }

    #[test]
    fn images_without_a_tag_are_the_latest() {
        assert_eq!(image("host:5000/a/b", "", ""), "host:5000/a/b:latest");
        assert_eq!(image("b", "r", ""), "r/b:latest");
        assert_eq!((registry("host:5000/a/b:1"), registry("b")), ("host:5000/a", ""));
        assert_eq!(tag(&image("host:5000/a/b", "", "3")), "3");
    }

    #[test]
    fn images_by_digest_keep_it_unless_there_is_a_tag() {
        assert_eq!(image("h:5000/a/b@sha256:12", "", ""), "h:5000/a/b@sha256:12");
        assert_eq!(image("h:5000/a/b:1@sha256:12", "r", ""), "r/b@sha256:12");
        assert_eq!(image("h:5000/a/b@sha256:12", "", "3"), "h:5000/a/b:3");
    }
}
