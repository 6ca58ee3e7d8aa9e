use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use vireo_privileges::seccomp::table::{Allowed, Failing};

use super::*;

/// Names what the child of a test does.
const ACT: &str = "VIREO_TEST_SECCOMP_ACT";

/// Those of the monitor, each with what the one before may call.
const KINDS: [Thread; 3] = [Thread::Device, Thread::Vcpu, Thread::Other];
const ALL: [Thread; 4] = [Thread::Device, Thread::Vcpu, Thread::Other, Thread::Driver];

fn allowed(thread: Thread) -> impl Iterator<Item = &'static Allowed> {
    let lines = ALLOWED.iter().filter(move |line| thread.is_among(line.threads));
    lines.map(|line| &line.allowed).chain(shared::PROCESS)
}

fn failing(thread: Thread) -> impl Iterator<Item = &'static Failing> {
    let lines = FAILING.iter().filter(move |line| thread.is_among(line.threads));
    lines.map(|line| &line.failing).chain(shared::FAILING)
}

#[test]
fn filters_compile() {
    for kind in ALL {
        for seccomp in [Seccomp::Enforce, Seccomp::Log] {
            let filters = compile(seccomp, kind).unwrap();
            // The kernel's limit of one filter.
            assert!(filters.lengths().all(|length| length <= 4096), "{kind:?}");
            assert!(filters.lengths().count() > 1, "{kind:?}");
        }
    }
}

#[test]
fn lines_have_reasons_and_no_call_is_listed_with_and_without_conditions() {
    for kind in ALL {
        let reasons = allowed(kind).map(|line| line.reason).chain(failing(kind).map(|line| line.reason));
        assert!(reasons.into_iter().all(|reason| !reason.is_empty()));
        for line in allowed(kind).filter(|line| line.when.is_empty()) {
            assert_eq!(allowed(kind).filter(|other| other.call == line.call).count(), 1, "{:?}", line.call);
        }
        // A line with conditions would not hold.
        for failing in failing(kind) {
            assert!(allowed(kind).all(|line| line.call != failing.call), "{kind:?}: {:?}", failing.call);
        }
    }
}

#[test]
fn what_devices_may_call_vcpus_may_and_what_those_may_others_may_or_it_fails() {
    for line in ALLOWED {
        for pair in KINDS.windows(2) {
            assert!(!pair[0].is_among(line.threads) || pair[1].is_among(line.threads), "{line:?}");
        }
    }
}

#[test]
fn a_launcher_with_qemu_uses_no_devices_of_the_host_and_threads_that_serve_guests_signal_no_process() {
    let calls = |kind| allowed(kind).map(|line| line.call).collect::<Vec<_>>();
    let driver = calls(Thread::Driver);
    for call in [syscalls::Sysno::io_uring_setup, syscalls::Sysno::fallocate, syscalls::Sysno::ftruncate] {
        assert!(!driver.contains(&call) && calls(Thread::Other).contains(&call), "{call:?}");
    }
    for kind in [Thread::Device, Thread::Vcpu] {
        assert!(!calls(kind).contains(&syscalls::Sysno::kill), "{kind:?}");
    }
    let kvm = |kind| allowed(kind).filter(|line| line.reason.starts_with("KVM_")).count();
    assert_eq!(kvm(Thread::Driver), 0);
    assert!(kvm(Thread::Other) > 0);
}

#[test]
fn attack_surface_is_not_listed() {
    use syscalls::Sysno as S;
    let never = [S::execve, S::open, S::creat, S::pidfd_open];
    for call in never.iter().chain(shared::NEVER) {
        assert!(ALL.into_iter().flat_map(allowed).all(|line| line.call != *call), "{call:?}");
    }
}

/// Runs `act` in a process of its own, by way of the test of that name.
fn in_a_child(test: &str, act: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("seccomp::tests::{test}"), "--nocapture", "--test-threads=1"]);
    command.env(ACT, act).output().unwrap()
}

/// A call of ptrace that does nothing where it is allowed.
fn ptrace() -> i64 {
    // SAFETY: there is no such request.
    #[expect(unsafe_code, reason = "nothing else makes the call")]
    unsafe {
        libc::syscall(libc::SYS_ptrace, 0x7fff, 0, 0, 0)
    }
}

