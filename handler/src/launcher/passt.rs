//! passt: a process beside a launcher, by which its guest uses the network of the Pod without a tap.
//!
//! What the guest sends goes through sockets that passt opens in the network namespace of the VM, and what arrives at the ports
//! that are forwarded goes to the guest. passt makes namespaces of its own, which the seccomp profile of Pods forbids, so that the
//! node agent starts it: with the user and in the cgroups of the launcher. It ends when the hypervisor closes their socket.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _};
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Gid, MemfdFlags, SealFlags, Uid, fchown, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, setrlimit, setsid};
use tracing::{info, warn};

use super::cgroup::Membership;
use super::process::{close_inherited_descriptors, set_oom_score};
use crate::network::netns;
use crate::network::ports::{Ports, Protocol};
use crate::network::{self, POD_INTERFACE};

/// Where packages install it.
pub(crate) const PROGRAM: &str = "/usr/bin/passt";
/// How long it may take to start. It opens a socket for each port first.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Its limit of name servers.
const MAX_SERVERS: usize = 3;
/// Its limit of domains to search.
const MAX_DOMAINS: usize = 6;
/// The open files that it needs to listen to all ports but the ephemeral ones, by TCP and by UDP.
const ALL_PORTS: u64 = 200_000;
/// How much of what it writes is kept, in bytes.
const LOG: u64 = 4096;

/// The configuration of passt for a NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Passt {
    /// The NIC's name.
    pub(crate) nic: String,
    /// What is forwarded to the guest: everything where there is nothing.
    pub(crate) forwards: Vec<Ports>,
    /// The guest's name servers.
    pub(crate) servers: Vec<IpAddr>,
    /// The domains that the guest searches.
    pub(crate) search: Vec<String>,
}

/// Its user beside a launcher that is root.
const NOBODY: u32 = 65534;
/// Its group, by which its sockets are known from those of the launcher.
const GROUP: u32 = 65534;

/// The effective user in the `/proc/PID/status` of a launcher, which passt gets. It is never root.
fn user(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let user = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(if user == 0 { NOBODY } else { user })
}

