use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use vireo_importer::FailureKind;

use super::super::tests::{Built, TAR, tar_of};
use super::super::{ImageReader, Source};
use super::*;
use crate::storage::AllowedPaths;

const NAME: &str = "localhost/vireo/guest:1";
const CONTAINERD: &str = "io.containerd.image.name";
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// A directory of `--images` with layouts, and a store beside it.
struct Directory {
    built: Built,
    images: Images,
}

impl Directory {
    fn new() -> Self {
        let built = Built::new();
        let directory = built.path().join("here");
        fs::create_dir(&directory).unwrap();
        let allowed = AllowedPaths { named_images: vec![directory], ..AllowedPaths::any() };
        let store = built.path().join("store");
        Self { images: Images::new(store, allowed, None, ImageReader::InProcess), built }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.built.path().join("here").join(name)
    }

    /// A layout of an image whose disk and kernel have this byte. Returns its digest.
    fn layout(&self, at: &str, annotations: &Value, byte: u8) -> String {
        let mut built = Built::new();
        built.image("1", &[(TAR, tar_of(&[("disk/a.img", &[byte; 512]), ("boot/k", &[byte; 512])]))]);
        let index = built.path().join("layout/index.json");
        let mut content: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
        let digest = content["manifests"][0]["digest"].as_str().unwrap().to_owned();
        content["manifests"][0]["annotations"] = annotations.clone();
        fs::write(&index, content.to_string()).unwrap();
        fs::rename(built.path().join("layout"), self.path(at)).unwrap();
        digest
    }

    /// The same as an archive.
    fn archive(&self, at: &str, annotations: &Value, byte: u8) -> String {
        let digest = self.layout(".layout", annotations, byte);
        let mut tar = tar::Builder::new(fs::File::create(self.path(at)).unwrap());
        tar.append_dir_all(".", self.path(".layout")).unwrap();
        tar.finish().unwrap();
        fs::remove_dir_all(self.path(".layout")).unwrap();
        digest
    }

    fn index(&self, at: &str, content: &[u8]) {
        fs::create_dir_all(self.path(at)).unwrap();
        fs::write(self.path(at).join("index.json"), content).unwrap();
    }

    /// The byte of the disk that a name finds.
    fn found(&self, name: &str) -> Result<u8, ImageError> {
        let image = name.parse().unwrap();
        let [disk, kernel] = [Source::container_disk(&image, None), Source::boot_file(&image, "/boot/k")]
            .map(|source| self.images.import(&source, &JobContext::default()));
        let content = [disk?, kernel?].map(|at| fs::read(at).unwrap());
        assert_eq!(content[0], content[1]);
        Ok(content[0][0])
    }

    fn error(&self, name: &str) -> String {
        let error = self.found(name).unwrap_err();
        assert_eq!(error.reason(), crate::storage::ERR_IMAGE_PULL, "{error}");
        error.to_string()
    }
}

#[test]
fn images_are_found_by_name_tag_and_digest() {
    let directory = Directory::new();
    directory.layout("disk-oci", &json!({CONTAINERD: NAME, REF_NAME: "1"}), 1);
    let digest = directory.archive("saved.tar", &json!({REF_NAME: "localhost/vireo/guest:2"}), 2);
    directory.layout("copied", &json!({REF_NAME: "short:1"}), 3);
    directory.layout("debian", &json!({REF_NAME: "12"}), 4);
    directory.archive("fedora.oci.tar", &json!({REF_NAME: "latest"}), 5);
    directory.layout("foreign", &json!({CONTAINERD: "docker.io/library/foreign:1", REF_NAME: "1"}), 6);
    directory.layout(".partial", &json!({CONTAINERD: "localhost/partial:1"}), 7);
    let at_digest = format!("localhost/vireo/guest@{digest}");
    for (name, byte) in [
        (NAME, Some(1)),
        ("localhost/vireo/guest:2", Some(2)),
        (&at_digest, Some(2)),
        // A digest precedes a tag.
        (&format!("localhost/vireo/guest:1@{digest}"), Some(2)),
        ("localhost/short:1", Some(3)),
        ("localhost/debian:12", Some(4)),
        ("localhost/fedora", Some(5)),
        ("localhost/fedora:latest", Some(5)),
        ("localhost/vireo/guest", None),
        ("localhost/guest:1", None),
        ("localhost/disk-oci:1", None),
        ("localhost/foreign:1", None),
        ("localhost/partial:1", None),
        (&format!("localhost/debian@{digest}"), None),
    ] {
        assert_eq!(directory.found(name).ok(), byte, "{name}");
    }
    let invalid = directory.found("localhost/A:1").unwrap_err();
    assert_eq!(invalid.reason(), "InvalidImageName", "{invalid}");
    assert!(matches!(invalid, ImageError::Import(failure) if failure.kind == FailureKind::Reference));
}

#[test]
fn what_is_not_found_is_explained() {
    let directory = Directory::new();
    let here = directory.path("").display().to_string();
    let here = here.trim_end_matches('/');
    let message = directory.error(NAME);
    let expected =
        format!("no OCI layout or archive in {here} (--images) has an image of this name: put one there");
    assert!(message.starts_with(&expected), "{message}");

    let allowed = AllowedPaths::any();
    let images = Images::new(directory.built.path().join("s"), allowed, None, ImageReader::InProcess);
    let none = images.find_named(NAME, &JobContext::default()).unwrap_err();
    assert!(none.to_string().contains("start vireo with --images DIR"), "{none}");

    let allowed = AllowedPaths { named_images: vec![directory.path("absent")], ..AllowedPaths::any() };
    let images = Images::new(directory.built.path().join("s"), allowed, None, ImageReader::InProcess);
    let absent = images.find_named(NAME, &JobContext::default()).unwrap_err().to_string();
    assert!(absent.contains("absent cannot be read: No such file"), "{absent}");
}

