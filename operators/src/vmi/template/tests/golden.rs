//! Whole launcher Pods: each file has an instance, what its cluster has, and the Pod.

use std::fmt::Write as _;
use std::path::Path;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use vireo_api::decode;

use super::*;

/// Makes the test write the Pods.
const WRITE: &str = "VIREO_WRITE_PAGES";
/// What is after this line is made by the code.
const POD: &str = "--- # its launcher Pod\n";

/// Files of the directory `golden`, and what is particular about their clusters.
const CASES: [(&str, StartedBy, ImageDelivery); 9] = [
    ("container-disk", StartedBy::Kubelet, ImageDelivery::Containers),
    ("placement", StartedBy::Kubelet, ImageDelivery::Containers),
    ("devices", StartedBy::Kubelet, ImageDelivery::Containers),
    ("empty-disk", StartedBy::Kubelet, ImageDelivery::Containers),
    ("limits", StartedBy::Kubelet, ImageDelivery::Containers),
    ("dedicated", StartedBy::Kubelet, ImageDelivery::Containers),
    ("configured", StartedBy::Kubelet, ImageDelivery::Containers),
    ("image-volumes", StartedBy::Kubelet, ImageDelivery::Volumes),
    ("single-host", StartedBy::NodeAgent, ImageDelivery::Containers),
];

/// The Pod of the objects of a file.
fn pod(objects: &str, started_by: StartedBy, images: ImageDelivery) -> Value {
    let (mut vmi, mut config, mut claims) = (None, ClusterConfig::default(), Claims::new());
    for object in decode::documents(objects).unwrap() {
        match object["kind"].as_str().unwrap() {
            "VirtualMachineInstance" => {
                let read: VirtualMachineInstance = serde_json::from_value(object).unwrap();
                vireo_api::spec::Vm::try_from(&read).unwrap();
                vmi = Some(read);
            }
            "KubeVirt" => {
                let configuration = object["spec"]["configuration"].clone();
                let (read, problems) = ClusterConfig::read(&serde_json::from_value(configuration).unwrap());
                assert_eq!(problems, []);
                config = read;
            }
            _ => {
                let claim: PersistentVolumeClaim = serde_json::from_value(object).unwrap();
                claims.insert(claim.metadata.name.clone().unwrap(), (&claim).into());
            }
        }
    }
    let launcher = Launcher::new("example.com/virt-launcher:1", started_by);
    let inputs = PodInputs { node: None, claims: &claims, images, limits: NamespaceLimits::default() };
    json!(launcher_pod(&vmi.unwrap(), &launcher, &config, inputs).unwrap())
}

/// A value as YAML, without references, below lines with this indent.
fn write(value: &Value, indent: usize, text: &mut String) {
    let spaces = " ".repeat(indent);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let _ = write!(text, "{spaces}{}:", scalar(&json!(name)));
                write_after_key(value, indent, text);
            }
        }
        Value::Array(elements) if !elements.is_empty() => {
            for element in elements {
                let mut lines = String::new();
                write(element, indent + 2, &mut lines);
                let _ = write!(text, "{spaces}- {}", lines.get(indent + 2..).unwrap_or_default());
            }
        }
        other => {
            let _ = writeln!(text, "{spaces}{}", scalar(other));
        }
    }
}

fn write_after_key(value: &Value, indent: usize, text: &mut String) {
    let is_nested = match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(elements) => !elements.is_empty(),
        _ => false,
    };
    if is_nested {
        text.push('\n');
        write(value, if value.is_array() { indent } else { indent + 2 }, text);
    } else {
        let _ = writeln!(text, " {}", scalar(value));
    }
}

/// Text is quoted where it would not be text.
fn scalar(value: &Value) -> String {
    let Some(text) = value.as_str() else { return value.to_string() };
    let is_plain = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && text.chars().all(|char| char.is_ascii_alphanumeric() || "./-_".contains(char))
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&&*text.to_lowercase());
    if is_plain { text.to_owned() } else { value.to_string() }
}

#[test]
fn pods_are_those_of_the_files() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/vmi/template/tests/golden");
    let mut different = Vec::new();
    for (name, started_by, images) in CASES {
        let path = directory.join(name).with_extension("yaml");
        let written = std::fs::read_to_string(&path).unwrap();
        let objects = written.split_once(POD).map_or(&*written, |(objects, _)| objects);
        let mut expected = format!("{objects}{POD}");
        let pod = pod(objects, started_by, images);
        write(&pod, 0, &mut expected);
        assert_eq!(
            decode::documents(&expected).unwrap().last(),
            Some(&pod),
            "{name}: the YAML is of the Pod"
        );
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&path, &expected).unwrap();
        } else if written != expected {
            let lines = written.lines().zip(expected.lines()).find(|(old, new)| old != new);
            different.push(format!("{name}: {lines:?}"));
        }
    }
    let files = std::fs::read_dir(directory).unwrap().count();
    assert_eq!(files, CASES.len(), "each file is a case");
    assert!(different.is_empty(), "{WRITE}=1 makes this test write the Pods: {}", different.join("; "));
}
