use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

use super::*;

/// Names what the child of a test does.
const ACT: &str = "VIREO_TEST_SECCOMP_ACT";

const KINDS: [Thread; 3] = [Thread::Device, Thread::Vcpu, Thread::Other];

#[test]
fn filters_compile() {
    for kind in KINDS {
        for unlisted in [SeccompAction::Trap, SeccompAction::Log] {
            let filters = compile(kind, &unlisted).unwrap();
            // The kernel's limit of one filter.
            assert!(filters.iter().all(|filter| filter.len() <= 4096), "{kind:?}");
        }
    }
}

#[test]
fn lines_have_reasons_and_no_call_is_listed_with_and_without_conditions() {
    let reasons = ALLOWED.iter().map(|line| line.reason).chain(FAILING.iter().map(|line| line.reason));
    assert!(reasons.into_iter().all(|reason| !reason.is_empty()));
    for kind in KINDS {
        let lines = || ALLOWED.iter().filter(|line| kind.is_among(line.threads));
        for line in lines().filter(|line| line.when.is_empty()) {
            assert_eq!(lines().filter(|other| other.call == line.call).count(), 1, "{:?}", line.call);
        }
        // A line with conditions would not hold.
        for failing in FAILING.iter().filter(|line| kind.is_among(line.threads)) {
            assert!(lines().all(|line| line.call != failing.call), "{kind:?}: {:?}", failing.call);
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
fn attack_surface_is_not_listed() {
    use syscalls::Sysno as S;
    let never = [
        S::execve,
        S::execveat,
        S::fork,
        S::vfork,
        S::ptrace,
        S::mount,
        S::umount2,
        S::setns,
        S::unshare,
        S::keyctl,
        S::bpf,
        S::perf_event_open,
        S::kexec_load,
        S::process_vm_readv,
        S::process_vm_writev,
        S::init_module,
        S::userfaultfd,
        S::open_by_handle_at,
        S::pivot_root,
        S::chroot,
        S::open,
        S::creat,
        S::setuid,
        S::kill,
        S::pidfd_open,
        S::move_mount,
        S::fsopen,
        S::add_key,
        S::personality,
    ];
    for call in never {
        assert!(ALLOWED.iter().all(|line| line.call != call), "{call:?}");
    }
}

#[test]
fn a_line_names_the_call_and_its_thread() {
    let mut line = trap::Line::default();
    line.call(101, b"vcpu0\0\0");
    let known = "virt-launcher: the seccomp filter does not allow system call ptrace (101) of thread vcpu0\n";
    assert_eq!(line.text(), known);
    let mut line = trap::Line::default();
    line.call(4095, b"vm");
    assert!(line.text().ends_with("system call (4095) of thread vm\n"), "{}", line.text());
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
    let _hook = seccomp.restrict(|_| {}).unwrap();
    for filter in kind.into_iter().flat_map(|kind| compile(kind, &SeccompAction::Trap).unwrap()) {
        apply_filter(&filter).unwrap();
    }
}

fn act(name: &str) {
    match name {
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
        "work" => {
            restrict(Seccomp::Enforce, None);
            assert!(!std::fs::read("/proc/self/stat").unwrap().is_empty());
            drop(std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
            assert_eq!(std::thread::spawn(|| vec![1_u8; 1 << 20].len()).join().unwrap(), 1 << 20);
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
    ];
    for (name, named) in table {
        let output = in_a_child("a_call_that_is_not_allowed_ends_the_process_and_is_named", name);
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{name}: {output:?}");
        assert!(log.contains(named), "{name}: {log}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("went on"), "{name}");
    }
    // Whichever of its calls is the first.
    let output = in_a_child("a_call_that_is_not_allowed_ends_the_process_and_is_named", "exec");
    assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{output:?}");
}

#[test]
fn what_a_launcher_does_is_allowed() {
    if let Ok(name) = std::env::var(ACT) {
        return act(&name);
    }
    for name in ["work", "work of a device", "off"] {
        let output = in_a_child("what_a_launcher_does_is_allowed", name);
        assert!(output.status.success(), "{name}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("went on"), "{name}");
    }
}
