//! Admission by webhooks: [`crate::admission`] as answers to an `AdmissionReview` (`admission.k8s.io/v1`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use vireo_client::Kind;

use crate::Problem;
use crate::admission::kubevirt::WithoutEffect;
use crate::admission::{
    Admission, cluster, instancetype, kubevirt, pod, pool, replicaset, reserved, vm, vmi,
};

/// The user of virt-controller, which makes the Pods of instances.
const CONTROLLER: &str = "system:serviceaccount:kubevirt:virt-controller";
/// The users of the components, which may write what others may not.
const COMPONENTS: [&str; 3] =
    ["system:serviceaccount:kubevirt:virt-api", CONTROLLER, "system:serviceaccount:kubevirt:virt-handler"];
/// How many problems the message of a denial lists, as in KubeVirt's API.
const MAX_CAUSES: usize = 10;

/// What virt-api is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Webhook {
    /// Objects that are to be completed.
    Mutate,
    /// Objects that are to be stored.
    Validate,
    /// Pods of instances that are to be stored.
    ValidatePod,
    /// Pods that are to be evicted.
    Evict,
    /// KubeVirt objects that are to be stored.
    ValidateInstallation,
    /// KubeVirt objects that are to be deleted.
    Uninstall,
}

impl Webhook {
    /// Where it is served.
    pub fn path(self) -> &'static str {
        match self {
            Self::Mutate => "/mutate",
            Self::Validate => "/validate",
            Self::ValidatePod => "/pod-validate",
            Self::Evict => "/evict",
            Self::ValidateInstallation => "/kubevirt-validate",
            Self::Uninstall => "/kubevirt-validate-delete",
        }
    }
}

/// The kinds that are admitted.
pub const KINDS: [Kind; 8] = [
    Kind::VMI,
    Kind::VM,
    Kind::REPLICA_SET,
    Kind::POOL,
    Kind::INSTANCETYPE,
    Kind::CLUSTER_INSTANCETYPE,
    Kind::PREFERENCE,
    Kind::CLUSTER_PREFERENCE,
];

/// Why a request is denied.
#[derive(Debug, PartialEq, Eq)]
enum Denial {
    /// The object is not valid.
    Invalid(Vec<Problem>),
    /// It cannot be decided now, or evicted.
    Other(u16, String),
}

impl From<kube::Error> for Denial {
    fn from(error: kube::Error) -> Self {
        Self::Other(500, format!("the admission of KubeVirt failed: {error}"))
    }
}

/// An object that is to be written.
struct Write<'a> {
    kind: Kind,
    new: &'a Value,
    old: Option<&'a Value>,
    is_component: bool,
}

