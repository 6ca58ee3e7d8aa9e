//! A short-lived machine with a real `/dev/kvm`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::agent::PORT;
use crate::image::{Image, ImageError};
use crate::process::{Event, Invocation};
use crate::wire::Frame;

const BOOT_DEADLINE: Duration = Duration::from_secs(120);
/// How often a host is interrupted though there is nothing to say.
const BEAT: Duration = Duration::from_millis(500);
const COMMAND_LINE: &str = "console=ttyS0 loglevel=5 panic=-1 mitigations=off audit=0 random.trust_cpu=on";
/// First process of a host that is this machine: the shell reaps what daemons leave, so it must not become the agent.
const HERE: &str = "mount -t tmpfs tmpfs /run; \"$1\" --agent-here; exit";
/// What it does before, in a network of its own.
const NETWORK: &str = "ip link set lo up; echo 1 >/proc/sys/net/ipv4/ip_forward; ";
const CONSOLE_TAIL: u64 = 6 << 10;

/// Why a host does not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// There is nothing to boot from.
    #[error("no image of a nested host")]
    Image(#[from] ImageError),
    /// A file to be given to the host.
    #[error("cannot give {} to the nested host", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// QEMU is missing, or files around it.
    #[error("cannot start the nested host (Debian package qemu-system-x86)")]
    Start(#[source] io::Error),
    /// It crashed, or was killed at its deadline.
    #[error("the nested host is gone: {0}")]
    Gone(&'static str),
    /// It runs, but does not answer.
    #[error("the nested host hangs: {0}")]
    Hung(String),
    /// A command did not get where it should in time; it was killed.
    #[error("deadline of {} s passed waiting for {what}", deadline.as_secs())]
    Deadline {
        /// What was waited for.
        what: String,
        /// How long.
        deadline: Duration,
    },
    /// A command ended before it got where it should.
    #[error("{command} ended with {status:?} while {what} was waited for")]
    Ended {
        /// The command.
        command: String,
        /// How it ended.
        status: crate::Status,
        /// What was waited for.
        what: String,
    },
}

/// What kind of host is wanted.
#[derive(Clone, Debug)]
pub struct HostBuilder {
    agent: PathBuf,
    memory_mib: u32,
    cpus: u32,
    deadline: Duration,
    files: Vec<(PathBuf, String)>,
    output: Option<PathBuf>,
    own_network: bool,
}

impl HostBuilder {
    /// `agent` is the `nested` binary: `env!("CARGO_BIN_EXE_nested")` in tests of this crate.
    pub fn new(agent: impl Into<PathBuf>) -> Self {
        Self {
            agent: agent.into(),
            memory_mib: 2048,
            cpus: 1,
            deadline: Duration::from_secs(300),
            files: Vec::new(),
            output: None,
            own_network: true,
        }
    }

    /// Leaves it this machine's network, for servers elsewhere. Only for [`HostBuilder::here`].
    #[must_use]
    pub fn on_this_network(mut self) -> Self {
        self.own_network = false;
        self
    }

    /// RAM in MiB; taken from the machine only as it is used. Default 2048.
    #[must_use]
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    /// Emulated processors. One is steadiest, and the default.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// How long it may live from now on, all commands together. Default 5 minutes.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Makes a file readable (and executable, if it is) as `/in/<its name>`.
    #[must_use]
    pub fn file(self, source: impl AsRef<Path>) -> Self {
        let name = source.as_ref().file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.file_as(source, name)
    }

    /// Makes a file readable as `/in/<name>`; `name` may have directories.
    #[must_use]
    pub fn file_as(mut self, source: impl AsRef<Path>, name: impl Into<String>) -> Self {
        self.files.push((source.as_ref().to_owned(), name.into()));
        self
    }

    /// Makes a directory with everything in it readable as `/in/<name>`.
    pub fn tree(mut self, source: impl AsRef<Path>, name: &str) -> Result<Self, HostError> {
        let fail = |source: io::Error| HostError::File { path: name.into(), source };
        for entry in fs::read_dir(source).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = format!("{name}/{}", entry.file_name().to_string_lossy());
            self = match entry.file_type().map_err(fail)?.is_dir() {
                true => self.tree(entry.path(), &name)?,
                false => self.file_as(entry.path(), name),
            };
        }
        Ok(self)
    }

    /// The directory that the host sees as `/out`, writable. Default: one that goes with the host.
    #[must_use]
    pub fn output(mut self, directory: impl Into<PathBuf>) -> Self {
        self.output = Some(directory.into());
        self
    }

    /// Boots it; returns when it takes commands.
    pub fn start(self) -> Result<Host, HostError> {
        let image = Image::get()?;
        let scratch = share(&self)?;
        image.write_host_initrd(&scratch.path().join("initrd")).map_err(HostError::Start)?;
        let output = self.output.clone().unwrap_or_else(|| scratch.path().join("out"));
        let qemu = qemu(&self, &image, scratch.path(), &output);
        let places = Places { input: "/in".into(), work: "/tmp".into(), out: "/out".into(), output };
        Host::start(qemu, scratch, places, self.deadline)
    }

    /// Takes this machine itself for the host, so that a scenario that needs no KVM runs the same here. There are
    /// no processors and no memory to choose then. Commands run in namespaces of their own for networks, mounts and
    /// processes, all of which go with the host.
    pub fn here(self) -> Result<Host, HostError> {
        let scratch = share(&self)?;
        let work = scratch.path().join("work");
        fs::create_dir_all(&work).map_err(HostError::Start)?;
        let output = self.output.clone().unwrap_or_else(|| scratch.path().join("out"));
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let places =
            Places { input: text(&scratch.path().join("in")), work: text(&work), out: text(&output), output };
        let mut agent = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            agent.arg("--map-root-user");
        }
        let mut script = HERE.to_owned();
        if self.own_network {
            agent.arg("--net");
            script.insert_str(0, NETWORK);
        }
        agent.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-euc", &script]);
        agent.arg("sh").arg(scratch.path().join("in/.agent"));
        agent.stdin(Stdio::piped()).stdout(Stdio::piped());
        Host::start(agent, scratch, places, self.deadline)
    }
}

