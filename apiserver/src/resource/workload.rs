//! Kinds of Kubernetes whose objects are listed, of which there are none, and refused: what makes pods and what leads to
//! them.
//!
//! `kubectl cluster-info` asks for services, and `kubectl apply --prune` for all of these, in the versions of Kubernetes
//! 1.20 by older releases.

use super::admit::{pod, service};
use super::{Admit, Resource, Text, texts};

/// Group, version, kind, short names, and what refuses its objects.
type Row = (&'static str, &'static str, &'static str, &'static [&'static str], Admit);

const ROWS: &[Row] = &[
    ("", "v1", "ReplicationController", &["rc"], pod),
    ("apps", "v1", "DaemonSet", &["ds"], pod),
    ("apps", "v1", "Deployment", &["deploy"], pod),
    ("apps", "v1", "ReplicaSet", &["rs"], pod),
    ("apps", "v1", "StatefulSet", &["sts"], pod),
    ("batch", "v1", "CronJob", &["cj"], pod),
    ("batch", "v1", "Job", &[], pod),
    ("batch", "v1beta1", "CronJob", &["cj"], pod),
    ("", "v1", "Endpoints", &["ep"], service),
    ("", "v1", "Service", &["svc"], service),
    ("networking.k8s.io", "v1", "Ingress", &["ing"], service),
    ("extensions", "v1beta1", "Ingress", &[], service),
];

/// Whether a kind is one of those without objects.
pub fn is_workload(api_version: &str, kind: &str) -> bool {
    let is = |row: &Resource| row.kind == kind && row.api_version() == api_version;
    rows().iter().any(is)
}

pub(super) fn rows() -> Vec<Resource> {
    ROWS.iter().map(row).collect()
}

fn row((group, version, kind, short_names, admit): &Row) -> Resource {
    let row = Resource {
        version: Text::from(*version),
        short_names: texts(short_names),
        status: *kind != "Endpoints",
        admit: *admit,
        ..Resource::kubernetes(group, kind)
    };
    match *kind {
        "Endpoints" => Resource { plural: "endpoints".into(), ..row },
        "Ingress" => Resource { plural: "ingresses".into(), ..row },
        _ => row,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_apply_prunes_is_there() {
        let rows = super::super::kubernetes();
        // What `kubectl apply --prune` of 1.20 and of 1.32 looks at.
        for (api_version, kind) in [
            ("v1", "ConfigMap"),
            ("v1", "Endpoints"),
            ("v1", "Namespace"),
            ("v1", "Pod"),
            ("v1", "ReplicationController"),
            ("v1", "Secret"),
            ("v1", "Service"),
            ("batch/v1", "Job"),
            ("batch/v1", "CronJob"),
            ("batch/v1beta1", "CronJob"),
            ("networking.k8s.io/v1", "Ingress"),
            ("extensions/v1beta1", "Ingress"),
            ("apps/v1", "DaemonSet"),
            ("apps/v1", "Deployment"),
            ("apps/v1", "ReplicaSet"),
            ("apps/v1", "StatefulSet"),
        ] {
            let is = |row: &&std::sync::Arc<Resource>| row.kind == kind && row.api_version() == api_version;
            assert!(rows.iter().any(|row| is(&row)), "{api_version} {kind}");
        }
        assert!(is_workload("apps/v1", "Deployment") && !is_workload("v1", "ConfigMap"));
    }
}
