//! The installation: by virt-operator, as a KubeVirt object says.

use std::time::Duration;

use vireo_tests::eventually::eventually;
use vireo_tests::{HostError, Status};

use super::{LIMIT, STEP, Vireo, kustomize, machine};
use crate::scenarios::probes::condition;

/// From the time when an authority is due to be replaced until the next one issues certificates, and some.
const ROTATION: Duration = Duration::from_secs(420);
pub(super) const OPERATOR: &str = include_str!("../../../deploy/operator.yaml");
pub(super) const KUBEVIRT: &str = include_str!("../../../deploy/kubevirt.yaml");
/// What virt-operator manages.
pub(super) const MANAGED: &str = "crd,clusterrole,clusterrolebinding,role,rolebinding,serviceaccount,service,secret,apiservice,\
    mutatingwebhookconfiguration,validatingwebhookconfiguration,deployment,daemonset,poddisruptionbudget \
    -A -l app.kubernetes.io/managed-by=virt-operator -o name";

/// A KubeVirt object with two replicas on one node, too, whose authority is due to be replaced after a minute.
pub(super) const DISTURBED: &str = r#"{"spec": {"infra": {"replicas": 2}, "certificateRotateStrategy": {"selfSigned": {"ca": {"duration": "1h", "renewBefore": "59m"}}}}}"#;

/// The definition of a kind of Prometheus's operator, without the schema.
fn monitoring_definition(kind: &str) -> String {
    let singular = kind.to_lowercase();
    format!(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: {singular}s.monitoring.coreos.com}}\nspec:\n  group: monitoring.coreos.com\n  scope: Namespaced\n  names: {{kind: {kind}, plural: {singular}s, singular: {singular}}}\n  versions: [{{name: v1, served: true, storage: true, schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}}}]\n"
    )
}

/// Changes the KubeVirt object, and waits until its components are so. What `kubectl` warns of.
pub(super) fn configure(vireo: &Vireo<'_>, patch: &str) -> Result<String, HostError> {
    let patched =
        vireo.kubectl(&format!("-n kubevirt patch kubevirt kubevirt --type merge -p '{patch}'"), None)?;
    let warnings = patched.stderr.clone();
    patched.ok();
    vireo.becomes("-n kubevirt kubevirt kubevirt", "is as configured", |kubevirt| {
        kubevirt["status"]["observedGeneration"] == kubevirt["metadata"]["generation"]
            && condition(kubevirt, "Available")["status"] == "True"
            && condition(kubevirt, "Degraded")["status"] == "False"
    })?;
    Ok(warnings)
}

/// Applies the manifests and a KubeVirt object, and waits until everything is available.
pub(super) fn install(vireo: &Vireo<'_>) {
    vireo.feed("apply -f -", OPERATOR);
    vireo.ok(&format!("wait crd/kubevirts.kubevirt.io --for=condition=Established {LIMIT}"));
    vireo.feed("apply -f -", KUBEVIRT);
    vireo.ok(&format!("-n kubevirt wait kubevirt/kubevirt --for=condition=Available {LIMIT}"));
    vireo.ok(&format!("-n kubevirt wait deployment --all --for=condition=Available {LIMIT}"));
}

/// The manifests and a KubeVirt object install everything, and everything becomes available.
pub(super) fn becomes_available(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("install");
    // As an installation of KubeVirt leaves it.
    vireo.ok("create clusterrole left-by-kubevirt --verb=get --resource=pods");
    vireo.ok("label clusterrole left-by-kubevirt app.kubernetes.io/managed-by=virt-operator");
    install(vireo);
    // What the cluster serves later, virt-operator finds.
    let definitions = ["ServiceMonitor", "PrometheusRule"].map(monitoring_definition).join("---\n");
    vireo.feed("apply -f -", &definitions);
    vireo.becomes("node node-1", "takes VMIs", |node| {
        node["metadata"]["labels"]["kubevirt.io/schedulable"] == "true"
    })?;
    let known = vireo.ok("api-resources --api-group=subresources.kubevirt.io -o name");
    eprintln!("cluster: subresources: {}", known.split_whitespace().count());
    // To install again changes nothing.
    let mut again = vireo.feed("apply -f -", OPERATOR) + &vireo.feed("apply -f -", KUBEVIRT);
    if vireo.registry.is_none() {
        again += &vireo.ok(&format!("apply -k {}", kustomize::DIRECTORY));
    }
    let changed: Vec<&str> = again.lines().filter(|line| !line.ends_with("unchanged")).collect();
    assert!(changed.is_empty(), "{changed:#?}");
    Ok(())
}

/// What identifies the authority that issues certificates.
pub(super) fn authority(vireo: &Vireo<'_>) -> String {
    let authority = vireo.ok(r"-n kubevirt get secret kubevirt-ca -o jsonpath='{.data.tls\.crt}'");
    assert!(!authority.is_empty());
    authority
}

/// The authority is replaced while the cluster is used.
pub(super) fn has_another_authority(vireo: &Vireo<'_>, first: &str) -> Result<(), HostError> {
    vireo.step("another authority issues certificates");
    eventually("the authority is replaced", ROTATION, || Ok(authority(vireo) != first))?;
    let components = r"-n kubevirt get secret kubevirt-virt-api-certs -o jsonpath='{.data.ca\.crt}'";
    let api_server =
        "get validatingwebhookconfiguration virt-api -o jsonpath={.webhooks[0].clientConfig.caBundle}";
    eventually("the API server trusts what components trust", STEP, || {
        let trusted = vireo.ok(api_server);
        Ok(!trusted.is_empty() && trusted == vireo.ok(components))
    })
}

