//! The importer as a process: its limits, the user that it becomes, and its work in the sandbox.

#![expect(clippy::unwrap_used, reason = "a test fails by its panic")]

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::json;
use sha2::{Digest as _, Sha256};
use vireo_importer::{
    Action, Answer, ConvertRequest, Endpoint, FailureKind, ImageName, ImageSelector, LayoutKind, NamedImage,
    Qcow2Image, ReadAction, ReadRequest, Request, Task, WantedFile, Work,
};

/// A user that has no other process.
const USER: u32 = 1_900_999_999;
/// The bytes of a disk.
const SIZE: u64 = 4 << 20;

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
    let ended = run(&task, &[]);
    assert!(!ended.status.success());
    assert!(!answers(&ended).iter().any(|answer| matches!(answer, Answer::Resolved(_))), "{ended:?}");
    assert!(!String::from_utf8_lossy(&ended.stderr).contains("does not allow"), "{ended:?}");
}

/// Runs an importer that inherits these files.
fn run(task: &Task, files: &[&File]) -> Output {
    for file in files {
        rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty()).unwrap();
    }
    let mut input = tempfile::tempfile().unwrap();
    input.write_all(&serde_json::to_vec(task).unwrap()).unwrap();
    input.rewind().unwrap();
    Command::new(env!("CARGO_BIN_EXE_virt-importer")).stdin(input).output().unwrap()
}

fn answers(output: &Output) -> Vec<Answer> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The last answer; nothing of the isolation is missing for root.
fn last_answer(output: &Output) -> Answer {
    let mut answers = answers(output);
    if rustix::process::geteuid().is_root() {
        let landlock = Answer::Unconfined("rules of landlock".to_owned());
        let is_missing = |answer: &Answer| matches!(answer, Answer::Unconfined(_)) && *answer != landlock;
        assert!(!answers.iter().any(is_missing), "{output:?}");
    }
    answers.pop().unwrap_or_else(|| panic!("{output:?}"))
}

/// An empty file of the user of the task.
fn file() -> File {
    owned(tempfile::tempfile().unwrap())
}

fn owned(file: File) -> File {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::fchown(&file, Some(USER), Some(USER)).unwrap();
    }
    file
}

fn content(mut file: File) -> Vec<u8> {
    let mut content = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut content).unwrap();
    content
}

/// Imports an image as the node agent does: reads it, and converts it then, if it is to be converted.
fn import(action: ReadAction, source: File) -> (Answer, Vec<u8>) {
    let (output, scratch) = (file(), file());
    let request = ReadRequest {
        action,
        source: source.as_raw_fd(),
        output: Some(output.as_raw_fd()),
        scratch: Some(scratch.as_raw_fd()),
        most_bytes: SIZE,
    };
    let user = rustix::process::geteuid().is_root().then_some(USER);
    let mut answer =
        last_answer(&run(&Task { user, work: Work::Read(request) }, &[&source, &output, &scratch]));
    if let Answer::Convert { image, virtual_size } = answer {
        let image = if image == Qcow2Image::Source { source } else { scratch };
        let (from, to) = (image.as_raw_fd(), output.as_raw_fd());
        let request = ConvertRequest { source: from, output: to, virtual_size, most_bytes: SIZE };
        answer = last_answer(&run(&Task { user, work: Work::Convert(request) }, &[&image, &output]));
    }
    (answer, content(output))
}

/// What a disk has.
fn disk() -> Vec<u8> {
    let mut disk = vec![0; usize::try_from(SIZE).unwrap()];
    disk[100_000..200_000].fill(7);
    disk
}

fn qcow2(disk: &[u8]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let (raw, qcow2) = (directory.path().join("raw"), directory.path().join("qcow2"));
    std::fs::write(&raw, disk).unwrap();
    let arguments = ["convert", "-f", "raw", "-O", "qcow2"];
    let made = Command::new("qemu-img").args(arguments).arg(raw).arg(&qcow2).status().unwrap();
    assert!(made.success());
    std::fs::read(qcow2).unwrap()
}

fn gz(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn xz(content: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn uploads_of_each_kind_are_read_in_the_sandbox() {
    let disk = disk();
    for (kind, upload) in [
        ("gz", gz(&disk)),
        ("xz", xz(&disk)),
        ("qcow2", qcow2(&disk)),
        ("qcow2 gz", gz(&qcow2(&disk))),
        ("qcow2 xz", xz(&qcow2(&disk))),
    ] {
        let mut source = file();
        source.write_all(&upload).unwrap();
        let (answer, written) = import(ReadAction::Upload { size: SIZE }, source);
        assert_eq!(answer, Answer::Unpacked, "{kind}");
        assert!(written == disk, "{kind}");
    }
    let mut source = file();
    source.write_all(&disk).unwrap();
    assert_eq!(import(ReadAction::Upload { size: SIZE }, source).0, Answer::AsIs);
    let (answer, _) = import(ReadAction::Upload { size: SIZE }, {
        let mut source = file();
        source.write_all(&gz(&disk)[..1000]).unwrap();
        source
    });
    assert!(matches!(answer, Answer::Failed(failure) if failure.kind == FailureKind::Damaged));
}

/// An image layout with one layer.
fn layout(directory: &Path, compression: &str, disk: &[u8]) -> String {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(disk.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, "disk/disk.img", disk).unwrap();
    let tar = tar.into_inner().unwrap();
    let (suffix, layer) = match compression {
        "gzip" => ("+gzip", gz(&tar)),
        "zstd" => ("+zstd", zstd::encode_all(tar.as_slice(), 1).unwrap()),
        _ => ("", tar),
    };
    let blobs = directory.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    let put = |content: &[u8], kind: &str| {
        let hex: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(blobs.join(&hex), content).unwrap();
        json!({"mediaType": kind, "digest": format!("sha256:{hex}"), "size": content.len()})
    };
    let layer = put(&layer, &format!("application/vnd.oci.image.layer.v1.tar{suffix}"));
    let config = put(b"{}", "application/vnd.oci.image.config.v1+json");
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer]}).to_string();
    let mut entry = put(manifest.as_bytes(), "application/vnd.oci.image.manifest.v1+json");
    entry["annotations"] = json!({"io.containerd.image.name": "localhost/vireo/guest:1"});
    let index = json!({"schemaVersion": 2, "manifests": [entry]}).to_string();
    std::fs::write(directory.join("index.json"), index).unwrap();
    entry["digest"].as_str().unwrap().to_owned()
}