/// Answers a review.
pub async fn answer(admission: &Admission, webhook: Webhook, review: &Value) -> Value {
    let request = &review["request"];
    let mut warnings = Vec::new();
    let decided = match webhook {
        Webhook::ValidatePod => validate_pod(request).map(|()| None),
        Webhook::Evict => evict(admission, request).await,
        Webhook::Uninstall => uninstall(admission, &request["oldObject"]).await.map(|()| None),
        Webhook::ValidateInstallation => {
            validate_installation(admission, request).await.map(|without_effect| {
                warnings.extend(without_effect);
                None
            })
        }
        Webhook::Mutate | Webhook::Validate => match write(request) {
            None => Ok(None),
            Some(write) if webhook == Webhook::Mutate => {
                mutate(admission, &write).await.map(|(patch, given)| {
                    warnings.extend(given);
                    patch
                })
            }
            Some(write) => validate(admission, &write).await.map(|()| None),
        },
    };
    let mut response = json!({"uid": request["uid"], "allowed": decided.is_ok()});
    if !warnings.is_empty() {
        response["warnings"] = json!(warnings);
    }
    match decided {
        Ok(None) => {}
        Ok(Some(patch)) => {
            response["patchType"] = json!("JSONPatch");
            response["patch"] = json!(STANDARD.encode(patch.to_string()));
        }
        Err(denial) => response["status"] = status(request, denial),
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

/// The write of a request; none where it is about no kind of ours, or a status.
fn write(request: &Value) -> Option<Write<'_>> {
    let resource = &request["resource"];
    let is_it = |kind: &Kind| resource["group"] == kind.group && resource["resource"] == kind.plural;
    let kind = KINDS.into_iter().find(is_it)?;
    if request["subResource"].as_str().is_some_and(|subresource| !subresource.is_empty()) {
        return None;
    }
    let new = Some(&request["object"]).filter(|object| object.is_object())?;
    let old = Some(&request["oldObject"]).filter(|object| object.is_object());
    Some(Write { kind, new, old, is_component: COMPONENTS.contains(&user(request)) })
}

/// Who makes a request.
fn user(request: &Value) -> &str {
    request.pointer("/userInfo/username").and_then(Value::as_str).unwrap_or_default()
}

/// Completes an object of a kind and validates what it says by itself.
fn admit(kind: Kind, new: &mut Value, old: Option<&Value>) -> Vec<Problem> {
    match kind {
        Kind::VMI => vmi::admit(new, old),
        Kind::VM => vm::admit(new, old),
        Kind::REPLICA_SET => replicaset::admit(new, old),
        Kind::POOL => pool::admit(new, old),
        Kind::INSTANCETYPE => instancetype::instancetype(new),
        Kind::CLUSTER_INSTANCETYPE => instancetype::cluster_instancetype(new),
        Kind::PREFERENCE => instancetype::preference(new),
        Kind::CLUSTER_PREFERENCE => instancetype::cluster_preference(new),
        _ => Vec::new(),
    }
}

fn none(problems: Vec<Problem>) -> Result<(), Denial> {
    if problems.is_empty() { Ok(()) } else { Err(Denial::Invalid(problems)) }
}

/// A new object as the API server will store it: it has a name and a UID by then.
fn identified(new: &Value) -> Value {
    let mut new = new.clone();
    if !new["metadata"].is_object() {
        new["metadata"] = json!({});
    }
    for (field, value) in [("name", "to-be-generated"), ("uid", "00000000-0000-0000-0000-000000000000")] {
        if new["metadata"][field].as_str().is_none_or(str::is_empty) {
            new["metadata"][field] = json!(value);
        }
    }
    new
}

/// The patch that completes an object, and warnings for its author.
async fn mutate(admission: &Admission, write: &Write<'_>) -> Result<(Option<Value>, Vec<String>), Denial> {
    let given = identified(write.new);
    let mut new = given.clone();
    let completed = admission.mutate(write.kind, &mut new, write.old).await?;
    none(completed.problems)?;
    none(admit(write.kind, &mut new, write.old))?;
    let patch = json_patch::diff(&given, &new);
    Ok(((!patch.is_empty()).then(|| json!(patch)), completed.warnings))
}

async fn validate(admission: &Admission, write: &Write<'_>) -> Result<(), Denial> {
    let Write { kind, new, old, is_component } = *write;
    if !is_component {
        none(reserved::validate(kind, new, old))?;
    }
    if let Some(old) = old.filter(|_| kind == Kind::VMI) {
        none(vmi::validate_update(new, old, is_component))?;
    }
    // Other webhooks may have changed it.
    none(admit(kind, &mut identified(new), old))?;
    none(cluster::validate(kind, new, old))?;
    none(admission.validate(kind, new, old).await?)
}

fn validate_pod(request: &Value) -> Result<(), Denial> {
    if user(request) == CONTROLLER {
        return Ok(());
    }
    let old = Some(&request["oldObject"]).filter(|object| object.is_object());
    none(pod::validate(&request["object"], old).into_iter().collect())
}

async fn evict(admission: &Admission, request: &Value) -> Result<Option<Value>, Denial> {
    let text = |field: &str| request[field].as_str().unwrap_or_default();
    let pod = admission.pod(text("namespace"), text("name")).await?;
    let Some(pod) = pod else { return Ok(None) };
    let dry_run = request["dryRun"] == true;
    admission.evict(&pod, dry_run).await.map(|()| None).map_err(|message| Denial::Other(429, message))
}

/// Validates a KubeVirt object; warnings of settings that have no effect or are deprecated.
async fn validate_installation(admission: &Admission, request: &Value) -> Result<Vec<String>, Denial> {
    let (new, old) = (&request["object"], &request["oldObject"]);
    if old.is_null() && admission.has_installation().await? {
        return Err(Denial::Invalid(vec![Problem::forbidden(
            "metadata.name",
            "there is a KubeVirt object already: the cluster has one installation",
        )]));
    }
    // One that is being deleted can still lose its finalizers.
    if !new["metadata"]["deletionTimestamp"].is_null() {
        return Ok(Vec::new());
    }
    let valid = kubevirt::validate(new).map_err(Denial::Invalid)?;
    let without_effect = kubevirt::without_effect(&valid);
    Ok(without_effect.iter().map(WithoutEffect::warning).chain(kubevirt::deprecated(&valid)).collect())
}

/// Keeps an installation whose workloads must not be removed with it.
async fn uninstall(admission: &Admission, object: &Value) -> Result<(), Denial> {
    let blocks = kubevirt::validate(object).map_or(true, |valid| kubevirt::blocks_uninstall(&valid));
    match admission.workload().await? {
        Some(kind) if blocks => Err(Denial::Other(
            403,
            format!(
                "Rejecting the uninstall request, since there are still {} present. Delete them, or set \
                 spec.uninstallStrategy to {}",
                kind.plural,
                kubevirt::REMOVE_WORKLOADS
            ),
        )),
        _ => Ok(()),
    }
}

/// `metav1.Status` of a denial.
fn status(request: &Value, denial: Denial) -> Value {
    match denial {
        Denial::Other(code, message) => {
            let reason = match code {
                403 => "Forbidden",
                429 => "TooManyRequests",
                _ => "InternalError",
            };
            json!({"code": code, "reason": reason, "message": message})
        }
        Denial::Invalid(problems) => {
            let listed = problems.iter().take(MAX_CAUSES);
            let listed: Vec<String> =
                listed.map(|problem| format!("{}: {}", problem.field, problem.message)).collect();
            let causes: Vec<Value> = problems
                .iter()
                .map(|problem| {
                    json!({"reason": problem.cause.as_str(), "field": problem.field, "message": problem.message})
                })
                .collect();
            json!({
                "code": 422, "reason": "Invalid", "message": listed.join(", "),
                "details": {"name": request["name"], "group": request["kind"]["group"],
                    "kind": request["kind"]["kind"], "causes": causes},
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ClusterConfig, LiveConfig};

    fn request(subresource: &str, user: &str) -> Value {
        json!({
            "uid": "u", "resource": {"group": "kubevirt.io", "version": "v1", "resource": "virtualmachineinstances"},
            "subResource": subresource, "userInfo": {"username": user}, "object": {"spec": {}},
        })
    }

    #[test]
    fn writes_of_our_kinds_are_admitted_and_others_are_not_looked_at() {
        let (vmi, status) = (request("", "ada"), request("status", "ada"));
        let found = write(&vmi).unwrap();
        assert_eq!((found.kind, found.old, found.is_component), (Kind::VMI, None, false));
        assert!(write(&status).is_none());
        assert!(write(&request("", COMPONENTS[2])).unwrap().is_component);
        let mut pod = request("", "ada");
        pod["resource"] = json!({"group": "", "version": "v1", "resource": "pods"});
        assert!(write(&pod).is_none());
    }

    /// Admission of objects for which nothing is read.
    fn admission(config: ClusterConfig) -> Admission {
        let unread = async |_: axum::http::Request<kube::client::Body>| {
            Err::<axum::http::Response<kube::client::Body>, _>(std::io::Error::other("nothing is read"))
        };
        Admission::new(kube::Client::new(tower::service_fn(unread), "default"), LiveConfig::fixed(config))
    }

    #[tokio::test]
    async fn a_vmi_is_patched_with_defaults_and_warned_of() {
        let mut vmi = request("", "ada");
        vmi["object"] = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "web", "uid": "00000000-0000-0000-0000-000000000000"},
            "spec": {"domain": {"memory": {"guest": "64Mi"}, "cpu": {"maxSockets": 2}}}});
        let review = json!({ "request": vmi });
        let response =
            answer(&admission(ClusterConfig::default()), Webhook::Mutate, &review).await["response"].take();
        let warning = "spec.domain.cpu.maxSockets: has no effect: vCPUs cannot be hotplugged yet";
        assert_eq!((&response["allowed"], &response["warnings"]), (&json!(true), &json!([warning])));
        let patch = STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
        let mut stored = vmi["object"].clone();
        json_patch::patch(&mut stored, &serde_json::from_slice::<json_patch::Patch>(&patch).unwrap())
            .unwrap();
        assert_eq!(stored["spec"]["domain"]["machine"], json!({"type": "q35"}));
        assert_eq!(stored["spec"]["domain"]["cpu"]["maxSockets"], 2);
        // What is stored is valid, and completing it again changes nothing.
        vmi["object"] = stored;
        let review = json!({ "request": vmi });
        for webhook in [Webhook::Mutate, Webhook::Validate] {
            let response =
                answer(&admission(ClusterConfig::default()), webhook, &review).await["response"].take();
            assert_eq!((&response["allowed"], response.get("patch")), (&json!(true), None), "{response}");
        }
    }

    #[tokio::test]
    async fn machine_types_are_those_of_the_cluster() {
        let mut vmi = request("", "ada");
        vmi["object"] = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "web"},
            "spec": {"domain": {"memory": {"guest": "64Mi"}, "machine": {"type": "pc-q35-9.0"}}}});
        let config = ClusterConfig { emulated_machines: vec!["q35".to_owned()], ..ClusterConfig::default() };
        for (config, allowed) in [(ClusterConfig::default(), true), (config, false)] {
            let review = json!({ "request": vmi });
            let response = answer(&admission(config), Webhook::Validate, &review).await["response"].take();
            assert_eq!(response["allowed"], allowed, "{response}");
            if !allowed {
                let message =
                    "spec.domain.machine.type: Unsupported value: \"pc-q35-9.0\": supported values: \"q35\"";
                assert_eq!(response["status"]["message"], message);
            }
        }
    }

    #[test]
    fn an_object_without_a_name_and_uid_gets_some_for_its_validation() {
        let vmi = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"generateName": "web-"},
            "spec": {"domain": {"memory": {"guest": "64Mi"}}}});
        assert_eq!(admit(Kind::VMI, &mut identified(&vmi), None), []);
        let known = json!({"metadata": {"name": "web", "uid": "u"}});
        assert_eq!(identified(&known), known);
    }

    #[test]
    fn a_denial_names_the_fields() {
        let problems = vec![Problem::required("spec.domain", "must be set")];
        let mut vmi = request("", "ada");
        vmi["kind"] = json!({"group": "kubevirt.io", "kind": "VirtualMachineInstance"});
        let denied = status(&vmi, Denial::Invalid(problems));
        assert_eq!((&denied["code"], &denied["message"]), (&json!(422), &json!("spec.domain: must be set")));
        assert_eq!(denied["details"]["causes"][0]["field"], "spec.domain");
        let evicted = status(&vmi, Denial::Other(429, "no".to_owned()));
        assert_eq!(evicted["reason"], "TooManyRequests");
    }
}
