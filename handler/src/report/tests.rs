use super::*;
use crate::manifests::Problem;

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn vmi(name: &str, phase: &str) -> VirtualMachineInstance {
    let mut vmi = VirtualMachineInstance::default();
    vmi.metadata.namespace = "default".to_owned();
    vmi.metadata.name = name.to_owned();
    vmi.metadata.creation_timestamp = Some("2026-01-01T00:59:00Z".to_owned());
    vmi.status.phase = phase.to_owned();
    vmi
}

fn options(name: Option<&str>) -> Options {
    Options {
        name: name.map(str::to_owned),
        namespace: None,
        format: Format::Table,
        state_dir: PathBuf::from("/nonexistent"),
    }
}

fn rejection(name: &str, problems: &[&str]) -> Rejection {
    Rejection {
        file: "bad.yaml".to_owned(),
        document: Some(2),
        namespace: "default".to_owned(),
        name: name.to_owned(),
        problems: problems
            .iter()
            .map(|text| Problem { field: "spec.x".to_owned(), message: (*text).to_owned() })
            .collect(),
    }
}

#[test]
fn one_line_for_each_and_all_problems_below() {
    let mut running = vmi("web", "Running");
    running.status.conditions.push(Condition {
        r#type: ConditionType::Hypervisor.as_str().to_owned(),
        status: "True".to_owned(),
        reason: "qemu".to_owned(),
        ..Condition::default()
    });
    let found = Found {
        vmis: vec![running, vmi("db", "Pending")],
        rejections: vec![rejection("bad", &["one", "two"])],
    };
    let text = table(&found, &options(None), false, now());
    let expected = "\
NAMESPACE   NAME   PHASE     HYPERVISOR   IP   AGE   REASON
default     web    Running   qemu         -    60s   -
default     db     Pending   -            -    60s   -
default     bad    Refused   -            -    -     bad.yaml: 2 problems
refused: bad.yaml (document 2)
  spec.x: one
  spec.x: two
";
    assert_eq!(text, expected);
}

#[test]
fn a_refused_change_of_a_running_vmi_does_not_hide_it() {
    let found = Found { vmis: vec![vmi("web", "Running")], rejections: vec![rejection("web", &["one"])] };
    let text = table(&found, &options(None), false, now());
    assert_eq!(text.matches("web").count(), 1, "{text}");
    assert!(text.contains("refused: bad.yaml") && text.contains("Running"), "{text}");
}

#[test]
fn what_went_wrong_is_the_reason() {
    let mut failed = vmi("web", "Scheduling");
    failed.status.conditions.push(Condition {
        r#type: "Synchronized".to_owned(),
        status: "False".to_owned(),
        reason: "FailedStorage".to_owned(),
        message: "no such image".to_owned(),
        ..Condition::default()
    });
    assert_eq!(reason(&failed), "FailedStorage: no such image");
    let found = Found { vmis: vec![failed], rejections: Vec::new() };
    let text = table(&found, &options(Some("web")), false, now());
    assert!(text.contains("Synchronized False: FailedStorage: no such image"), "{text}");
}

#[test]
fn ages_are_short() {
    for (then, expected) in [
        ("2026-01-01T00:59:59Z", "1s"),
        ("2026-01-01T00:30:00Z", "30m"),
        ("2025-12-31T12:00:00Z", "13h"),
        ("2025-12-01T00:00:00Z", "31d"),
        ("2027-01-01T00:00:00Z", "0s"),
        ("yesterday", "-"),
    ] {
        assert_eq!(age(then, now()), expected, "{then}");
    }
}
