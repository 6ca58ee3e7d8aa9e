//! The Helm chart: what it renders, without a cluster, and installed in one.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use vireo_tests::eventually::eventually;
use vireo_tests::{HostError, Output, Status, helm};

use super::installation::{KUBEVIRT, MANAGED, OPERATOR};
use super::{LIMIT, STEP, Vireo, machine};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/chart");
/// More than any manifest has.
const MANIFEST: usize = 4 << 20;
/// Labels that all objects of the chart have; each begins with one of these.
const HELM_LABELS: [&str; 2] = ["helm.sh/", "app.kubernetes.io/"];
const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn objects(text: &str) -> Vec<Value> {
    vireo_manifest::documents(text, MANIFEST).unwrap_or_else(|error| panic!("{error} in:\n{text}"))
}

/// Runs Helm on this host: what it prints, or the error text.
fn run_helm(words: &[&str]) -> Result<String, String> {
    let output = Command::new(helm::program()).args(words).output().expect("Helm starts");
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn template(words: &[&str]) -> Result<Vec<Value>, String> {
    let fixed = ["template", "vireo", CHART, "--include-crds", "--kube-version", "1.20.2"];
    run_helm(&[&fixed, words].concat()).map(|text| objects(&text))
}

/// What the chart renders with values in YAML, `-n kubevirt`.
fn rendered(values: &str) -> Result<Vec<Value>, String> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(&file, values).expect("it is written");
    template(&["--namespace", "kubevirt", "--values", &file.path().to_string_lossy()])
}

fn is_hook(object: &Value) -> bool {
    object["metadata"]["annotations"]["helm.sh/hook"].is_string()
}

fn identity(object: &Value) -> String {
    format!("{} {} {}", object["kind"], object["metadata"]["namespace"], object["metadata"]["name"])
}

/// Objects without Helm's labels, in an order.
fn comparable(objects: Vec<Value>) -> Vec<Value> {
    let mut objects = objects;
    for object in &mut objects {
        if let Some(metadata) = object["metadata"].as_object_mut() {
            if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
                labels.retain(|name, _| !HELM_LABELS.iter().any(|label| name.starts_with(label)));
            }
            metadata.retain(|name, value| name != "labels" || value != &json!({}));
        }
    }
    objects.sort_by_key(identity);
    objects
}

