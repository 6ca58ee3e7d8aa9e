//! What a launcher and its QEMU may do on their node: nothing but run their VM.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use vireo_tests::eventually::eventually;
use vireo_tests::guest::Monitor;
use vireo_tests::{Host, HostError, scenario};

use crate::SOON;
use crate::scenarios::node::{Isolation, Node, host_for_a_node, manifest};

const BOOT: Duration = Duration::from_secs(120);
/// Namespaces that a process of a VM shares with none of the node.
const NAMESPACES: [&str; 5] = ["ipc", "mnt", "net", "pid", "uts"];

#[test]
fn nested_a_launcher_on_native_has_no_privileges() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    scenario::run(
        "a launcher has no privileges",
        || Ok(host_for_a_node(scratch.path())?.memory_mib(2048)),
        |host, monitor| {
            launchers_have_no_privileges(host, if monitor == Monitor::Vmm { "native" } else { "qemu" })
        },
    );
}

#[test]
fn a_launcher_with_qemu_here_has_no_privileges() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_for_a_node(scratch.path())?.here()?;
    launchers_have_no_privileges(&host, "qemu")
}

/// A VMI that is not waited for when it is deleted: its guest may not have booted.
fn brief(host: &Host, name: &str) -> String {
    manifest(host, name).replace("GracePeriodSeconds: 60", "GracePeriodSeconds: 0")
}

/// The user that owns the processes of a VM, which were checked.
struct Vm {
    uid: String,
    user: u32,
}

/// The lines `name: value` of `/proc/PID/status`.
fn status(host: &Host, pid: &str) -> Result<BTreeMap<String, String>, HostError> {
    let text = host.shell(&format!("cat /proc/{pid}/status")).run()?.ok();
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    Ok(lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
}

/// Looks at every process of a running VM.
fn confined(host: &Host, node: &Node<'_>, name: &str, hypervisor: &str) -> Result<Vm, HostError> {
    let vmi = node.wait_for_phase(name, "Running", BOOT)?;
    let uid = vmi["metadata"]["uid"].as_str().expect("a UID").to_owned();
    let directory = host.work(&format!("state/vmis/{uid}"));
    let launcher = host.shell(&format!("sed -n 2p {directory}/launcher.stamp | cut -d' ' -f1")).run()?.ok();
    let children = host.shell(&format!("cat /proc/{}/task/*/children", launcher.trim())).run()?.ok();
    let processes: Vec<&str> = launcher.split_whitespace().chain(children.split_whitespace()).collect();
    assert_eq!(processes.len(), if hypervisor == "qemu" { 2 } else { 1 }, "{processes:?}");
    let mut users = BTreeSet::new();
    for pid in processes {
        let status = status(host, pid)?;
        let field = |name: &str| status.get(name).map(String::as_str).unwrap_or_default();
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(field(set), "0000000000000000", "{set} of {status:?}");
        }
        assert_eq!(field("NoNewPrivs"), "1");
        assert_eq!(field("Seccomp"), "2");
        assert_eq!(field("Groups"), "");
        for ids in ["Uid", "Gid"] {
            users.extend(field(ids).split_whitespace().map(|id| id.parse::<u32>().expect("an ID")));
        }
        for namespace in NAMESPACES {
            let differ =
                format!("test $(readlink /proc/{pid}/ns/{namespace}) != $(readlink /proc/1/ns/{namespace})");
            assert_eq!(host.shell(&format!("{differ} && echo own")).run()?.stdout, "own\n", "{namespace}");
        }
        let root = format!("/proc/{pid}/root");
        let secret = host.work("secret");
        for hidden in ["/home", "/root", "/boot", "/sys", "/etc/passwd", "/dev/kvm", "/dev/net", &secret] {
            assert_eq!(
                host.shell(&format!("test -e {root}{hidden} || echo hidden")).run()?.stdout,
                "hidden\n",
                "{hidden}"
            );
        }
        let vmis = host.shell(&format!("ls {root}{}", host.work("state/vmis"))).run()?.ok();
        assert_eq!(vmis.trim(), uid, "it sees its own VM alone");
        let own = host.shell(&format!("ls -A {root}{directory}")).run()?.ok();
        assert!(own.contains("launcher.sock") && !own.contains("vmi.json"), "{own}");
        // One process of the namespace is the launcher; no other VM's and none of the node is seen.
        let seen = host.shell(&format!("ls {root}/proc | grep -c '^[0-9]'")).run()?.ok();
        assert!(seen.trim().parse::<usize>().is_ok_and(|count| count <= 2), "{seen}");
    }
    if hypervisor == "native" {
        threads_have_filters(host, launcher.trim())?;
    }
    let owner = host
        .shell(&format!("stat -c '%u %g %a' {directory}/sockets; stat -c '%u %a' {directory}"))
        .run()?
        .ok();
    let user = *users.first().expect("a user");
    assert_eq!(users.len(), 1, "{users:?}");
    assert!(user >= 1_900_000_000, "{user}");
    assert_eq!(owner, format!("{user} {user} 700\n0 700\n"), "others reach neither");
    Ok(Vm { uid, user })
}

