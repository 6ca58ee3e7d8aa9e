//! A guest that carries out the jobs it is given over its serial line.

use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::runtime::{self, Runtime};
use tonic::transport::Channel;
use vireo_proto::launcher::launcher_client::LauncherClient;
use vireo_proto::launcher::{Disk, disk, disk_source};
use vireo_tests::io_load::{Job, Limit, Outcome, Response};

use super::Plan;
use super::monitor::{COMMAND_LINE, MEMORY_MIB, Monitor};
use super::store::Store;
use crate::serial::Serial;
use crate::{Error, launcher};

/// Until the guest's first process, with the emulated host at its slowest.
const START: Duration = Duration::from_secs(180);
/// What a job may take beside its own time.
const MARGIN: Duration = Duration::from_secs(60);
/// What a job may take in the host beyond its time in the guest, in seconds: the serial line and the guest's buffers.
const CLOCKS_APART: f64 = 0.5;
/// A running guest. Dropping it kills its monitor.
pub(crate) struct Guest {
    serial: Serial,
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
    pub(crate) fn start(monitor: Monitor, store: Store, plan: &Plan) -> Result<Self, Error> {
        let guest = match monitor.command(store, plan.queues, plan.peer.as_ref()) {
            Some(words) => Self { serial: Serial::spawn(&words)?, _launcher: None },
            None => Self::from_launcher(monitor, store)?,
        };
        match guest.serial.response(START)? {
            Response::Ready { .. } => Ok(guest),
            other => Err(format!("{other:?} where the guest is to be ready").into()),
        }
    }

    fn from_launcher(monitor: Monitor, store: Store) -> Result<Self, Error> {
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
        let cache = if monitor.is_direct() { disk::Cache::None } else { disk::Cache::Writeback };
        let disks = vec![Disk { cache: cache.into(), ..launcher::disk(source) }];
        let boot = launcher::kernel(COMMAND_LINE);
        let request = launcher::request_for(boot, MEMORY_MIB, disks, directory.path());
        let mut child = launcher::spawn(directory.path())?;
        let launched = runtime.block_on(launcher::launch(directory.path(), start, request)).and_then(
            |(client, console)| {
                let output = console.try_clone()?;
                Ok((client, console, output))
            },
        );
        match launched {
            Ok((client, console, output)) => {
                let launcher = Some((client, runtime, directory));
                Ok(Self { serial: Serial::over(child, console, output), _launcher: launcher })
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
        let before = self.serial.processor_seconds()?;
        self.serial.send(job)?;
        match self.serial.response(Duration::from_secs_f64(seconds) + MARGIN)? {
            Response::Done(outcome) => Ok(Measured {
                outcome,
                host_seconds: begin.elapsed().as_secs_f64(),
                processor_seconds: self.serial.processor_seconds()? - before,
            }),
            Response::Failed { reason } => Err(reason.into()),
            Response::Ready { .. } => Err("the guest started anew".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
