//! Affinity, tolerations and topology spread, in the words of Kubernetes' API server.

use serde_json::{Value, json};
use vireo_api::spec::Cause::{self, Duplicate, Forbidden, Invalid, NotSupported, Required};

use super::manifest::with_spec;

type Row = (Value, &'static str, Cause, &'static str);

/// Each change alone leads to exactly one problem: its field below `below`, its cause, and the beginning of its text.
fn each_is_refused(change: impl Fn(Value) -> Value, below: &str, rows: Vec<Row>) {
    for (part, field, cause, text) in rows {
        let report = with_spec(change(part.clone())).expect_err(&part.to_string());
        let [problem] = report.problems() else { panic!("{part}: {report}") };
        assert_eq!(
            (problem.field().to_string(), problem.cause()),
            (format!("{below}{field}"), cause),
            "{part}"
        );
        assert!(problem.message().starts_with(text), "{part}: {}", problem.message());
    }
}

const NO_LABEL: &str =
    "Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.'";

#[test]
fn what_is_right_is_admitted() {
    let selector = json!({"matchLabels": {"app": "web"}, "matchExpressions": [
        {"key": "tier", "operator": "In", "values": ["a", ""]}, {"key": "example.com/x", "operator": "Exists"}]});
    let pods = json!({
        "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname",
            "labelSelector": selector, "namespaces": ["shop"], "namespaceSelector": {},
            "matchLabelKeys": ["pod-template-hash"]}],
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "podAffinityTerm": {"topologyKey": "zone"}}],
    });
    let nodes = json!({
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}, {"matchExpressions": [
            {"key": "cores", "operator": "Gt", "values": ["4"]}, {"key": "disk", "operator": "DoesNotExist"}],
            "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-1"]}]}]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
    });
    let spec = json!({
        "affinity": {"nodeAffinity": nodes, "podAffinity": pods.clone(), "podAntiAffinity": pods},
        "tolerations": [{"operator": "Exists"}, {"key": "gpu", "value": "a", "effect": "NoSchedule"},
            {"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2},
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
                "nodeTaintsPolicy": "Honor", "labelSelector": selector}],
        "serviceAccountName": "web.runner",
    });
    with_spec(spec).unwrap();
}

#[test]
fn node_affinity() {
    let required = |term: Value| {
        let terms = json!({"nodeSelectorTerms": [term]});
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}})
    };
    let at =
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].";
    let label = |requirement: Value| json!({"matchExpressions": [requirement]});
    let field = |requirement: Value| json!({"matchFields": [requirement]});
    each_is_refused(
        required,
        at,
        vec![
            (
                label(json!({"key": "a", "operator": "Near", "values": ["b"]})),
                "matchExpressions[0].operator",
                Invalid,
                "Invalid value: \"Near\": not a valid selector operator",
            ),
            (
                label(json!({"key": "a", "operator": "In"})),
                "matchExpressions[0].values",
                Required,
                "Required value: must be specified when `operator` is 'In' or 'NotIn'",
            ),
            (
                label(json!({"key": "a", "operator": "Exists", "values": ["b"]})),
                "matchExpressions[0].values",
                Forbidden,
                "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            (
                label(json!({"key": "a", "operator": "Gt", "values": ["1", "2"]})),
                "matchExpressions[0].values",
                Required,
                "Required value: must be specified single value when `operator` is 'Lt' or 'Gt'",
            ),
            (
                label(json!({"key": "a b", "operator": "Exists"})),
                "matchExpressions[0].key",
                Invalid,
                NO_LABEL,
            ),
            (
                label(json!({"operator": "Exists"})),
                "matchExpressions[0].key",
                Invalid,
                "Invalid value: \"\": name part must be non-empty",
            ),
            (
                label(json!({"key": "A_b/c", "operator": "Exists"})),
                "matchExpressions[0].key",
                Invalid,
                "Invalid value: \"A_b/c\": prefix part a lowercase RFC 1123 subdomain must consist of",
            ),
            (
                field(json!({"key": "metadata.name", "operator": "In", "values": ["a", "b"]})),
                "matchFields[0].values",
                Required,
                "Required value: must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            ),
            (
                field(json!({"key": "metadata.uid", "operator": "In", "values": ["a"]})),
                "matchFields[0].key",
                Invalid,
                "Invalid value: \"metadata.uid\": not a valid field selector key",
            ),
        ],
    );
    each_is_refused(
        |part| json!({"affinity": {"nodeAffinity": part}}),
        "spec.affinity.nodeAffinity.",
        vec![
            (
                json!({"requiredDuringSchedulingIgnoredDuringExecution": {}}),
                "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
                Required,
                "Required value: must have at least one node selector term",
            ),
            (
                json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 255, "preference": {}}]}),
                "preferredDuringSchedulingIgnoredDuringExecution[0].weight",
                Invalid,
                "Invalid value: 255: must be in the range 1-100",
            ),
            (
                json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"preference": {}}]}),
                "preferredDuringSchedulingIgnoredDuringExecution[0].weight",
                Invalid,
                "Invalid value: 0: must be in the range 1-100",
            ),
            (
                json!({"preferedDuringSchedulingIgnoredDuringExecution": []}),
                "preferedDuringSchedulingIgnoredDuringExecution",
                NotSupported,
                "no field of this version of the API is called",
            ),
        ],
    );
}