/// Prometheus's operator was installed after Vireo.
pub(super) fn is_monitored(vireo: &Vireo<'_>) -> Result<(), HostError> {
    eventually("Prometheus's operator knows of Vireo", STEP, || {
        let objects = "servicemonitor/kubevirt prometheusrule/prometheus-kubevirt-rules";
        Ok(vireo.kubectl(&format!("-n kubevirt get {objects}"), None)?.status == Status::Code(0))
    })
}

/// What the KubeVirt object says is done, refused, or named.
pub(super) fn is_configured(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("a KubeVirt object is changed");
    let patch = r#"{"spec": {"infra": {"replicas": 2},
        "configuration": {"vmRolloutStrategy": "Stage",
            "developerConfiguration": {"featureGates": ["ExpandDisks", "Snapshot"], "cpuAllocationRatio": 20}}}}"#;
    let warnings = configure(vireo, patch)?;
    // kubectl unquotes them, or not.
    let warnings = warnings.replace(['\\', '"'], "");
    let gates = "spec.configuration.developerConfiguration.featureGates";
    for warning in
        ["spec.configuration.vmRolloutStrategy: has no effect", &format!("{gates}: Snapshot has no effect")]
    {
        assert!(warnings.contains(warning), "{warning} in {warnings}");
    }
    assert!(!warnings.contains("ExpandDisks"), "{warnings}");
    let kubevirt = vireo.json("get -n kubevirt kubevirt kubevirt")?;
    let unsupported = &condition(&kubevirt, "UnsupportedConfiguration")["message"];
    let expected =
        format!("these settings have no effect: spec.configuration.vmRolloutStrategy, {gates} \"Snapshot\"");
    assert_eq!(unsupported, &expected);
    let budgets = vireo.ok("-n kubevirt get pdb -o name");
    assert_eq!(budgets.lines().count(), 2, "{budgets}");

    let refused = vireo.fails(
        r#"-n kubevirt patch kubevirt kubevirt --type merge -p '{"spec": {"uninstallStrategy": "Maybe"}}'"#,
        "",
    )?;
    assert!(refused.contains("spec.uninstallStrategy: Unsupported value: \"Maybe\""), "{refused}");
    let another = KUBEVIRT.replace("name: kubevirt", "name: another");
    let refused = vireo.fails("create -f -", &another)?;
    assert!(refused.contains("there is a KubeVirt object already"), "{refused}");

    vireo.step("what virt-operator installs is deleted and changed");
    let role = "clusterrole kubevirt-handler";
    let before = vireo.json(&format!("get {role}"))?["rules"].clone();
    vireo.ok(&format!("delete {role}"));
    vireo.ok("-n kubevirt delete service virt-api");
    vireo.ok("-n kubevirt scale deployment virt-controller --replicas=0");
    eventually("they are back", STEP, || {
        let found = vireo.kubectl("-n kubevirt get service virt-api", None)?;
        Ok(found.stderr.is_empty() && vireo.kubectl(&format!("get {role}"), None)?.stderr.is_empty())
    })?;
    assert_eq!(vireo.json(&format!("get {role}"))?["rules"], before);
    vireo.becomes("-n kubevirt deployment virt-controller", "has its replicas", |deployment| {
        deployment["spec"]["replicas"] == 2 && deployment["status"]["availableReplicas"] == 2
    })?;
    vireo.ok(&format!("-n kubevirt wait kubevirt/kubevirt --for=condition=Available {LIMIT}"));
    Ok(())
}

/// An installation with VMs stays; one without leaves nothing but these objects.
pub(super) fn is_removed(vireo: &Vireo<'_>, others: &str) -> Result<(), HostError> {
    vireo.step("it is not uninstalled while there are VMs");
    vireo.feed("create -f -", &machine::bare("Halted", "None"));
    let refused = vireo.fails("-n kubevirt delete kubevirt kubevirt", "")?;
    assert!(refused.contains("there are still virtualmachines present"), "{refused}");
    vireo.ok(&format!("delete vm bare {LIMIT}"));
    vireo.step("it is uninstalled");
    vireo.ok(&format!("-n kubevirt delete kubevirt kubevirt {LIMIT}"));
    let left = vireo.ok(&format!("get {MANAGED}"));
    assert_eq!(left.trim(), others, "what others installed stays");
    let known = vireo.ok("api-resources -o name");
    if known.contains("servicemonitors") {
        let left = vireo.ok("get servicemonitor,prometheusrule -n kubevirt -o name");
        assert_eq!(left.trim(), "");
    }
    for node in vireo.items("nodes")? {
        let named = |field: &str| node["metadata"][field].to_string();
        let left = ["labels", "annotations"].map(named).concat();
        assert!(!left.contains("kubevirt.io/") && !left.contains("cpumanager"), "{left}");
    }
    eventually("no component is left but virt-operator", STEP, || {
        let pods = vireo.items("pods -n kubevirt")?;
        Ok(pods.iter().all(|pod| pod["metadata"]["labels"]["kubevirt.io"] == "virt-operator"))
    })?;
    assert!(!known.contains("virtualmachine"), "{known}");
    Ok(())
}

/// What was applied first is deleted last.
pub(super) fn is_deleted(vireo: &Vireo<'_>) {
    vireo.step("virt-operator is deleted");
    vireo.feed(&format!("delete -f - {LIMIT}"), OPERATOR);
}
