//! The directory `deploy` as a base for `kubectl apply -k`, rendered without a cluster.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::installation::OPERATOR;

pub(super) const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy");
/// More than any manifest has.
const MANIFEST: usize = 4 << 20;

fn objects(text: &str) -> Vec<Value> {
    let mut objects = vireo_manifest::documents(text, MANIFEST).unwrap_or_else(|error| panic!("{error}"));
    let name = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
    objects.sort_by_key(name);
    objects
}

fn rendered(directory: &Path) -> Vec<Value> {
    let output = Command::new("kubectl").arg("kustomize").arg(directory).output().expect("kubectl starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    objects(&String::from_utf8_lossy(&output.stdout))
}

#[test]
fn the_directory_is_the_manifest() {
    assert_eq!(rendered(Path::new(DIRECTORY)), objects(OPERATOR));
}

#[test]
fn an_overlay_replaces_the_operators_image() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    // Bases are below the overlay or beside it.
    let (base, overlay) = (directory.path().join("deploy"), directory.path().join("overlay"));
    std::fs::create_dir_all(&base).and_then(|()| std::fs::create_dir(&overlay)).expect("directories");
    for file in ["kustomization.yaml", "operator.yaml"] {
        std::fs::copy(Path::new(DIRECTORY).join(file), base.join(file)).expect("it is copied");
    }
    let overlaid = "resources: [../deploy]
images: [{name: localhost/vireo/vireo, newName: registry.example/a/vireo, newTag: '1'}]
";
    std::fs::write(overlay.join("kustomization.yaml"), overlaid).expect("it is written");
    let mut expected = objects(OPERATOR);
    for object in &mut expected {
        if let Some(image) = object.pointer_mut("/spec/template/spec/containers/0/image") {
            assert!(
                image.as_str().is_some_and(|image| image.starts_with("localhost/vireo/vireo:")),
                "{image}"
            );
            *image = "registry.example/a/vireo:1".into();
        }
    }
    assert_eq!(rendered(&overlay), expected);
}
