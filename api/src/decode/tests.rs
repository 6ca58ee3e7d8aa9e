use super::*;
use crate::v1::{API_VERSION, VMI_KIND};

const GOOD: &str = "
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: good, uid: 5d307ca9-b3ef-428c-8861-06e72d69f223}
spec:
  domain:
    memory: {guest: 64Mi}
    devices: {}
";

fn one(text: &str) -> Decoded<VirtualMachineInstance> {
    manifest(text).unwrap().remove(0)
}

#[test]
fn yaml_and_json_give_the_same_object() {
    let decoded = one(GOOD);
    assert_eq!(decoded.mistyped(), []);
    assert_eq!((decoded.object.api_version.as_str(), decoded.object.kind.as_str()), (API_VERSION, VMI_KIND));
    let json = serde_json::to_string(&decoded.object).unwrap();
    assert_eq!(one(&json).object, decoded.object);
    assert!(decoded.check().is_ok());
}

#[test]
fn a_text_may_hold_several_objects_and_empty_documents() {
    let several = manifest(&format!("---\n{GOOD}---\n---\n{GOOD}")).unwrap();
    assert_eq!(several.len(), 2);
    assert!(manifest("").unwrap().is_empty());
}

#[test]
fn every_wrong_type_is_reported_with_its_path_and_the_rest_is_checked() {
    let decoded = one("
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: bad, uid: 5d307ca9-b3ef-428c-8861-06e72d69f223, labels: {a.b/c: 1}}
spec:
  terminationGracePeriodSeconds: soon
  domain:
    cpu: {cores: four, sockets: -1}
    memory: {guest: [64Mi]}
    devices:
      disks:
      - oops
      - {name: gone, bootOrder: 0}
      rng: 5
  dnsConfig: {nameservers: [10.0.0.1, {}]}
");
    let report = decoded.check().unwrap_err();
    let lines: Vec<String> = report.problems().iter().map(ToString::to_string).collect();
    for line in [
        "metadata.labels.a.b/c: invalid type: integer `1`, expected a string",
        "spec.terminationGracePeriodSeconds: invalid type: string \"soon\", expected i64",
        "spec.domain.cpu.cores: invalid type: string \"four\", expected u32",
        "spec.domain.cpu.sockets: invalid value: integer `-1`, expected u32",
        "spec.domain.memory.guest: invalid type: sequence, expected a quantity such as 512Mi or 2",
        "spec.domain.devices.disks[0]: invalid type: string \"oops\", expected an object",
        "spec.domain.devices.rng: invalid type: integer `5`, expected an object",
        "spec.dnsConfig.nameservers[1]: invalid type: map, expected a string",
        "spec.domain.devices.disks[1].bootOrder: Invalid value: 0: must be greater than or equal to 1",
    ] {
        assert!(lines.iter().any(|known| known == line), "{line}\n is not among\n{}", lines.join("\n"));
    }
    let follows =
        |line: &String| line.starts_with("spec.domain.devices.disks[0].") || line.contains("say how much");
    assert!(!lines.iter().any(follows), "{}", lines.join("\n"));
}

#[test]
fn yaml_that_repeats_itself_ends() {
    for repeated in [
        "- ", "? ", "a: &a ", "!!x ", "&a ", "[*a, ", "- &a\n", "<<: ", "--- ", "|\n", "\"", "%", "{[",
        "? - ",
    ] {
        for before in ["", "a: ", "a: &a [b]\n"] {
            // Whatever comes of it, it comes.
            let _ = documents(&format!("{before}{}", repeated.repeat(50_000)));
        }
    }
    let merges: String =
        (1..2000).map(|at| format!("a{at}: &a{at}\n  <<: *a{}\n  k{at}: 1\n", at - 1)).collect();
    assert!(documents(&format!("a0: &a0 {{k: 1}}\n{merges}")).is_err());
}

proptest::proptest! {
    #[test]
    fn no_text_is_too_odd(text in "[-a:{}\\[\\],&*?|>'\"# \n!%<~0]{0,200}") {
        let _ = documents(&text);
    }
}

#[test]
fn an_object_full_of_wrong_types_ends() {
    let labels: String = (0..1000).map(|index| format!("l{index}: {index}, ")).collect();
    let decoded = one(&format!("kind: x\nmetadata: {{labels: {{{labels}}}}}\n"));
    assert_eq!(decoded.mistyped().len(), MAX_MISTYPED);
}
