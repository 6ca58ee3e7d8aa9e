//! The importer as a process, against a registry whose answers do not end.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use vireo_importer::{Action, Answer, Endpoint, Request, Task, Work};

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
