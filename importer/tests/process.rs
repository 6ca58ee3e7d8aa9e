//! The importer as a process: its limits, and the user that it becomes.

use std::io::{BufRead as _, BufReader, Seek as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use vireo_importer::{Action, Answer, Endpoint, LayoutKind, ReadAction, ReadRequest, Request, Task, Work};

/// A user that has no other process.
const USER: u32 = 1_900_999_999;

/// Answers one request; a manifest never ends.
fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    if !request.contains("/manifests/") {
        return stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}");
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")?;
    let spaces = vec![b' '; 1 << 20];
    loop {
        stream.write_all(&spaces)?;
    }
}

#[test]
fn a_manifest_that_does_not_end_meets_the_limit_of_memory() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = format!("localhost:{}", listener.local_addr().unwrap().port());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    let endpoint = Endpoint {
        host: host.clone(),
        is_plain: true,
        skip_verify: false,
        authorities: None,
        credentials: Vec::new(),
    };
    let request =
        Request { image: format!("{host}/a:1"), endpoints: vec![endpoint], action: Action::Resolve };
    let task = Task { user: Some(USER), work: Work::Registry(request) };
    let mut importer = Command::new(env!("CARGO_BIN_EXE_virt-importer"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    importer.stdin.take().unwrap().write_all(&serde_json::to_vec(&task).unwrap()).unwrap();
    let ended = importer.wait_with_output().unwrap();
    assert!(!ended.status.success());
    let answers = String::from_utf8_lossy(&ended.stdout).into_owned();
    let is_answer = |line: &str| matches!(serde_json::from_str(line), Ok(Answer::Resolved(_)));
    assert!(!answers.lines().any(is_answer), "{answers}");
}

#[test]
fn what_is_no_request_is_refused() {
    let importer = Command::new(env!("CARGO_BIN_EXE_virt-importer")).stdin(Stdio::null()).output().unwrap();
    assert_eq!(importer.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&importer.stderr).starts_with("virt-importer: "));
}

/// Root reads everything: that it is denied shows that the image is read by the user of the task.
#[test]
fn images_are_read_without_the_privileges_of_root() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may become another user");
        return;
    }
    let layout = tempfile::tempdir().unwrap();
    let index = layout.path().join("index.json");
    std::fs::write(&index, r#"{"schemaVersion": 2, "manifests": []}"#).unwrap();
    let identify = |mode: u32| {
        std::fs::set_permissions(&index, std::fs::Permissions::from_mode(mode)).unwrap();
        let directory = std::fs::File::open(layout.path()).unwrap();
        // The importer inherits it.
        rustix::io::fcntl_setfd(&directory, rustix::io::FdFlags::empty()).unwrap();
        let request = ReadRequest {
            action: ReadAction::Identify { layout: LayoutKind::Directory, tag: None },
            source: directory.as_raw_fd(),
            output: None,
            scratch: None,
            most_bytes: 0,
        };
        let task = Task { user: Some(USER), work: Work::Read(request) };
        let mut input = tempfile::tempfile().unwrap();
        input.write_all(&serde_json::to_vec(&task).unwrap()).unwrap();
        input.rewind().unwrap();
        let importer = Command::new(env!("CARGO_BIN_EXE_virt-importer")).stdin(input).output().unwrap();
        String::from_utf8_lossy(&importer.stdout).into_owned()
    };
    let readable = identify(0o644);
    assert!(readable.contains("no image for linux/amd64"), "{readable}");
    let denied = identify(0o600);
    assert!(denied.contains("Permission denied"), "{denied}");
}
