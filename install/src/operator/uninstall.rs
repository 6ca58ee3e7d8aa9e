//! The order in which an installation is removed.

/// Kinds that are deleted together. Definitions are the first: to delete one deletes its objects, and the components must be
/// there to end guests.
const ORDER: [&[&str]; 4] = [
    &["CustomResourceDefinition"],
    &["DaemonSet", "Deployment", "PodDisruptionBudget"],
    &[
        "APIService",
        "MutatingWebhookConfiguration",
        "PrometheusRule",
        "Service",
        "ServiceMonitor",
        "ValidatingWebhookConfiguration",
    ],
    &["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"],
];

/// What is to be done for objects to go.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Removal<T> {
    /// These are to be deleted.
    Delete(Vec<T>),
    /// These are being deleted.
    Wait(Vec<T>),
    /// All are gone.
    Done,
}

/// The next step, given the objects that are there: their kinds, and whether they are being deleted.
pub(super) fn next<'a, T>(objects: Vec<(&'a str, bool, T)>) -> Removal<T> {
    let order = |kind: &str| ORDER.iter().position(|kinds| kinds.contains(&kind)).unwrap_or(ORDER.len());
    let Some(first) = objects.iter().map(|(kind, ..)| order(kind)).min() else { return Removal::Done };
    let now = objects.into_iter().filter(|(kind, ..)| order(kind) == first);
    let (deleting, there): (Vec<_>, Vec<_>) = now.partition(|(_, is_deleting, _)| *is_deleting);
    let only = |of: Vec<(&'a str, bool, T)>| of.into_iter().map(|(.., object)| object).collect();
    if there.is_empty() { Removal::Wait(only(deleting)) } else { Removal::Delete(only(there)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_end_before_the_components_and_the_components_before_their_rights() {
        let all = vec![
            ("ClusterRole", false, "role"),
            ("Deployment", false, "virt-api"),
            ("CustomResourceDefinition", false, "vms"),
            ("CustomResourceDefinition", true, "vmis"),
            ("APIService", false, "v1"),
        ];
        assert_eq!(next(all), Removal::Delete(vec!["vms"]));
        let deleting = vec![("CustomResourceDefinition", true, "vmis"), ("DaemonSet", false, "virt-handler")];
        assert_eq!(next(deleting), Removal::Wait(vec!["vmis"]));
        let services = vec![("ClusterRole", false, "role"), ("APIService", false, "v1")];
        assert_eq!(next(services), Removal::Delete(vec!["v1"]));
        assert_eq!(next(vec![("Other", false, "other")]), Removal::Delete(vec!["other"]));
        assert_eq!(next::<()>(vec![]), Removal::Done);
    }
}