/// A running host. Dropping it ends it at once.
#[derive(Debug)]
pub struct Host {
    qemu: Arc<Mutex<Child>>,
    link: Arc<Link>,
    threads: Vec<JoinHandle<()>>,
    stop_watchdog: Option<Sender<()>>,
    scratch: TempDir,
    places: Places,
}

/// Where a host's commands find things.
#[derive(Debug)]
struct Places {
    input: String,
    work: String,
    out: String,
    output: PathBuf,
}

/// The host's end of the control channel.
#[derive(Debug)]
pub(crate) struct Link {
    to_agent: Mutex<ChildStdin>,
    routes: Mutex<Routes>,
    next_id: AtomicU32,
}

/// Who hears about which command; none once the host is gone.
type Routes = Option<HashMap<u32, Sender<Event>>>;

impl Link {
    pub(crate) fn send(&self, frame: &Frame) -> io::Result<()> {
        frame.write(&mut *self.to_agent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Interrupts the host for nothing. Its emulated processor sometimes overlooks a timer that goes off while a guest
    /// runs, and with it everything, for minutes; the next interrupt wakes it.
    fn beat(&self) {
        // Whoever holds the channel is sending.
        if let Ok(mut to_agent) = self.to_agent.try_lock() {
            // No command has this number. Fails only where the host is gone.
            let _ = Frame::Stdin(0, Vec::new()).write(&mut *to_agent);
        }
    }

    pub(crate) fn forget(&self, id: u32) {
        if let Some(routes) = &mut *self.routes.lock().unwrap_or_else(PoisonError::into_inner) {
            routes.remove(&id);
        }
    }

    /// A number for a command to be started, and what will be heard of it.
    pub(crate) fn attach(&self) -> (u32, Receiver<Event>) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        (id, self.listen(id))
    }

    fn listen(&self, id: u32) -> Receiver<Event> {
        let (sender, receiver) = mpsc::channel();
        if let Some(routes) = &mut *self.routes.lock().unwrap_or_else(PoisonError::into_inner) {
            routes.insert(id, sender);
        }
        receiver
    }

    /// Hands frames to their listeners until the channel ends.
    fn read(&self, mut from: ChildStdout, ready: Sender<()>) {
        while let Ok(frame) = Frame::read(&mut from) {
            let (id, event) = match frame {
                Frame::Ready => {
                    // The listener may have given up at its deadline.
                    let _ = ready.send(());
                    continue;
                }
                Frame::Stdout(id, bytes) => (id, Event::Stdout(bytes)),
                Frame::Stderr(id, bytes) => (id, Event::Stderr(bytes)),
                Frame::Exit(id, status) => (id, Event::Exit(status)),
                Frame::Start(..) | Frame::Stdin(..) | Frame::Signal(..) => break,
            };
            if let Some(routes) = &*self.routes.lock().unwrap_or_else(PoisonError::into_inner)
                && let Some(listener) = routes.get(&id)
            {
                // A command nobody waits for any more may still speak.
                let _ = listener.send(event);
            }
        }
        *self.routes.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Host {
    fn start(
        mut command: Command,
        scratch: TempDir,
        places: Places,
        deadline: Duration,
    ) -> Result<Self, HostError> {
        let started = Instant::now();
        let mut qemu = command.spawn().map_err(HostError::Start)?;
        let pipes = qemu.stdin.take().zip(qemu.stdout.take());
        let (to_agent, from_agent) = pipes.ok_or_else(|| HostError::Start(io::Error::other("no pipes")))?;
        let link = Arc::new(Link {
            to_agent: Mutex::new(to_agent),
            routes: Mutex::new(Some(HashMap::new())),
            next_id: AtomicU32::new(1),
        });
        let (ready, is_ready) = mpsc::channel();
        let (stop_watchdog, watched) = mpsc::channel();
        let reader = thread::spawn({
            let link = Arc::clone(&link);
            move || link.read(from_agent, ready)
        });
        let qemu = Arc::new(Mutex::new(qemu));
        let watchdog = thread::spawn({
            let (qemu, link) = (Arc::clone(&qemu), Arc::clone(&link));
            move || watch(&watched, &qemu, &link, started + deadline)
        });
        let host = Self {
            qemu,
            link,
            threads: vec![reader, watchdog],
            stop_watchdog: Some(stop_watchdog),
            scratch,
            places,
        };
        match is_ready.recv_timeout(BOOT_DEADLINE) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => {
                return Err(host.fail(HostError::Hung("it does not boot".into())));
            }
            Err(RecvTimeoutError::Disconnected) => return Err(host.fail(HostError::Gone("it did not boot"))),
        }
        eprintln!("nested: host up in {:.1} s", started.elapsed().as_secs_f32());
        Ok(host)
    }

    /// A command to run in the host; not a shell line, see [`Host::shell`].
    pub fn command(&self, program: &str) -> Invocation<'_> {
        Invocation::new(self, program)
    }

    /// A line for the host's `bash`, with `-e` and `pipefail`.
    pub fn shell(&self, line: &str) -> Invocation<'_> {
        self.command("/bin/bash").args(["-e", "-o", "pipefail", "-c", line])
    }