#[track_caller]
fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects.iter().find(|one| one["kind"] == kind && one["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("{kind} {name} is rendered"))
}

#[test]
fn defaults_are_the_manifests() {
    assert!(Path::new(CHART).join("Chart.yaml").is_file());
    run_helm(&["lint", "--strict", "--namespace", "kubevirt", CHART])
        .unwrap_or_else(|error| panic!("{error}"));
    let (hooks, rendered): (Vec<Value>, Vec<Value>) = rendered("{}").unwrap().into_iter().partition(is_hook);
    let mut expected = objects(OPERATOR);
    // `helm install --create-namespace` creates it.
    expected.retain(|object| object["kind"] != "Namespace");
    expected.extend(objects(KUBEVIRT));
    let (rendered, expected) = (comparable(rendered), comparable(expected));
    let identities = |of: &[Value]| of.iter().map(identity).collect::<Vec<_>>();
    assert_eq!(identities(&rendered), identities(&expected));
    for (rendered, expected) in rendered.iter().zip(&expected) {
        assert!(rendered == expected, "{} differs from deploy/:\n{rendered:#}", identity(expected));
    }
    assert_eq!(hooks.len(), 4, "what uninstalls: {:?}", identities(&hooks));
    let job = find(&hooks, "Job", "vireo-uninstall");
    let command = &job["spec"]["template"]["spec"]["containers"][0]["command"];
    assert_eq!(command, &json!(["/usr/bin/vireo", "uninstall", "--timeout", "240"]));
    let rules = &find(&hooks, "Role", "vireo-uninstall")["rules"];
    let expected =
        json!([{"apiGroups": ["kubevirt.io"], "resources": ["kubevirts"], "verbs": ["list", "delete"]}]);
    assert_eq!(rules, &expected);
}

#[test]
fn values_are_honoured() {
    let objects = rendered(&format!(
        "image: {{registry: registry.example, repository: a/vireo, digest: '{DIGEST}', pullPolicy: Always}}
launcherImage: {{repository: a/launcher, tag: 1-native}}
imagePullSecrets: [{{name: key}}]
commonLabels: {{team: vms}}
commonAnnotations: {{note: a}}
operator: {{replicas: 1, nodeSelector: {{infra: 'yes'}}, tolerations: [], priorityClassName: mine, log: debug,
  resources: {{limits: {{memory: 1Gi}}}}, podLabels: {{kubevirt.io: other, pod: label}}}}
kubevirt: {{spec: {{infra: {{replicas: 3}}, configuration: {{cpuModel: host-passthrough}}}}}}
uninstall: {{timeoutSeconds: 30}}
"
    ))
    .unwrap();
    let image = format!("registry.example/a/vireo@{DIGEST}");
    let (operator, job) =
        (find(&objects, "Deployment", "virt-operator"), find(&objects, "Job", "vireo-uninstall"));
    for workload in [operator, job] {
        let pod = &workload["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["image"], image);
        assert_eq!(pod["containers"][0]["imagePullPolicy"], "Always");
        assert_eq!(pod["imagePullSecrets"], json!([{"name": "key"}]));
        assert_eq!(pod["nodeSelector"], json!({"infra": "yes"}));
        assert_eq!(pod.get("tolerations"), None);
        assert_eq!(pod["priorityClassName"], "mine");
    }
    assert_eq!(operator["spec"]["replicas"], 1);
    let labels = json!({"kubevirt.io": "virt-operator", "prometheus.kubevirt.io": "true", "pod": "label", "team": "vms"});
    assert_eq!(operator["spec"]["template"]["metadata"]["labels"], labels);
    let container = &operator["spec"]["template"]["spec"]["containers"][0];
    let words: Vec<&str> =
        container["command"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let images = ["--image", &image, "--launcher-image", "registry.example/a/launcher:1-native"];
    assert_eq!(words[1..7], [&images[..], &["--pull-policy", "Always"]].concat());
    assert_eq!(container["resources"]["limits"], json!({"memory": "1Gi"}));
    assert_eq!(container["env"][1], json!({"name": "VIREO_LOG", "value": "debug"}));
    let kubevirt = find(&objects, "KubeVirt", "kubevirt");
    let spec = json!({"infra": {"replicas": 3}, "configuration": {"cpuModel": "host-passthrough"},
        "imagePullSecrets": [{"name": "key"}]});
    assert_eq!(kubevirt["spec"], spec);
    assert_eq!(job["spec"]["activeDeadlineSeconds"], 90);
    for object in objects.iter().filter(|one| one["kind"] != "CustomResourceDefinition") {
        assert_eq!(object["metadata"]["labels"]["team"], "vms", "{}", identity(object));
        assert_eq!(object["metadata"]["annotations"]["note"], "a", "{}", identity(object));
    }
}

#[test]
fn a_kubevirt_object_of_others_is_not_deleted() {
    let objects = rendered("kubevirt: {create: false}").unwrap();
    assert!(objects.iter().all(|object| object["kind"] != "KubeVirt"));
    let job = find(&objects, "Job", "vireo-uninstall");
    let command = job["spec"]["template"]["spec"]["containers"][0]["command"].as_array().unwrap();
    assert_eq!(command.last(), Some(&json!("--keep")));
    let role = objects.iter().rfind(|one| one["kind"] == "Role" && is_hook(one)).unwrap();
    assert_eq!(role["rules"][0]["verbs"], json!(["list"]));
}

#[test]
fn wrong_values_are_refused() {
    for (values, expected) in [
        ("operator: {replica: 1}", "replica"),
        ("operator: {replicas: 0}", "/operator/replicas"),
        ("image: {digest: sha256:12}", "/image/digest"),
        ("image: {pullPolicy: Sometimes}", "/image/pullPolicy"),
        ("launcherImage: {tag: a/b}", "/launcherImage/tag"),
        ("imagePullSecrets: [key]", "/imagePullSecrets/0"),
        ("kubevirt: {spec: []}", "/kubevirt/spec"),
        ("uninstall: {timeoutSeconds: 5m}", "/uninstall/timeoutSeconds"),
    ] {
        let refused = rendered(values).expect_err(values);
        assert!(refused.contains(expected), "{values}: {refused}");
    }
    let refused = template(&["--kube-version", "1.19.16"]).expect_err("an old Kubernetes");
    assert!(refused.contains("chart requires kubeVersion: >=1.20.0-0"), "{refused}");
    let refused = template(&[]).expect_err("a release in another namespace");
    let expected =
        "Vireo is installed in the namespace kubevirt, and not in default: add --namespace kubevirt";
    assert!(refused.contains(expected), "{refused}");
}

/// Runs Helm on the node.
fn helm_on_node(vireo: &Vireo<'_>, line: &str) -> Result<Output, HostError> {
    let cache = vireo.host.work("helm");
    let line = format!(
        "HELM_CACHE_HOME={cache} HELM_CONFIG_HOME={cache} HELM_DATA_HOME={cache} {} {line}",
        helm::program().display()
    );
    vireo.run_on_node(&line)
}

/// After the manifests, Helm installs the chart, keeps it while there are VMs, and removes it.
pub(super) fn is_installed_and_removed(vireo: &Vireo<'_>) -> Result<(), HostError> {
    super::installation::is_deleted(vireo);
    vireo.step("Helm installs the chart");
    // kube-apiserver as hack/kube-bin builds it calls itself v0.0.0, which Helm compares.
    let copy = vireo.host.work("chart");
    vireo.shell(&format!("cp -r {CHART} {copy} && sed -i /^kubeVersion:/d {copy}/Chart.yaml"))?;
    let chart = format!("vireo {copy} --namespace kubevirt --set kubevirt.spec.infra.replicas=1");
    helm_on_node(vireo, &format!("install {chart} --create-namespace"))?.ok();
    vireo.ok(&format!("-n kubevirt wait kubevirt/kubevirt --for=condition=Available {LIMIT}"));

    vireo.step("Helm upgrades it, and virt-operator the definition");
    let name = "crd/kubevirts.kubevirt.io";
    // As that of another release may be, which Helm leaves as it is.
    vireo
        .ok(&format!(r#"patch {name} --type merge -p '{{"spec": {{"names": {{"shortNames": ["old"]}}}}}}'"#));
    helm_on_node(vireo, &format!("upgrade {chart} --set operator.podAnnotations.changed=yes"))?.ok();
    vireo.becomes(name, "is of this release", |definition| {
        definition["spec"]["names"]["shortNames"] == json!(["kv", "kvs"])
    })?;

    vireo.step("Helm does not uninstall it while there are VMs");
    vireo.feed("create -f -", &machine::bare("Halted", "None"));
    let uninstall = "uninstall vireo --namespace kubevirt --timeout 120s";
    let refused = helm_on_node(vireo, uninstall)?;
    assert_ne!(refused.status, Status::Code(0), "{}", refused.stdout);
    let log = vireo.ok("-n kubevirt logs job/vireo-uninstall");
    assert!(log.contains("there are still virtualmachines present"), "{log}{}", refused.stderr);
    let kubevirt = vireo.json("-n kubevirt get kubevirt kubevirt")?;
    assert_eq!(kubevirt["metadata"].get("deletionTimestamp"), None, "{kubevirt:#}");
    vireo.ok("-n kubevirt get deployment virt-operator virt-api");
    vireo.ok(&format!("delete vm bare {LIMIT}"));
    // Until then, Helm upgrades nothing.
    helm_on_node(vireo, "rollback vireo 2 --namespace kubevirt")?.ok();

    vireo.step("Helm uninstalls it");
    helm_on_node(vireo, uninstall)?.ok();
    let left = vireo.ok(&format!("get {MANAGED}"));
    assert_eq!(left.trim(), "clusterrole.rbac.authorization.k8s.io/left-by-kubevirt");
    let kinds =
        "crd,priorityclass,clusterrole,clusterrolebinding,role,rolebinding,serviceaccount,deployment,job";
    let left = vireo.ok(&format!("get {kinds} -A -l app.kubernetes.io/managed-by=Helm -o name"));
    assert_eq!(left.trim(), "");
    eventually("no component is left", STEP, || Ok(vireo.items("pods -n kubevirt")?.is_empty()))?;
    let left = vireo.ok("get crd -o name");
    let left: Vec<&str> = left.lines().filter(|name| name.contains("kubevirt.io")).collect();
    assert_eq!(left, ["customresourcedefinition.apiextensions.k8s.io/kubevirts.kubevirt.io"]);
    Ok(())
}
