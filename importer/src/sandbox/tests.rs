//! What a process that was taken over by an image or a registry can do.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Output;

use rustix::process::getpid;

use super::*;

/// Names what the child of a test does.
const ACT: &str = "VIREO_TEST_IMPORTER_ACT";
/// A process of the node.
const TARGET: &str = "VIREO_TEST_IMPORTER_TARGET";
/// A port of the node.
const PORT: &str = "VIREO_TEST_IMPORTER_PORT";
/// A user that has no other process.
const USER: u32 = 1_900_999_998;
const TEST: &str = "sandbox::tests::what_is_taken_over_reaches_nothing_of_the_node";

fn profile(act: &str) -> (Profile, Seccomp) {
    let (profile, rest) = act.split_once(": ").unwrap();
    let seccomp = if rest.ends_with("without a filter") { Seccomp::Off } else { Seccomp::Enforce };
    (if profile == "pull" { Profile::Pull } else { Profile::Read }, seccomp)
}

/// Runs an act in the sandbox, by way of the test.
fn attempt(act: &str, port: u16) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", TEST, "--nocapture", "--test-threads=1"]);
    command.env(TARGET, std::process::id().to_string()).env(PORT, port.to_string());
    command.env(ACT, act).stdin(tempfile::tempfile().unwrap()).output().unwrap()
}

fn arguments(_: &'static str) -> Vec<String> {
    ["--exact", TEST, "--nocapture", "--test-threads=1"].map(str::to_owned).to_vec()
}

/// As the first process, and as the second one.
fn child(act: &str) {
    let (profile, seccomp) = profile(act);
    let missing = |what: &str| println!("missing: {what}");
    if getpid().as_raw_nonzero().get() != 1 {
        let ended = run_confined(profile, None, arguments, missing).unwrap();
        println!("ended: {ended}");
        return;
    }
    if !act.contains("without a root") {
        OwnRoot::enter(profile, false, None).unwrap().expect("a root directory");
    }
    give_up(Some(USER), missing).unwrap();
    let mut paths = Paths::default();
    if profile == Profile::Pull {
        paths.directories.push(("/etc".into(), Rights::Read));
    }
    if !act.contains("without rules") {
        restrict_files(&paths, missing).unwrap();
    }
    restrict_calls(profile, seccomp).unwrap();
    println!("{:?}", attack(act.split_once(": ").unwrap().1));
}

fn attack(act: &str) -> io::Result<()> {
    let number = |name: &str| std::env::var(name).unwrap().parse::<i32>().unwrap();
    match act.split(" without").next().unwrap() {
        "read shadow" => File::open("/etc/shadow").map(drop),
        "read passwd" => File::open("/etc/passwd").map(drop),
        "list" => {
            let names = std::fs::read_dir("/")?.map(|entry| entry.unwrap().file_name());
            println!("{:?}", names.collect::<std::collections::BTreeSet<_>>());
            Ok(())
        }
        "create" => File::create("/etc/new").map(drop),
        "connect" => TcpStream::connect(("127.0.0.1", u16::try_from(number(PORT)).unwrap())).map(drop),
        "connect to a socket" => UnixStream::connect("/run/x").map(drop),
        "execute" => Command::new("/bin/true").status().map(drop),
        "trace" => {
            // SAFETY: there is no such request.
            #[expect(unsafe_code, reason = "nothing else makes the call")]
            let answer = unsafe { libc::syscall(libc::SYS_ptrace, 0x7fff, number(TARGET), 0, 0) };
            if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        }
        "signal" => {
            let pid = rustix::process::Pid::from_raw(number(TARGET)).unwrap();
            Ok(rustix::process::test_kill_process(pid)?)
        }
        other => panic!("{other}"),
    }
}

/// Each attempt of a process, and what comes of it: the call that ends it, or the error that it gets.
#[test]
fn what_is_taken_over_reaches_nothing_of_the_node() {
    if let Ok(act) = std::env::var(ACT) {
        return child(&act);
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may make namespaces");
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // Signals are blocked where a program is started: no handler names the call.
    let table = [
        ("read: read shadow", "kind: NotFound"),
        ("read: read passwd", "kind: NotFound"),
        ("read: read passwd without a root without a filter", "kind: PermissionDenied"),
        ("read: list without rules without a filter", "{\"proc\"}"),
        ("read: create", "does not allow system call openat"),
        ("read: connect", "does not allow system call socket"),
        ("read: connect without a filter", "kind: NetworkUnreachable"),
        ("read: execute", "ended: signal: 31 (SIGSYS)"),
        ("read: execute without a filter", "kind: NotFound"),
        ("read: trace", "does not allow system call ptrace"),
        ("read: signal", "does not allow system call kill"),
        ("read: signal without a filter", "No such process"),
        ("pull: read shadow", "kind: NotFound"),
        ("pull: read passwd", "kind: NotFound"),
        ("pull: create", "kind: ReadOnlyFilesystem"),
        ("pull: list without rules without a filter", "{\"etc\"}"),
        ("pull: connect", "Ok(())"),
        ("pull: connect to a socket", "code: 97"),
        ("pull: execute", "ended: signal: 31 (SIGSYS)"),
        ("pull: trace", "does not allow system call ptrace"),
        ("pull: signal", "does not allow system call kill"),
        ("pull: signal without a filter", "No such process"),
    ];
    for (act, expected) in table {
        let output = attempt(act, port);
        let (log, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!log.contains("missing: a "), "{act}: {log}{errors}");
        if log.contains("missing: rules of landlock") && act.contains("without a root") {
            continue;
        }
        assert!(format!("{log}{errors}").contains(expected), "{act}: {log}{errors}");
        if expected.starts_with("does not allow") {
            assert!(log.contains("ended: signal: 31 (SIGSYS)"), "{act}: {log}{errors}");
        }
    }
}
