//! A short-lived nested host with a real `/dev/kvm`.

mod builder;
mod link;
mod process;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub use builder::HostBuilder;
pub(crate) use link::Link;
pub(crate) use process::Event;
pub use process::{Invocation, Output, Process};

use crate::image::ImageError;

const BOOT_DEADLINE: Duration = Duration::from_secs(120);
/// How often an idle host is interrupted.
const BEAT: Duration = Duration::from_millis(500);
const CONSOLE_TAIL: u64 = 6 << 10;

/// Why a host failed.
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
    /// The test host's `kubectl` cannot ask its server.
    #[error("cannot run kubectl for the nested host")]
    Kubectl(#[source] io::Error),
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

    /// Whether it is another machine, with an emulated CPU, and not the test host itself.
    pub fn is_nested(&self) -> bool {
        // The test host has what is given to it where it is.
        !Path::new(&self.places.input).starts_with(self.scratch.path())
    }

    /// A path for a file of the scenario's own, gone with the host: `/tmp/name`.
    pub fn work(&self, name: &str) -> String {
        format!("{}/{name}", self.places.work)
    }

    /// Ends it at once, as a power cut does: what it has not written to its disk is lost. Its commands end.
    pub fn cut_power(&self) {
        let mut qemu = self.qemu.lock().unwrap_or_else(PoisonError::into_inner);
        // Both fail only where it is gone already.
        let _ = qemu.kill();
        let _ = qemu.wait();
    }

    pub(crate) fn link(&self) -> Arc<Link> {
        Arc::clone(&self.link)
    }

    /// Prints the end of the host's console, and passes the error on.
    pub(crate) fn fail(&self, error: HostError) -> HostError {
        let console = self.scratch.path().join("console");
        if !console.exists() {
            return error;
        }
        eprintln!("nested: {error}; the end of its console:\n{}", tail(&console));
        let stderr = tail(&self.scratch.path().join("qemu"));
        if !stderr.is_empty() {
            eprintln!("nested: stderr of its QEMU:\n{stderr}");
        }
        error
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop_watchdog = None;
        self.cut_power();
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