    /// The directory the host sees as `/out`.
    pub fn output(&self) -> &Path {
        &self.places.output
    }

    /// What the host's commands call the file `name` of [`Host::output`].
    pub fn out(&self, name: &str) -> String {
        format!("{}/{name}", self.places.out)
    }

    /// Where the host has the file given to it as `name`: `/in/name`.
    pub fn input(&self, name: &str) -> String {
        format!("{}/{name}", self.places.input)
    }

    /// A path for a file of the scenario's own, gone with the host: `/tmp/name`.
    pub fn work(&self, name: &str) -> String {
        format!("{}/{name}", self.places.work)
    }

    pub(crate) fn link(&self) -> Arc<Link> {
        Arc::clone(&self.link)
    }

    /// Prints what the host's console last said, and passes the error on.
    pub(crate) fn fail(&self, error: HostError) -> HostError {
        let console = self.scratch.path().join("console");
        if !console.exists() {
            return error;
        }
        eprintln!("nested: {error}; the end of its console:\n{}", tail(&console));
        let complaints = tail(&self.scratch.path().join("qemu"));
        if !complaints.is_empty() {
            eprintln!("nested: its QEMU said:\n{complaints}");
        }
        error
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop_watchdog = None;
        {
            let mut qemu = self.qemu.lock().unwrap_or_else(PoisonError::into_inner);
            // Both fail only where it is gone already.
            let _ = qemu.kill();
            let _ = qemu.wait();
        }
        for thread in self.threads.drain(..) {
            // A panic there was printed when it happened.
            let _ = thread.join();
        }
    }
}

