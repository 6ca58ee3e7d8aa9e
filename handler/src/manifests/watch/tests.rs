use std::io::Write as _;

use super::*;
use crate::manifests::document::Content;

fn manifest(name: &str) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata:\n  name: {name}\nspec:\n  domain:\n    memory: {{guest: 128Mi}}\n    devices: {{}}\n"
    )
}

/// Names of accepted documents by file; a file that cannot be understood shows as "?".
fn names(files: &BTreeMap<String, FileRead>) -> Vec<(String, Vec<String>)> {
    let name = |document: &document::Document| match (&document.content, &document.key) {
        (Content::Accepted(_), Some(key)) => key.name.clone(),
        _ => "?".to_owned(),
    };
    files
        .iter()
        .map(|(file, read)| match read {
            FileRead::Documents(documents) => (file.clone(), documents.iter().map(name).collect()),
            FileRead::Unreadable(_) => (file.clone(), vec!["?".to_owned()]),
        })
        .collect()
}

fn row(file: &str, names: &[&str]) -> (String, Vec<String>) {
    (file.to_owned(), names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn editors_leftovers_are_no_manifests() {
    for name in ["vm.yaml", "vm.yml", "vm.json", "a.b.yaml"] {
        assert!(is_manifest(name), "{name}");
    }
    for name in [
        ".vm.yaml",
        ".vm.yaml.swp",
        "vm.yaml~",
        "#vm.yaml#",
        ".#vm.yaml",
        "4913",
        "vm.yaml.bak",
        "..data",
        "README",
    ] {
        assert!(!is_manifest(name), "{name}");
    }
}

#[tokio::test]
async fn a_file_is_read_when_it_is_closed_and_not_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut watcher = Watcher::open(dir.path()).unwrap();
    assert_eq!(names(&watcher.scan().unwrap()), []);

    let mut file = fs::File::create(dir.path().join("vm.yaml")).unwrap();
    file.write_all(b"apiVersion: kubevirt.io/v1\n").unwrap();
    // Something else happens meanwhile and makes the watcher look.
    fs::write(dir.path().join("other.yaml"), manifest("other")).unwrap();
    watcher.changed().await.unwrap();
    assert_eq!(names(&watcher.scan().unwrap()), [row("other.yaml", &["other"])]);

    file.write_all(&manifest("one").as_bytes()["apiVersion: kubevirt.io/v1\n".len()..]).unwrap();
    drop(file);
    watcher.changed().await.unwrap();
    assert_eq!(names(&watcher.scan().unwrap()), [row("other.yaml", &["other"]), row("vm.yaml", &["one"])]);
}

#[tokio::test]
async fn a_file_being_rewritten_keeps_its_last_content() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vm.yaml");
    fs::write(&path, manifest("one")).unwrap();
    let mut watcher = Watcher::open(dir.path()).unwrap();
    assert_eq!(names(&watcher.scan().unwrap()), [row("vm.yaml", &["one"])]);

    let mut file = fs::File::create(&path).unwrap();
    fs::write(dir.path().join("other.yaml"), manifest("other")).unwrap();
    watcher.changed().await.unwrap();
    assert_eq!(names(&watcher.scan().unwrap()), [row("other.yaml", &["other"]), row("vm.yaml", &["one"])]);

    file.write_all(manifest("two").as_bytes()).unwrap();
    drop(file);
    watcher.changed().await.unwrap();
    assert_eq!(names(&watcher.scan().unwrap()), [row("other.yaml", &["other"]), row("vm.yaml", &["two"])]);
}

#[tokio::test(start_paused = true)]
async fn a_vanished_file_is_believed_after_a_while_and_a_save_by_rename_is_not_a_deletion() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vm.yaml");
    fs::write(&path, manifest("one")).unwrap();
    let mut watcher = Watcher::open(dir.path()).unwrap();
    watcher.scan().unwrap();

    // As vi does it.
    fs::rename(&path, dir.path().join("vm.yaml~")).unwrap();
    watcher.changed().await.unwrap();
    assert_eq!(names(&watcher.scan().unwrap()), [row("vm.yaml", &["one"])]);
    fs::write(&path, manifest("two")).unwrap();
    watcher.changed().await.unwrap();
    assert_eq!(names(&watcher.scan().unwrap()), [row("vm.yaml", &["two"])]);

    fs::remove_file(&path).unwrap();
    watcher.changed().await.unwrap();
    assert_eq!(names(&watcher.scan().unwrap()), [row("vm.yaml", &["two"])]);
    watcher.changed().await.unwrap();
    assert_eq!(names(&watcher.scan().unwrap()), []);
}

#[tokio::test]
async fn a_projected_volume_is_followed_through_its_links() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    for (generation, name) in [("..1", "one"), ("..2", "two")] {
        fs::create_dir(dir.path().join(generation)).unwrap();
        fs::write(dir.path().join(generation).join("vm.yaml"), manifest(name)).unwrap();
    }
    symlink("..1", dir.path().join("..data")).unwrap();
    symlink("..data/vm.yaml", dir.path().join("vm.yaml")).unwrap();
    let mut watcher = Watcher::open(dir.path()).unwrap();
    assert_eq!(names(&watcher.scan().unwrap()), [row("vm.yaml", &["one"])]);

    symlink("..2", dir.path().join("..data_tmp")).unwrap();
    fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
    watcher.changed().await.unwrap();
    assert_eq!(names(&watcher.scan().unwrap()), [row("vm.yaml", &["two"])]);
}

#[tokio::test]
async fn the_end_of_the_directory_is_an_error_not_an_empty_directory() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("manifests");
    assert!(Watcher::open(&dir).is_err());
    fs::create_dir(&dir).unwrap();
    let mut watcher = Watcher::open(&dir).unwrap();
    fs::rename(&dir, parent.path().join("elsewhere")).unwrap();
    assert!(watcher.changed().await.is_err());
    assert!(watcher.scan().is_err());
}

#[test]
fn what_is_no_text_file_is_a_problem_of_that_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("dir.yaml")).unwrap();
    fs::write(dir.path().join("binary.yaml"), [0xff, 0xfe, 0x00]).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    let mut watcher = Watcher::open(dir.path()).unwrap();
    assert_eq!(names(&watcher.scan().unwrap()), [row("binary.yaml", &["?"]), row("dir.yaml", &["?"])]);
}
