//! The status of a KubeVirt object.

use vireo_api::v1::{Condition, KubeVirtStatus};

/// What virt-operator observes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Observed {
    /// The desired objects are applied, or about to be.
    Installing {
        /// What is not rolled out yet, as `Kind name`; nothing when all is.
        pending: Vec<String>,
        /// What does not do what it is for.
        unavailable: Vec<String>,
    },
    /// It cannot be installed.
    Failed(String),
    /// It is being removed; what this waits for.
    Removing(String),
    /// It is removed.
    Removed,
}

/// What is, or was, installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// Identifier.
    pub(super) id: String,
    /// Registry of the images.
    pub(super) registry: String,
    /// Version of the images, which is their tag.
    pub(super) version: String,
    /// Generation of the specification.
    pub(super) generation: Option<i64>,
    /// Settings without effect.
    pub(super) without_effect: Vec<String>,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Sets a condition; the time of its last transition changes with its status alone.
fn set(conditions: &mut Vec<Condition>, name: &str, holds: bool, (reason, message): (&str, &str), now: &str) {
    let status = if holds { "True" } else { "False" };
    let known = conditions.iter().position(|one| one.r#type == name);
    let mut condition = known.and_then(|at| conditions.get(at).cloned()).unwrap_or_default();
    if condition.status != status || condition.last_transition_time.is_none() {
        condition.last_transition_time = Some(now.to_owned());
        condition.last_probe_time = Some(now.to_owned());
    }
    name.clone_into(&mut condition.r#type);
    status.clone_into(&mut condition.status);
    reason.clone_into(&mut condition.reason);
    message.clone_into(&mut condition.message);
    match known.and_then(|at| conditions.get_mut(at)) {
        Some(slot) => *slot = condition,
        None => conditions.push(condition),
    }
}

/// The status after an observation, by the status before it.
pub(super) fn status(
    before: &KubeVirtStatus,
    observed: &Observed,
    target: Option<&Target>,
    now: &str,
) -> KubeVirtStatus {
    let mut status = before.clone();
    VERSION.clone_into(&mut status.operator_version);
    "amd64".clone_into(&mut status.default_architecture);
    if let Some(target) = target {
        status.target_kube_virt_version.clone_from(&target.version);
        status.target_kube_virt_registry.clone_from(&target.registry);
        status.target_deployment_id.clone_from(&target.id);
    }
    let was_installed = !before.observed_deployment_id.is_empty();
    let conditions = &mut status.conditions;
    // Available, Progressing, Degraded.
    let mut three = |holds: [bool; 3], why: (&str, &str)| {
        for (name, holds) in ["Available", "Progressing", "Degraded"].into_iter().zip(holds) {
            set(conditions, name, holds, why, now);
        }
    };
    match observed {
        Observed::Installing { pending, unavailable } => {
            let is_same = target.is_some_and(|target| target.id == before.observed_deployment_id);
            let waits: Vec<&str> = pending.iter().chain(unavailable).map(String::as_str).collect();
            let message = format!("waiting for: {}", waits.join(", "));
            match (waits.is_empty(), was_installed) {
                (true, _) => three([true, false, false], ("AllComponentsReady", "all components are ready")),
                (false, false) => three([false, true, false], ("DeploymentInProgress", &message)),
                (false, true) if is_same => {
                    three([unavailable.is_empty(), false, true], ("ComponentsNotReady", &message));
                }
                (false, true) => {
                    three([unavailable.is_empty(), true, true], ("UpdateInProgress", &message));
                }
            }
            set(conditions, "Synchronized", true, ("Synchronized", "the specification is applied"), now);
            if waits.is_empty() {
                set(conditions, "Created", true, ("AllResourcesCreated", "all resources are created"), now);
                if let Some(target) = target {
                    status.observed_kube_virt_version.clone_from(&target.version);
                    status.observed_kube_virt_registry.clone_from(&target.registry);
                    status.observed_deployment_id.clone_from(&target.id);
                    status.observed_generation = target.generation;
                }
            }
            let phase = if waits.is_empty() || was_installed { "Deployed" } else { "Deploying" };
            phase.clone_into(&mut status.phase);
        }
        Observed::Failed(why) => {
            if was_installed {
                set(conditions, "Degraded", true, ("DeploymentFailed", why), now);
            } else {
                three([false, false, true], ("DeploymentFailed", why));
            }
            set(conditions, "Synchronized", false, ("DeploymentFailed", why), now);
        }
        Observed::Removing(why) => {
            three([false, false, true], ("DeletionInProgress", why));
            "Deleting".clone_into(&mut status.phase);
        }
        Observed::Removed => {
            three([false, false, true], ("Deleted", "the installation is removed"));
            "Deleted".clone_into(&mut status.phase);
        }
    }
    if let Some(Target { without_effect, .. }) = target {
        let name = "UnsupportedConfiguration";
        if without_effect.is_empty() {
            status.conditions.retain(|one| one.r#type != name);
        } else {
            let message = format!("these settings have no effect: {}", without_effect.join(", "));
            set(&mut status.conditions, name, true, ("SettingsWithoutEffect", &message), now);
        }
    }
    status
}

/// The status of a KubeVirt object that is not the one of the cluster.
pub(super) fn superfluous(before: &KubeVirtStatus, why: (&str, &str), now: &str) -> KubeVirtStatus {
    let mut status = before.clone();
    set(&mut status.conditions, "Synchronized", false, why, now);
    status
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_api::v1::{KubeVirt, VirtualMachine};
    use vireo_operators::admission::kubevirt;

    use super::*;

    fn target(id: &str) -> Target {
        Target {
            id: id.to_owned(),
            registry: "r".to_owned(),
            version: "1".to_owned(),
            generation: Some(2),
            without_effect: Vec::new(),
        }
    }

    fn installing(pending: &[&str], unavailable: &[&str]) -> Observed {
        let texts = |of: &[&str]| of.iter().map(|one| (*one).to_owned()).collect();
        Observed::Installing { pending: texts(pending), unavailable: texts(unavailable) }
    }

    /// Available, Progressing, Degraded, and their reason.
    fn three(status: &KubeVirtStatus) -> (String, &str) {
        let of = |name: &str| status.conditions.iter().find(|one| one.r#type == name).unwrap();
        let letters = ["Available", "Progressing", "Degraded"].map(|name| of(name).status.get(..1).unwrap());
        (letters.concat(), &of("Progressing").reason)
    }

    #[test]
    fn an_installation_becomes_available_is_updated_and_stays_available() {
        let begin = status(
            &KubeVirtStatus::default(),
            &installing(&["Deployment virt-api"], &[]),
            Some(&target("a")),
            "1",
        );
        assert_eq!(
            (begin.phase.as_str(), three(&begin)),
            ("Deploying", ("FTF".to_owned(), "DeploymentInProgress"))
        );
        assert_eq!((begin.target_deployment_id.as_str(), begin.observed_deployment_id.as_str()), ("a", ""));
        let done = status(&begin, &installing(&[], &[]), Some(&target("a")), "2");
        assert_eq!(
            (done.phase.as_str(), three(&done)),
            ("Deployed", ("TFF".to_owned(), "AllComponentsReady"))
        );
        assert_eq!((done.observed_deployment_id.as_str(), done.observed_generation), ("a", Some(2)));
        assert_eq!(done.observed_kube_virt_version, "1");
        let update = status(&done, &installing(&["DaemonSet virt-handler"], &[]), Some(&target("b")), "3");
        assert_eq!(
            (update.phase.as_str(), three(&update)),
            ("Deployed", ("TTT".to_owned(), "UpdateInProgress"))
        );
        assert_eq!(update.observed_deployment_id, "a");
        let same = status(&done, &installing(&["DaemonSet virt-handler"], &[]), Some(&target("a")), "3");
        assert_eq!(three(&same), ("TFT".to_owned(), "ComponentsNotReady"));
        let down = status(&done, &installing(&[], &["Deployment virt-api"]), Some(&target("a")), "3");
        assert_eq!(three(&down), ("FFT".to_owned(), "ComponentsNotReady"));
    }

    #[test]
    fn a_failure_keeps_what_is_installed() {
        let new = status(&KubeVirtStatus::default(), &Observed::Failed("no".to_owned()), None, "1");
        assert_eq!(three(&new), ("FFT".to_owned(), "DeploymentFailed"));
        let done = status(&KubeVirtStatus::default(), &installing(&[], &[]), Some(&target("a")), "1");
        let failed = status(&done, &Observed::Failed("no".to_owned()), None, "2");
        let of = |name: &str| failed.conditions.iter().find(|one| one.r#type == name).unwrap();
        assert_eq!((&*of("Available").status, &*of("Synchronized").status), ("True", "False"));
        assert_eq!((&*of("Degraded").status, &*of("Degraded").message), ("True", "no"));
        assert_eq!(of("Available").last_transition_time.as_deref(), Some("1"));
    }

    #[test]
    fn settings_without_effect_are_a_condition_while_they_are_set() {
        let mut with = target("a");
        with.without_effect = vec!["spec.configuration.vmRolloutStrategy".to_owned()];
        let named = status(&KubeVirtStatus::default(), &installing(&[], &[]), Some(&with), "1");
        let of = |status: &KubeVirtStatus| {
            let found = status.conditions.iter().find(|one| one.r#type == "UnsupportedConfiguration");
            found.map(|one| one.message.clone())
        };
        assert_eq!(
            of(&named).as_deref(),
            Some("these settings have no effect: spec.configuration.vmRolloutStrategy")
        );
        assert_eq!(of(&status(&named, &installing(&[], &[]), Some(&target("a")), "2")), None);
    }

    #[test]
    fn a_downgrade_is_an_update_and_keeps_what_a_newer_release_has_written() {
        let of = |id: &str, version: &str| Target { version: version.to_owned(), ..target(id) };
        let newer = json!({"status": {"phase": "Deployed", "observedKubeVirtVersion": "2", "targetKubeVirtVersion": "2",
            "observedDeploymentID": "b", "targetDeploymentID": "b", "operatorVersion": "99.0.0",
            "generations": [{"name": "virt-api"}], "conditions": [{"type": "Later", "status": "True", "more": 1}]},
            "spec": {"configuration": {"later": {"a": 1}, "developerConfiguration": {"later": true}}}});
        let newer: KubeVirt = serde_json::from_value(newer).unwrap();
        let begun =
            status(&newer.status, &installing(&["DaemonSet virt-handler"], &[]), Some(&of("a", "1")), "3");
        assert_eq!(three(&begun), ("TTT".to_owned(), "UpdateInProgress"));
        assert_eq!((&*begun.observed_kube_virt_version, &*begun.target_kube_virt_version), ("2", "1"));
        let done = status(&begun, &installing(&[], &[]), Some(&of("a", "1")), "4");
        assert_eq!((&*done.observed_kube_virt_version, &*done.operator_version), ("1", VERSION));
        let written = json!(done);
        assert_eq!(written["generations"], json!([{"name": "virt-api"}]));
        assert_eq!(written["conditions"][0]["more"], 1);
        // And forward again.
        let again = status(&done, &installing(&["DaemonSet virt-handler"], &[]), Some(&of("b", "2")), "5");
        assert_eq!((&*again.observed_kube_virt_version, &*again.target_kube_virt_version), ("1", "2"));

        let valid = kubevirt::validate(&json!(newer)).unwrap();
        let mut named: Vec<String> =
            kubevirt::without_effect(&valid).iter().map(ToString::to_string).collect();
        named.sort();
        let at = "spec.configuration";
        assert_eq!(named, [format!("{at}.developerConfiguration.later"), format!("{at}.later")]);
        assert_eq!(json!(valid.spec), json!(newer.spec), "the newer release finds its settings");
    }

    /// Older components read newer objects, and write back what they do not know, as far as the definition of then stores it.
    #[test]
    fn objects_of_a_newer_release_are_read() {
        let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "a", "namespace": "n"},
            "spec": {"later": 1, "runStrategy": "Always", "template": {"spec": {"domain": {
                "devices": {"later": [1], "disks": [{"name": "a", "later": {}}]}}, "later": true}}},
            "status": {"later": {"a": "b"}, "ready": true}});
        let read: VirtualMachine = serde_json::from_value(vm.clone()).unwrap();
        assert_eq!(json!(read), vm);
    }

    #[test]
    fn the_phases_of_a_removal() {
        let done = status(&KubeVirtStatus::default(), &installing(&[], &[]), Some(&target("a")), "1");
        let removing = status(&done, &Observed::Removing("x".to_owned()), None, "2");
        assert_eq!((removing.phase.as_str(), three(&removing).0.as_str()), ("Deleting", "FFT"));
        assert_eq!(status(&removing, &Observed::Removed, None, "3").phase, "Deleted");
    }
}