fn watch(watched: &Receiver<()>, qemu: &Mutex<Child>, link: &Link, end: Instant) {
    while watched.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
        if Instant::now() >= end {
            eprintln!("nested: the host's deadline passed: killing it");
            // Fails only where it is gone already.
            let _ = qemu.lock().unwrap_or_else(PoisonError::into_inner).kill();
            return;
        }
        link.beat();
    }
}

/// Puts the files into a directory of their own: hard links where that goes, copies elsewhere.
fn share(wanted: &HostBuilder) -> Result<TempDir, HostError> {
    let parent = std::env::var_os("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let scratch = tempfile::Builder::new()
        .prefix("vireo-nested-host-")
        .tempdir_in(&parent)
        .map_err(|source| HostError::File { path: parent, source })?;
    let agent = (wanted.agent.clone(), ".agent".to_owned());
    for (source, name) in wanted.files.iter().chain([&agent]) {
        let fail = |error| HostError::File { path: source.clone(), source: error };
        let target = scratch.path().join("in").join(name);
        let real = fs::canonicalize(source).map_err(fail)?;
        fs::create_dir_all(target.parent().unwrap_or(&target)).map_err(fail)?;
        fs::hard_link(&real, &target).or_else(|_| fs::copy(&real, &target).map(drop)).map_err(fail)?;
    }
    let out = scratch.path().join("out");
    fs::create_dir_all(&out).map_err(|source| HostError::File { path: out, source })?;
    Ok(scratch)
}

fn qemu(wanted: &HostBuilder, image: &Image, scratch: &Path, output: &Path) -> Command {
    let share = |tag: &str, path: &Path, more: &str| {
        format!("local,path={},mount_tag={tag},security_model=none,multidevs=remap{more}", path.display())
    };
    // setpriv: a killed test must not leave an emulator behind.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64"]);
    // Without fast string instructions: the emulation runs them byte by byte, so that clearing memory would cost seconds.
    command.args(["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm"]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    command.arg("-smp").arg(wanted.cpus.to_string());
    command.arg("-m").arg(format!("{}M", wanted.memory_mib));
    command.arg("-kernel").arg(image.host_kernel());
    command.arg("-initrd").arg(scratch.join("initrd"));
    command.arg("-append").arg(COMMAND_LINE);
    let root = format!("if=none,id=root,format=raw,read-only=on,file={}", image.root().display());
    command.arg("-drive").arg(root).args(["-device", "virtio-blk-pci,drive=root"]);
    command.arg("-virtfs").arg(share("in", &scratch.join("in"), ",readonly=on"));
    command.arg("-virtfs").arg(share("out", output, ""));
    command.args(["-device", "virtio-serial-pci", "-chardev", "stdio,id=agent,signal=off"]);
    command.arg("-device").arg(format!("virtserialport,chardev=agent,name={PORT}"));
    command.args(["-device", "virtio-rng-pci"]);
    command.arg("-serial").arg(format!("file:{}", scratch.join("console").display()));
    let complaints = File::create(scratch.join("qemu")).map_or_else(|_| Stdio::inherit(), Stdio::from);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(complaints);
    command
}

fn tail(path: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(CONSOLE_TAIL)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_else(|error| format!("({}: {error})", path.display()))
}