#[test]
fn one_name_of_two_images_is_ambiguous_and_of_one_image_is_not() {
    let directory = Directory::new();
    let names = json!({CONTAINERD: NAME});
    let digest = directory.layout("a", &names, 1);
    directory.archive("b.tar", &names, 1);
    assert_eq!(directory.found(NAME).unwrap(), 1, "both have the same image");
    directory.layout("c", &names, 2);
    let message = directory.error(NAME);
    let (first, second) = (directory.path("a"), directory.path("c"));
    let expected = format!("{} and {} have different images of this name", first.display(), second.display());
    assert!(message.starts_with(&expected), "{message}");
    assert_eq!(directory.found(&format!("localhost/vireo/guest@{digest}")).unwrap(), 1);
}

#[test]
fn hostile_layouts_do_not_hide_others() {
    let directory = Directory::new();
    directory.layout("good", &json!({CONTAINERD: NAME}), 1);
    let wanted = "localhost/vireo/other:1";
    let other = json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "size": 1,
        "digest": format!("sha256:{}", "0".repeat(64)), "annotations": {CONTAINERD: wanted}});
    let many = json!({"schemaVersion": 2, "manifests": vec![other.clone(); 101]}).to_string();
    let text = json!({"schemaVersion": 2, "manifests": [other]}).to_string();
    for (hostile, what) in [
        (" ".repeat(5 << 20) + &text, "cannot read index.json of the image: file too large"),
        ("[".repeat(1 << 20), "index.json of the image is not valid"),
        (format!("{{\"manifests\": {}", "{\"a\":".repeat(100_000)), "index.json of the image is not valid"),
        (many, "the layout names more than 100 images"),
        ("root:s3cr3t:1".to_owned(), "index.json of the image is not valid"),
    ] {
        directory.index("evil", hostile.as_bytes());
        assert_eq!(directory.found(NAME).unwrap(), 1, "{what}");
        let message = directory.error(wanted);
        let evil = directory.path("evil");
        assert!(message.contains(&format!("({} cannot be read: {what}", evil.display())), "{message}");
        assert!(!message.contains("s3cr3t"), "{message}");
        fs::remove_dir_all(evil).unwrap();
    }
    // An archive that has no layout.
    fs::write(directory.path("evil.tar"), "root:s3cr3t:1".repeat(100)).unwrap();
    let message = directory.error(wanted);
    assert!(message.contains("evil.tar cannot be read") && !message.contains("s3cr3t"), "{message}");
    assert_eq!(directory.found(NAME).unwrap(), 1);
    fs::remove_file(directory.path("evil.tar")).unwrap();
    // What is neither.
    fs::write(directory.path("readme"), "text").unwrap();
    fs::create_dir(directory.path("empty")).unwrap();
    assert!(!directory.error(wanted).contains("cannot be read"));
}

#[test]
fn no_link_is_followed() {
    let directory = Directory::new();
    let names = json!({CONTAINERD: NAME});
    directory.layout("layout", &names, 1);
    directory.archive("archive.tar", &names, 1);
    let outside = |name: &str| directory.built.path().join(format!("outside-{name}"));
    for name in ["layout", "archive.tar"] {
        fs::rename(directory.path(name), outside(name)).unwrap();
    }
    for name in ["layout", "archive.tar"] {
        symlink(outside(name), directory.path(name)).unwrap();
        let message = directory.error(NAME);
        assert!(message.contains("a symbolic link is on its path"), "{message}");
        fs::remove_file(directory.path(name)).unwrap();
    }
    fs::create_dir(directory.path("layout")).unwrap();
    symlink(outside("layout").join("index.json"), directory.path("layout/index.json")).unwrap();
    let message = directory.error(NAME);
    assert!(message.contains("a symbolic link is on its path"), "{message}");
}

#[test]
fn a_layout_that_changes_is_read_again() {
    let directory = Directory::new();
    let read = |at: &str| {
        let directory_of = node_file::directory(&directory.path("")).unwrap();
        let candidate = Candidate::open(directory_of, directory.path(at), OsStr::new(at)).unwrap().unwrap();
        (directory.images.names_of(&candidate, &JobContext::default()).unwrap(), candidate.stamp)
    };
    directory.layout("a", &json!({CONTAINERD: NAME}), 1);
    let (names, stamp) = read("a");
    assert!(directory.images.0.names.get(&directory.path("a"), stamp).is_none(), "it changed just now");
    directory.images.0.names.put(&directory.path("a"), stamp, &names);
    assert!(Arc::ptr_eq(&read("a").0, &names), "it is not read again");

    let index = directory.path("a/index.json");
    let text = fs::read_to_string(&index).unwrap().replace("guest:1", "guest:2");
    fs::remove_file(&index).unwrap();
    fs::write(&index, text).unwrap();
    assert_eq!(directory.found("localhost/vireo/guest:2").unwrap(), 1);
    assert!(directory.found(NAME).is_err());

    fs::remove_dir_all(directory.path("a")).unwrap();
    directory.layout("b", &json!({CONTAINERD: NAME}), 1);
    let (names, stamp) = read("b");
    directory.images.0.names.put(&directory.path("b"), stamp, &names);
    assert_eq!(directory.images.0.names.0.lock().unwrap().len(), 1, "what is gone is forgotten");
}