#[test]
fn pod_affinity() {
    for kind in ["podAffinity", "podAntiAffinity"] {
        let required = |term: Value| json!({"affinity": {(kind): {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}});
        let at = format!("spec.affinity.{kind}.requiredDuringSchedulingIgnoredDuringExecution[0].");
        let selects = |requirement: Value| json!({"topologyKey": "zone", "labelSelector": {"matchExpressions": [requirement]}});
        each_is_refused(
            required,
            &at,
            vec![
                (json!({}), "topologyKey", Required, "Required value: can not be empty"),
                (json!({"topologyKey": "a b"}), "topologyKey", Invalid, NO_LABEL),
                (
                    json!({"topologyKey": "zone", "namespaces": ["shop", "No"]}),
                    "namespaces[1]",
                    Invalid,
                    "Invalid value: \"No\": a lowercase RFC 1123 label must consist of",
                ),
                (
                    selects(json!({"key": "a", "operator": "Gt", "values": ["1"]})),
                    "labelSelector.matchExpressions[0].operator",
                    Invalid,
                    "Invalid value: \"Gt\": not a valid selector operator",
                ),
                (
                    selects(json!({"key": "a", "operator": "NotIn"})),
                    "labelSelector.matchExpressions[0].values",
                    Required,
                    "Required value: must be specified when `operator` is 'In' or 'NotIn'",
                ),
                (
                    selects(json!({"key": "a", "operator": "In", "values": ["b c"]})),
                    "labelSelector.matchExpressions[0].values[0]",
                    Invalid,
                    "Invalid value: \"b c\": a valid label must be an empty string or consist of",
                ),
                (
                    json!({"topologyKey": "zone", "matchLabelKeys": ["app"]}),
                    "matchLabelKeys",
                    Forbidden,
                    "Forbidden: must not be specified when labelSelector is not set",
                ),
            ],
        );
        let preferred = json!([{"weight": 101, "podAffinityTerm": {"topologyKey": "zone"}}]);
        each_is_refused(
            |part| json!({"affinity": {(kind): {"preferredDuringSchedulingIgnoredDuringExecution": part}}}),
            &format!("spec.affinity.{kind}.preferredDuringSchedulingIgnoredDuringExecution"),
            vec![(preferred, "[0].weight", Invalid, "Invalid value: 101: must be in the range 1-100")],
        );
    }
}

#[test]
fn tolerations() {
    each_is_refused(
        |toleration| json!({"tolerations": [toleration]}),
        "spec.tolerations[0].",
        vec![
            (json!({"key": "a b", "operator": "Exists"}), "key", Invalid, NO_LABEL),
            (
                json!({"key": "a", "operator": "Near"}),
                "operator",
                NotSupported,
                "Unsupported value: \"Near\": supported values: \"Equal\", \"Exists\"",
            ),
            (
                json!({"value": "x"}),
                "operator",
                Invalid,
                "Invalid value: \"\": operator must be Exists when `key` is empty",
            ),
            (
                json!({"key": "a", "operator": "Exists", "value": "x"}),
                "value",
                Invalid,
                "Invalid value: \"x\": value must be empty when `operator` is 'Exists'",
            ),
            (
                json!({"key": "a", "operator": "Exists", "effect": "Never"}),
                "effect",
                NotSupported,
                "Unsupported value: \"Never\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
            ),
            (
                json!({"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 1}),
                "effect",
                Invalid,
                "Invalid value: \"NoSchedule\": effect must be 'NoExecute' when `tolerationSeconds` is set",
            ),
        ],
    );
}

#[test]
fn topology_spread() {
    let constraint = |change: Value| {
        let mut constraint =
            json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"});
        super::manifest::merge(&mut constraint, change);
        json!({"topologySpreadConstraints": [constraint]})
    };
    each_is_refused(
        constraint,
        "spec.topologySpreadConstraints[0].",
        vec![
            (json!({"maxSkew": 0}), "maxSkew", Invalid, "Invalid value: 0: must be greater than zero"),
            (json!({"topologyKey": ""}), "topologyKey", Required, "Required value: can not be empty"),
            (json!({"topologyKey": "a b"}), "topologyKey", Invalid, NO_LABEL),
            (
                json!({"whenUnsatisfiable": "Perhaps"}),
                "whenUnsatisfiable",
                NotSupported,
                "Unsupported value: \"Perhaps\": supported values: \"DoNotSchedule\", \"ScheduleAnyway\"",
            ),
            (json!({"minDomains": 0}), "minDomains", Invalid, "Invalid value: 0: must be greater than zero"),
            (
                json!({"minDomains": 1, "whenUnsatisfiable": "ScheduleAnyway"}),
                "minDomains",
                Invalid,
                "Invalid value: 1: can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway",
            ),
            (
                json!({"nodeAffinityPolicy": "Some"}),
                "nodeAffinityPolicy",
                NotSupported,
                "Unsupported value: \"Some\": supported values: \"Honor\", \"Ignore\"",
            ),
            (
                json!({"labelSelector": {"matchLabels": {"a": "b c"}}}),
                "labelSelector.matchLabels",
                Invalid,
                "Invalid value: \"b c\": a valid label must be",
            ),
            (json!({"maxSkew": "one"}), "maxSkew", Invalid, "invalid type"),
        ],
    );
    let one = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"});
    each_is_refused(
        |constraints| json!({"topologySpreadConstraints": constraints}),
        "spec.topologySpreadConstraints",
        vec![(
            json!([one, one]),
            "[1].{topologyKey, whenUnsatisfiable}",
            Duplicate,
            "Duplicate value: \"{zone, DoNotSchedule}\"",
        )],
    );
}