impl Passt {
    /// Starts it in a network namespace, beside a launcher with a process ID. Returns the hypervisor's end of their socket. Blocks.
    ///
    /// # Errors
    /// When it cannot be started, with what it reports.
    pub(crate) fn start(&self, namespace: &Path, launcher: i32) -> io::Result<OwnedFd> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("passt of {}: {error}", self.nic));
        self.spawn(namespace, launcher).map_err(named)
    }

    fn spawn(&self, namespace: &Path, launcher: i32) -> io::Result<OwnedFd> {
        let status = std::fs::read_to_string(format!("/proc/{launcher}/status"))?;
        let user = user(&status).ok_or_else(|| io::Error::other("the launcher has no user"))?;
        let oom_score = std::fs::read_to_string(format!("/proc/{launcher}/oom_score_adj"))?;
        let cgroups = Membership::of(launcher)?;
        let (ours, theirs) = UnixStream::pair()?;
        let (mut started, pid) = started(user)?;
        let log = log()?;
        let mut command = Command::new(PROGRAM);
        command.args(self.arguments(theirs.as_raw_fd(), pid.as_raw_fd(), user));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.try_clone()?);
        let limit =
            self.forwards.is_empty().then_some(Rlimit { current: Some(ALL_PORTS), maximum: Some(ALL_PORTS) });
        let prepare = move || {
            setsid()?;
            close_inherited_descriptors();
            cgroups.join()?;
            set_oom_score(oom_score.trim())?;
            if let Some(limit) = limit {
                setrlimit(Resource::Nofile, limit)?;
            }
            fcntl_setfd(&theirs, FdFlags::empty())?;
            fcntl_setfd(&pid, FdFlags::empty())?;
            Ok(())
        };
        // SAFETY: between fork and exec only async-signal-safe calls may run: `prepare` makes plain system calls on file
        // descriptors opened before; it takes no lock and allocates nothing.
        #[expect(unsafe_code, reason = "descriptors are inherited and cgroups joined between fork and exec")]
        unsafe {
            command.pre_exec(prepare)
        };
        let at = namespace.to_owned();
        let child = netns::inside(&at, move || {
            network::prepare_passt(user, GROUP).map_err(io::Error::other)?;
            // Their ends close with the command, so that the end of passt is seen.
            command.spawn()
        })?;
        let mut child = child.map_err(|error| self.explained(error))?;
        if let Err(error) = await_start(&mut started) {
            let _ = child.kill();
            child.wait()?;
            return Err(io::Error::new(error.kind(), failure(&log, &error)));
        }
        self.reap(child)?;
        Ok(ours.into())
    }

    /// An error of its start, with what an administrator or a user can do.
    fn explained(&self, error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::NotFound => {
                io::Error::other(format!("{PROGRAM} is not there: install the package passt"))
            }
            io::ErrorKind::PermissionDenied if self.forwards.is_empty() => io::Error::other(
                "the node agent may not open a socket for each port: list the ports of the interface",
            ),
            _ => error,
        }
    }

    /// Its command line.
    fn arguments(&self, socket: RawFd, pid: RawFd, user: u32) -> Vec<String> {
        let mut arguments: Vec<String> =
            ["--quiet", "--foreground", "--no-map-gw", "--interface", POD_INTERFACE]
                .map(str::to_owned)
                .into();
        let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        option("--fd", socket.to_string());
        option("--pid", format!("/proc/self/fd/{pid}"));
        option("--runas", format!("{user}:{GROUP}"));
        option("--tcp-ports", self.ports(Protocol::Tcp));
        option("--udp-ports", self.ports(Protocol::Udp));
        let family = |is_ipv6: bool| {
            self.servers.iter().filter(move |server| server.is_ipv6() == is_ipv6).take(MAX_SERVERS)
        };
        for server in family(false).chain(family(true)) {
            option("--dns", server.to_string());
        }
        for domain in self.search.iter().take(MAX_DOMAINS) {
            option("--search", domain.clone());
        }
        // Instead of those of the node agent.
        for (name, is_empty) in [("--dns", self.servers.is_empty()), ("--search", self.search.is_empty())] {
            if is_empty {
                option(name, "none".to_owned());
            }
        }
        arguments
    }

    /// The ports of a protocol, as passt reads them.
    fn ports(&self, protocol: Protocol) -> String {
        if self.forwards.is_empty() {
            return "all".to_owned();
        }
        let of_protocol = self.forwards.iter().filter(|ports| ports.protocol == protocol);
        let ranges: Vec<String> = of_protocol
            .map(
                |Ports { first, last, .. }| {
                    if first == last { first.to_string() } else { format!("{first}-{last}") }
                },
            )
            .collect();
        if ranges.is_empty() { "none".to_owned() } else { ranges.join(",") }
    }

    /// Waits for its end on a thread of its own.
    fn reap(&self, mut child: Child) -> io::Result<()> {
        let nic = self.nic.clone();
        let wait = move || match child.wait() {
            Ok(status) if status.success() => info!(nic, "passt has ended with its VM"),
            Ok(status) => {
                warn!(nic, %status, "passt has ended: a guest that still runs has no network by it")
            }
            Err(error) => warn!(nic, %error, "passt cannot be waited for"),
        };
        thread::Builder::new().name("passt".to_owned()).stack_size(64 << 10).spawn(wait).map(drop)
    }
}

/// A pipe that it writes its process ID to when it has started. It opens it by its path when it is another user already.
fn started(user: u32) -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    fchown(&writer, Some(Uid::from_raw(user)), Some(Gid::from_raw(GROUP)))?;
    Ok((reader, writer))
}

fn await_start(started: &mut PipeReader) -> io::Result<()> {
    let timeout = Timespec::try_from(START_TIMEOUT).ok();
    if poll(&mut [PollFd::new(started, PollFlags::IN)], timeout.as_ref())? == 0 {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "it takes too long to start"));
    }
    match started.read(&mut [0; 1])? {
        0 => Err(io::Error::other("it does not start")),
        _ => Ok(()),
    }
}

/// A file for what it writes. It cannot grow, since passt has it while its guest runs.
fn log() -> io::Result<File> {
    let log = memfd_create("passt", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&log, LOG)?;
    fcntl_add_seals(&log, SealFlags::GROW | SealFlags::SHRINK)?;
    Ok(log.into())
}