/// The kind of thread whose filters hold for what follows.
fn restrict(seccomp: Seccomp, kind: Option<Thread>) {
    if kind == Some(Thread::Driver) {
        return restrict_driver(seccomp).unwrap();
    }
    let _hook = restrict_monitor(seccomp, |_| {}).unwrap();
    if let Some(kind) = kind {
        compile(Seccomp::Enforce, kind).unwrap().apply().unwrap();
    }
}

/// What a defect of a task does: it is logged, and the launcher goes on. The trace reads the program and its libraries.
fn panic_with_a_backtrace() {
    std::panic::set_hook(Box::new(|_| {
        let trace = std::backtrace::Backtrace::force_capture().to_string();
        eprintln!("{trace}");
    }));
    std::thread::spawn(|| panic!("a test")).join().unwrap_err();
}

/// What a launcher with QEMU does now and then: where a call is missing, a guest ends long after its start.
fn rare_work_with_qemu() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut hangups = {
        let _entered = runtime.enter();
        signal(SignalKind::hangup()).unwrap()
    };
    let mut child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
    restrict(Seccomp::Enforce, Some(Thread::Driver));
    // The allocator: its heaps grow, move and shrink, each thread gets another one, and memory is refused.
    let mut large = vec![1_u8; 32 << 20];
    large.reserve_exact(64 << 20);
    large.truncate(1 << 20);
    large.shrink_to_fit();
    let sizes = || (0..64).map(|size| vec![1_u8; size * 1000]).map(|block| block.len()).sum::<usize>();
    let threads: Vec<_> = (0..32).map(|_| std::thread::spawn(sizes)).collect();
    assert!(threads.into_iter().all(|thread| thread.join().unwrap() == 2_016_000));
    large.try_reserve_exact(1 << 60).unwrap_err();
    runtime.block_on(async {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
        hangups.recv().await.unwrap();
        let timer = tokio::time::timeout(Duration::from_millis(1), std::future::pending::<()>());
        assert!(timer.await.is_err());
        let exists = tokio::task::spawn_blocking(|| Path::new("/proc/self/stat").exists());
        assert!(exists.await.unwrap());
        // Probes that fail. This host may have no IPv6.
        let refused: SocketAddr = "127.0.0.1:1".parse().unwrap();
        tokio::net::TcpStream::connect(refused).await.unwrap_err();
        drop(tokio::net::UdpSocket::bind("[::1]:0").await);
    });
    std::thread::available_parallelism().unwrap();
    assert_eq!(std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().count(), 1);
    // A log that has no reader.
    let (reader, mut log) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(log.write(b"line").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Calls itself until its stack has no space left.
#[expect(unconditional_recursion, reason = "that is what it is for")]
fn recurse(depth: u64) -> u64 {
    std::hint::black_box(recurse(std::hint::black_box(depth + 1)) + 1)
}

fn act(name: &str) {
    match name {
        "rare work with QEMU" => rare_work_with_qemu(),
        "abort with QEMU" => {
            restrict(Seccomp::Enforce, Some(Thread::Driver));
            std::process::abort();
        }
        "overflow with QEMU" => {
            restrict(Seccomp::Enforce, Some(Thread::Driver));
            std::thread::spawn(|| recurse(0)).join().unwrap();
        }
        "ptrace" => {
            restrict(Seccomp::Enforce, None);
            ptrace();
        }
        "another thread" => {
            let (go, wait) = std::sync::mpsc::channel();
            let thread = std::thread::Builder::new().name("other".to_owned());
            let thread = thread.spawn(move || (wait.recv(), ptrace())).unwrap();
            restrict(Seccomp::Enforce, None);
            go.send(()).unwrap();
            thread.join().unwrap().0.unwrap();
        }
        "netlink" => {
            restrict(Seccomp::Enforce, None);
            let netlink = rustix::net::AddressFamily::NETLINK;
            let _ = rustix::net::socket(netlink, rustix::net::SocketType::RAW, None);
        }
        "exec" => {
            restrict(Seccomp::Enforce, None);
            let _ = Command::new("/bin/true").spawn();
        }
        "create" => {
            restrict(Seccomp::Enforce, None);
            let _ = std::fs::write("/dev/null", "");
        }
        "socket of a vCPU" => {
            restrict(Seccomp::Enforce, Some(Thread::Vcpu));
            let _ = std::net::UdpSocket::bind("127.0.0.1:0");
        }
        "exec with QEMU" => {
            restrict(Seccomp::Enforce, Some(Thread::Driver));
            let _ = Command::new("/bin/true").spawn();
        }
        "KVM with QEMU" => {
            restrict(Seccomp::Enforce, Some(Thread::Driver));
            // SAFETY: the request takes no pointer, and the descriptor is not KVM's.
            #[expect(unsafe_code, reason = "nothing else makes the call")]
            unsafe {
                libc::ioctl(0, 0xae00, 0)
            };
        }
        "work with QEMU" => {
            let mut child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
            restrict(Seccomp::Enforce, Some(Thread::Driver));
            child.kill().unwrap();
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
            assert!(!std::fs::read("/proc/self/stat").unwrap().is_empty());
            assert_eq!(std::thread::spawn(|| vec![1_u8; 1 << 20].len()).join().unwrap(), 1 << 20);
            panic_with_a_backtrace();
        }
        "work" => {
            restrict(Seccomp::Enforce, None);
            assert!(!std::fs::read("/proc/self/stat").unwrap().is_empty());
            drop(std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
            assert_eq!(std::thread::spawn(|| vec![1_u8; 1 << 20].len()).join().unwrap(), 1 << 20);
            panic_with_a_backtrace();
        }
        "work of a device" => {
            restrict(Seccomp::Enforce, Some(Thread::Vcpu));
            restrict(Seccomp::Off, Some(Thread::Device));
            let error = std::fs::read("/proc/self/stat").unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
            assert_eq!(std::thread::spawn(|| vec![1_u8; 1 << 20].len()).join().unwrap(), 1 << 20);
        }
        "off" => {
            restrict(Seccomp::Off, None);
            ptrace();
        }
        other => panic!("{other}"),
    }
    println!("went on");
}

#[test]
fn a_call_that_is_not_allowed_ends_the_process_and_is_named() {
    if let Ok(name) = std::env::var(ACT) {
        return act(&name);
    }
    let table = [
        ("ptrace", "ptrace (101)"),
        ("another thread", "ptrace (101) of thread other"),
        ("netlink", "socket (41)"),
        ("create", "openat (257)"),
        ("socket of a vCPU", "socket (41)"),
        ("KVM with QEMU", "ioctl (16)"),
    ];
    for (name, named) in table {
        let output = in_a_child("a_call_that_is_not_allowed_ends_the_process_and_is_named", name);
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{name}: {output:?}");
        assert!(log.contains(named), "{name}: {log}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("went on"), "{name}");
    }
    // Whichever of its calls is the first.
    for name in ["exec", "exec with QEMU"] {
        let output = in_a_child("a_call_that_is_not_allowed_ends_the_process_and_is_named", name);
        assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{output:?}");
    }
}

#[test]
fn what_a_launcher_does_is_allowed() {
    if let Ok(name) = std::env::var(ACT) {
        return act(&name);
    }
    for name in ["work", "work of a device", "work with QEMU", "rare work with QEMU", "off"] {
        let output = in_a_child("what_a_launcher_does_is_allowed", name);
        assert!(output.status.success(), "{name}: {output:?}");
        let log = String::from_utf8_lossy(&output.stderr);
        let has_trace = log.contains("panic_with_a_backtrace");
        assert_eq!(has_trace, ["work", "work with QEMU"].contains(&name), "{name}: {log}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("went on"), "{name}");
    }
}

/// Its log has the reason then, and not a call that was rejected.
#[test]
fn the_end_by_a_defect_is_not_one_by_the_filter() {
    if let Ok(name) = std::env::var(ACT) {
        return act(&name);
    }
    for (name, said) in [("abort with QEMU", ""), ("overflow with QEMU", "has overflowed its stack")] {
        let output = in_a_child("the_end_by_a_defect_is_not_one_by_the_filter", name);
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{name}: {log}");
        assert!(log.contains(said) && !log.contains("seccomp"), "{name}: {log}");
    }
}