/// The least number of system call filters of each kind of thread of a launcher with the monitor.
fn filters(host: &Host, pid: &str) -> Result<BTreeMap<String, u32>, HostError> {
    let text = host.shell(&format!("cat /proc/{pid}/task/*/status 2>/dev/null|| true")).run()?.ok();
    let (mut kinds, mut kind) = (BTreeMap::new(), String::new());
    for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
        match (name, value.trim()) {
            ("Name", name) => kind = name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned(),
            ("Seccomp", mode) => assert_eq!(mode, "2", "{kind} of {text}"),
            ("Seccomp_filters", count) => {
                let count: u32 = count.parse().expect("a number of filters");
                let least = kinds.entry(kind.clone()).or_insert(count);
                *least = count.min(*least);
            }
            _ => {}
        }
    }
    Ok(kinds)
}

/// Waits until every kind of thread has its filters: two of the process, three more of a vCPU, which opens nothing, and
/// three more of a device, whose threads a vCPU starts.
fn threads_have_filters(host: &Host, pid: &str) -> Result<(), HostError> {
    let deadline = Instant::now() + BOOT;
    loop {
        let kinds = filters(host, pid)?;
        let log =
            host.shell(&format!("grep -h seccomp {}/*/*.log || true", host.work("state/vmis"))).run()?.ok();
        assert!(!log.contains("does not allow"), "{log}");
        assert_eq!(kinds.get("vm"), Some(&2), "{kinds:?}");
        let mut devices = kinds.iter().filter(|(name, _)| name.starts_with("virtio-")).peekable();
        let has_devices = devices.peek().is_some();
        if kinds.get("vcpu") == Some(&5) && has_devices && devices.all(|(_, filters)| *filters == 8) {
            return Ok(());
        }
        assert!(Instant::now() < deadline, "{kinds:?}");
    }
}

fn launchers_have_no_privileges(host: &Host, hypervisor: &'static str) -> Result<(), HostError> {
    host.shell(&format!("echo secret >{}", host.work("secret"))).run()?.ok();
    // A launcher of an earlier release is not isolated; its VM is adopted.
    let mut node = Node::start_with(host, hypervisor, Isolation::None)?;
    node.apply("old.yaml", &brief(host, "old"))?;
    let old = node.wait_for_phase("old", "Running", BOOT)?;
    let warning = "launchers are root on this host";
    let reached = eventually("the node agent warns", SOON, || Ok(node.log().contains(warning)));
    reached.inspect_err(|_| eprintln!("its log: {}", node.log()))?;
    node.lose_handler(Isolation::Full)?;
    assert!(!node.log().contains(warning), "{}", node.log());

    node.apply("one.yaml", &brief(host, "one"))?;
    let one = confined(host, &node, "one", hypervisor)?;
    node.apply("two.yaml", &brief(host, "two"))?;
    let two = confined(host, &node, "two", hypervisor)?;
    assert_ne!(one.user, two.user);
    assert_ne!(one.uid, two.uid);

    // Another node agent knows the users, and finds the sockets.
    node.lose_handler(Isolation::Full)?;
    let again = confined(host, &node, "one", hypervisor)?;
    assert_eq!((again.uid, again.user), (one.uid, one.user));
    for name in ["old", "one"] {
        drop(node.attach(name)?);
    }
    let now = node.wait_for_phase("old", "Running", BOOT)?;
    assert_eq!(now["metadata"]["uid"], old["metadata"]["uid"]);
    for name in ["old", "one", "two"] {
        node.delete(&format!("{name}.yaml"))?;
    }
    for name in ["old", "one", "two"] {
        node.wait_until_gone(name)?;
    }
    assert_eq!(host.shell(&format!("ls {}", host.work("state/vmis"))).run()?.ok(), "");
    Ok(())
}