/// Why it does not start: the errors that it reports, if there are any.
fn failure(log: &File, error: &io::Error) -> String {
    let mut text = vec![0; usize::try_from(LOG).unwrap_or_default()];
    let length = log.read_at(&mut text, 0).unwrap_or_default();
    text.truncate(length);
    error_lines(&String::from_utf8_lossy(&text)).unwrap_or_else(|| error.to_string())
}

/// The errors in what it has written, without those of its own log.
fn error_lines(text: &str) -> Option<String> {
    let lines = text.trim_end_matches('\0').lines().map(str::trim);
    let errors: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.ends_with("to syslog")).collect();
    (!errors.is_empty()).then(|| errors.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passt(forwards: Vec<Ports>) -> Passt {
        Passt {
            nic: "default".to_owned(),
            forwards,
            servers: ["10.0.0.1", "fd00::1", "10.0.0.2"].map(|server| server.parse().unwrap()).into(),
            search: vec!["a.example".to_owned(), "b.example".to_owned()],
        }
    }

    fn after<'a>(arguments: &'a [String], option: &str) -> Vec<&'a str> {
        let pairs = arguments.iter().zip(arguments.iter().skip(1));
        pairs.filter(|(name, _)| *name == option).map(|(_, value)| value.as_str()).collect()
    }

    #[test]
    fn the_ports_that_are_listed_are_forwarded_and_no_others() {
        let user = 107;
        let forwards = vec![
            Ports::one(Protocol::Tcp, 22),
            Ports { protocol: Protocol::Tcp, first: 8000, last: 8010 },
            Ports::one(Protocol::Udp, 53),
        ];
        let arguments = passt(forwards).arguments(3, 4, user);
        assert_eq!(after(&arguments, "--tcp-ports"), ["22,8000-8010"]);
        assert_eq!(after(&arguments, "--udp-ports"), ["53"]);
        assert_eq!(after(&arguments, "--dns"), ["10.0.0.1", "10.0.0.2", "fd00::1"]);
        assert_eq!(after(&arguments, "--search"), ["a.example", "b.example"]);
        assert_eq!(
            (after(&arguments, "--fd"), after(&arguments, "--pid")),
            (vec!["3"], vec!["/proc/self/fd/4"])
        );
        assert_eq!(after(&arguments, "--runas"), ["107:65534"]);
        let one = passt(vec![Ports::one(Protocol::Udp, 53)]);
        assert_eq!(after(&one.arguments(3, 4, user), "--tcp-ports"), ["none"]);
    }

    #[test]
    fn all_ports_are_forwarded_where_none_are_listed_and_no_server_is_taken_from_the_node_agent() {
        let bare = Passt { servers: Vec::new(), search: Vec::new(), ..passt(Vec::new()) };
        let arguments = bare.arguments(3, 4, NOBODY);
        assert_eq!(
            (after(&arguments, "--tcp-ports"), after(&arguments, "--udp-ports")),
            (vec!["all"], vec!["all"])
        );
        assert_eq!((after(&arguments, "--dns"), after(&arguments, "--search")), (vec!["none"], vec!["none"]));
    }

    #[test]
    fn the_user_is_the_effective_one_of_the_launcher() {
        assert_eq!(user("Name:\tvirt-launcher\nUid:\t0\t107\t107\t107\n"), Some(107));
        assert_eq!(user("Uid:\t0\t0\t0\t0\n"), Some(NOBODY));
        assert_eq!(user("Name:\tx\n"), None);
    }

    #[test]
    fn its_errors_are_those_beside_its_log() {
        let text = "Failed to send 37 bytes to syslog\nL4 socket: Too many open files\n\nFailed to send 56 bytes to syslog\nCan't \
                    open enough sockets for port specifier: all\n\0\0\0";
        let expected = "L4 socket: Too many open files; Can't open enough sockets for port specifier: all";
        assert_eq!(error_lines(text).as_deref(), Some(expected));
        assert_eq!(error_lines("\0\0"), None);
    }

    #[test]
    fn what_it_writes_cannot_fill_memory() {
        let log = log().unwrap();
        log.write_at(&[b'x'; 100], 0).unwrap();
        assert!(log.write_at(b"x", LOG).is_err());
    }
}
