//! A guest that carries out the jobs it is given over its serial line.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::runtime::{self, Runtime};
use tonic::transport::Channel;
use vireo_proto::launcher::disk_source;
use vireo_proto::launcher::launcher_client::LauncherClient;
use vireo_tests::io_load::{Job, Limit, Outcome, Response};

use super::monitor::{COMMAND_LINE, MEMORY_MIB, Monitor};
use super::store::Store;
use crate::{Error, launcher};

/// Until the guest's first process, with the emulated host at its slowest.
const START: Duration = Duration::from_secs(180);
/// What a job may take beside its own time.
const MARGIN: Duration = Duration::from_secs(60);
/// Of the console, for messages.
const TAIL: usize = 30;
/// What a job may take in the host beyond its time in the guest, in seconds: the serial line and the guest's buffers.
const CLOCKS_APART: f64 = 0.5;
/// `USER_HZ`, in which `/proc/PID/stat` counts.
const TICKS_PER_SECOND: f64 = 100.0;

/// A running guest. Dropping it kills its monitor.
pub(crate) struct Guest {
    child: Child,
    input: Box<dyn Write>,
    lines: Receiver<String>,
    /// What goes with the guest of a launcher.
    _launcher: Option<(LauncherClient<Channel>, Runtime, TempDir)>,
}

/// What a job measured.
pub(crate) struct Measured {
    pub(crate) outcome: Outcome,
    /// Processor time of the monitor meanwhile, with the guest's own.
    pub(crate) processor_seconds: f64,
    /// What the job took by the clock of the nested host.
    pub(crate) host_seconds: f64,
}

impl Measured {
    /// Why it may be no result: under emulation on a busy computer a guest's clock may stand still.
    pub(crate) fn doubt(&self) -> Option<String> {
        let Outcome { p50, all_seconds, .. } = self.outcome;
        let apart = (self.host_seconds - all_seconds).abs();
        if apart > CLOCKS_APART + all_seconds / 10.0 {
            let host = self.host_seconds;
            return Some(format!(
                "it took {host:.1} s by the host's clock, {all_seconds:.1} s by the guest's"
            ));
        }
        (p50 == 0).then(|| "by the guest's clock, half of its requests took no time".to_owned())
    }
}

impl Guest {
    /// Starts it, and waits until it takes jobs.
    pub(crate) fn start(monitor: Monitor, store: Store) -> Result<Self, Error> {
        let guest = match monitor.command(store) {
            Some(words) => Self::from_command(&words)?,
            None => Self::from_launcher(store)?,
        };
        match guest.response(START)? {
            Response::Ready { .. } => Ok(guest),
            other => Err(format!("{other:?} where the guest is to be ready").into()),
        }
    }

    fn from_command(words: &[String]) -> Result<Self, Error> {
        let (program, arguments) = words.split_first().ok_or("an empty command")?;
        let mut child =
            Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or("no standard input")?;
        let output = child.stdout.take().ok_or("no standard output")?;
        Ok(Self { child, input: Box::new(input), lines: read_lines(output), _launcher: None })
    }

    fn from_launcher(store: Store) -> Result<Self, Error> {
        let directory = tempfile::tempdir()?;
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let start = Instant::now();
        let source = match store {
            Store::Qcow2 => disk_source::Source::Overlay(disk_source::Overlay {
                path: store.path().into(),
                backing_raw_path: Store::BASE.into(),
            }),
            Store::Warm | Store::Cold | Store::Null => {
                disk_source::Source::Raw(disk_source::Raw { path: store.path().into() })
            }
        };
        let disks = vec![launcher::disk(source)];
        let boot = launcher::kernel(COMMAND_LINE);
        let request = launcher::request_for(boot, MEMORY_MIB, disks, directory.path());
        let mut child = launcher::spawn(directory.path())?;
        let launched = runtime.block_on(launcher::launch(directory.path(), start, request)).and_then(
            |(client, console)| {
                let lines = read_lines(console.try_clone()?);
                Ok((client, console, lines))
            },
        );
        match launched {
            Ok((client, console, lines)) => {
                let launcher = Some((client, runtime, directory));
                Ok(Self { child, input: Box::new(console), lines, _launcher: launcher })
            }
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    /// Carries out a job.
    pub(crate) fn run(&mut self, job: &Job) -> Result<Measured, Error> {
        let seconds = match job.limit {
            Limit::Seconds(seconds) => job.ramp + seconds,
            Limit::Requests(_) => job.ramp,
        };
        let begin = Instant::now();
        let before = self.processor_seconds()?;
        writeln!(self.input, "{}", serde_json::to_string(job)?)?;
        self.input.flush()?;
        match self.response(Duration::from_secs_f64(seconds) + MARGIN)? {
            Response::Done(outcome) => Ok(Measured {
                outcome,
                host_seconds: begin.elapsed().as_secs_f64(),
                processor_seconds: self.processor_seconds()? - before,
            }),
            Response::Failed { reason } => Err(reason.into()),
            Response::Ready { .. } => Err("the guest started anew".into()),
        }
    }

    fn processor_seconds(&self) -> Result<f64, Error> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let ticks = processor_ticks(&text).ok_or_else(|| format!("no processor time in {text:?}"))?;
        Ok(ticks as f64 / TICKS_PER_SECOND)
    }

    /// The next response; other lines are the kernel's.
    fn response(&self, deadline: Duration) -> Result<Response, Error> {
        let end = Instant::now() + deadline;
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => match serde_json::from_str(line.trim()) {
                    Ok(response) => return Ok(response),
                    Err(_) => seen.push(line),
                },
                Err(error) => {
                    let tail = seen.get(seen.len().saturating_sub(TAIL)..).unwrap_or_default().join("\n");
                    let waited = deadline.as_secs();
                    return Err(
                        format!("no response within {waited} s ({error}); the console:\n{tail}").into()
                    );
                }
            }
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Both fail only where it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads on in a thread, so that the guest never waits for us.
fn read_lines(serial: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(serial);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                break;
            }
            line.clear();
        }
    });
    lines
}

/// `utime` and `stime` of `/proc/PID/stat`, whose second field is a name that may have anything in it.
fn processor_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_follows_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 123 45 6 7 20 0 3 0 1000 2000 300\n";
        assert_eq!(processor_ticks(stat), Some(168));
        assert_eq!(processor_ticks("7 (a) S 1 7"), None);
    }

    #[test]
    fn a_clock_that_stands_still_is_seen() {
        let measured = |p50, all_seconds, host_seconds| {
            let outcome = Outcome {
                requests: 9,
                bytes: 9,
                seconds: 2.0,
                p50,
                p99: 9,
                all_requests: 9,
                syncs: 0,
                all_seconds,
            };
            Measured { outcome, processor_seconds: 0.0, host_seconds }
        };
        assert_eq!(measured(5, 2.2, 2.9).doubt(), None);
        assert!(measured(5, 2.2, 3.0).doubt().unwrap().contains("3.0 s by the host"));
        assert!(measured(5, 2.2, 1.4).doubt().unwrap().contains("2.2 s by the guest"));
        assert!(measured(0, 2.2, 2.2).doubt().unwrap().contains("no time"));
    }

    #[test]
    fn lines_of_a_console_are_separated() {
        let lines = read_lines(&b"[ 0.1] kernel\r\n{\"ready\":{\"bytes\":512}}\r\nend"[..]);
        let seen: Vec<String> = lines.iter().collect();
        assert_eq!(seen, ["[ 0.1] kernel", "{\"ready\":{\"bytes\":512}}", "end"]);
    }
}