#[test]
fn container_disks_of_each_kind_are_read_in_the_sandbox() {
    let raw = disk();
    for (compression, disk) in
        [("", raw.clone()), ("gzip", qcow2(&raw)), ("zstd", qcow2(&raw)), ("zstd", raw.clone())]
    {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let digest = layout(directory.path(), compression, &disk);
        let unpack = |layout| {
            let (digest, file) = (digest.clone(), WantedFile::disk(None));
            ReadAction::Unpack { layout, image: ImageSelector::Only, digest, file }
        };
        let opened = File::open(directory.path()).unwrap();
        let name = ImageName::Whole { repository: "vireo/guest".to_owned(), tag: "1".to_owned() };
        let named = Answer::Named(vec![NamedImage { name, digest: digest.clone() }]);
        let list = |layout| ReadAction::List { layout };
        assert_eq!(import(list(LayoutKind::Directory), opened.try_clone().unwrap()).0, named);
        let (answer, written) = import(unpack(LayoutKind::Directory), opened);
        assert_eq!(answer, Answer::Unpacked, "{compression}");
        assert!(written == raw, "{compression}");

        let mut archive = tar::Builder::new(file());
        archive.append_dir_all("", directory.path()).unwrap();
        let archive = archive.into_inner().unwrap();
        assert_eq!(import(list(LayoutKind::Archive), archive.try_clone().unwrap()).0, named);
        let (answer, written) = import(unpack(LayoutKind::Archive), archive);
        assert_eq!(answer, Answer::Unpacked, "{compression}");
        assert!(written == raw, "{compression}");
    }
    // A file of an image that is mounted.
    let mut source = file();
    source.write_all(&qcow2(&raw)).unwrap();
    let (answer, written) = import(ReadAction::Copy { file: WantedFile::disk(None) }, source);
    assert_eq!(answer, Answer::Unpacked);
    assert!(written == raw);
}

/// A registry with the image of a layout, which it serves by the names of its blobs.
fn serve(layout: &Path) -> String {
    let (listener, blobs) = (TcpListener::bind("127.0.0.1:0").unwrap(), layout.join("blobs/sha256"));
    let host = format!("localhost:{}", listener.local_addr().unwrap().port());
    let answer = move |mut stream: TcpStream| -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let request = lines.next().transpose()?.unwrap_or_default();
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        let name = request.split(' ').nth(1).and_then(|path| path.split("sha256:").nth(1));
        let body = name.map_or(Ok(b"{}".to_vec()), |name| std::fs::read(blobs.join(name)))?;
        let length = body.len();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n");
        stream.write_all(head.as_bytes())?;
        stream.write_all(b"content-type: application/vnd.oci.image.manifest.v1+json\r\n\r\n")?;
        stream.write_all(&body)
    };
    std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| drop(answer(stream))));
    host
}

#[test]
fn an_image_of_a_registry_is_pulled_in_the_sandbox() {
    let (layout, pulled) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let digest = self::layout(layout.path(), "gzip", &disk());
    let host = serve(layout.path());
    let endpoint = Endpoint {
        host: host.clone(),
        is_plain: true,
        skip_verify: false,
        authorities: None,
        credentials: Vec::new(),
    };
    let directory = owned(File::open(pulled.path()).unwrap());
    let action = Action::Pull { digest: digest.clone(), layout: directory.as_raw_fd(), most_bytes: SIZE };
    let request = Request { image: format!("{host}/a:1"), endpoints: vec![endpoint], action };
    let user = rustix::process::geteuid().is_root().then_some(USER);
    let ended = run(&Task { user, work: Work::Registry(request) }, &[&directory]);
    assert!(matches!(last_answer(&ended), Answer::Pulled { .. }), "{ended:?}");
    let blob = format!("blobs/sha256/{}", digest.trim_start_matches("sha256:"));
    assert_eq!(
        std::fs::read(pulled.path().join(&blob)).unwrap(),
        std::fs::read(layout.path().join(&blob)).unwrap()
    );
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
        let request = ReadRequest {
            action: ReadAction::Identify { layout: LayoutKind::Directory, image: ImageSelector::Only },
            source: directory.as_raw_fd(),
            output: None,
            scratch: None,
            most_bytes: 0,
        };
        let importer = run(&Task { user: Some(USER), work: Work::Read(request) }, &[&directory]);
        String::from_utf8_lossy(&importer.stdout).into_owned()
    };
    let readable = identify(0o644);
    assert!(readable.contains("no image for linux/amd64"), "{readable}");
    let denied = identify(0o600);
    assert!(denied.contains("Permission denied"), "{denied}");
}
