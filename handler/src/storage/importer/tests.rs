use super::*;

#[test]
fn answers_are_lines() {
    let mut lines = Lines::default();
    assert_eq!(lines.take(b"{\"Pulled\":{\"by"), []);
    let answers = lines.take(b"tes\":5}}\nnot JSON\n{\"Resolved\":\"d\"}\n");
    assert_eq!(answers, [Answer::Pulled { bytes: 5 }, Answer::Resolved("d".to_owned())]);
    lines.take(&vec![b' '; LONGEST_ANSWER + 1]);
    assert!(lines.0.is_empty());
}

/// An importer that a script plays.
fn scripted(directory: &Path, script: &str) -> ImageReader {
    let program = directory.join("importer");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let users: crate::launcher::users::Users = "1900000000-1900999999".parse().unwrap();
    let users = users.importers(crate::state::StateDir::at(directory));
    ImageReader::Process(ImporterSettings { program, users })
}

fn identify(reader: &ImageReader, directory: &Path) -> ImageError {
    let action = ReadAction::Identify {
        layout: vireo_importer::LayoutKind::Directory,
        image: vireo_importer::ImageSelector::Only,
    };
    let source = super::directory(directory).unwrap();
    reader.identify(&action, source, &JobContext::default()).unwrap_err()
}

#[test]
fn the_system_call_that_ended_an_importer_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let line = "virt-importer: the seccomp filter does not allow system call ptrace (101) of thread exe";
    let rejected = scripted(directory.path(), &format!("echo '{line}' >&2; exit 2"));
    let error = identify(&rejected, directory.path()).to_string();
    assert_eq!(error, "virt-importer was ended: its seccomp filter does not allow system call ptrace");
    let ended = scripted(directory.path(), "exit 2");
    assert!(matches!(identify(&ended, directory.path()), ImageError::ImporterEnded(_)));
}

#[test]
fn an_importer_gets_nothing_else_of_the_environment() {
    let directory = tempfile::tempdir().unwrap();
    // Those that a shell sets itself are not counted.
    let reader = scripted(directory.path(), "env | cut -d= -f1 >$(dirname $0)/names; exit 2");
    identify(&reader, directory.path());
    let names = fs::read_to_string(directory.path().join("names")).unwrap();
    let of_shell = ["PWD", "SHLVL", "_", "OLDPWD"];
    let is_known = |name: &&str| KEPT_VARIABLES.contains(name) || of_shell.contains(name);
    assert!(names.lines().all(|name| is_known(&name)), "{names}");
    assert!(names.lines().any(|name| name == "PATH"), "{names}");
}

#[test]
fn a_tree_is_published_but_no_file_that_has_another_name() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("layout");
    fs::create_dir_all(at.join("blobs")).unwrap();
    fs::write(at.join("blobs/one"), "").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    fs::set_permissions(at.join("blobs/one"), fs::Permissions::from_mode(0o600)).unwrap();
    let secret = directory.path().join("secret");
    fs::write(&secret, "").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(&secret, at.join("link")).unwrap();
    publish_tree(&at).unwrap();
    assert_eq!((mode(&at.join("blobs")), mode(&at.join("blobs/one"))), (0o755, 0o644));
    assert_eq!(mode(&secret), 0o600);
    fs::hard_link(at.join("blobs/one"), directory.path().join("other")).unwrap();
    assert!(publish_tree(&at).is_err());
}
