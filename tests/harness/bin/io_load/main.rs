//! Runs in a guest and loads a disk with requests: the part of `bench io` that a benchmark would otherwise leave to fio.

mod aio;
mod pattern;

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::ExitCode;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use vireo_tests::io_load::{Job, Limit, Outcome, Response};

use self::aio::Aio;
use self::pattern::{Operation, Pattern};

const USAGE: &str = "\
usage: io-load DEVICE

Opens DEVICE with O_DIRECT, carries out the jobs of standard input and answers each with a line of JSON. A job is a line:
  {\"mode\": \"mixed\", \"block\": 4096, \"depth\": 8, \"limit\": {\"seconds\": 2}, \"ramp\": 0.2}
  mode   random-read, random-write, sequential-read, or mixed: 70 % reads, 30 % writes, an fdatasync every 16 writes
  block  bytes of a request
  depth  requests in flight
  limit  {\"seconds\": N} or {\"requests\": N}
  ramp   seconds before anything counts
  threads  each with as many requests in flight, on a CPU of its own; default: 1
Writes destroy what DEVICE has. An empty line, or the end of the input, ends the program.";

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let [device] = words.as_slice() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match serve(device) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("io-load: {device}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(device: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(device)?;
    let bytes = file.seek(SeekFrom::End(0))?;
    respond(&Response::Ready { bytes })?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        if line.trim().is_empty() {
            break;
        }
        let outcome = serde_json::from_str(&line)
            .map_err(|error| format!("{line:?} is no job: {error}"))
            .and_then(|job: Job| job.validate(bytes).map(|()| job))
            .and_then(|job| run(&file, &job, bytes).map_err(|error| format!("{job:?}: {error}")));
        respond(&match outcome {
            Ok(outcome) => Response::Done(outcome),
            Err(reason) => Response::Failed { reason },
        })?;
    }
    Ok(())
}

fn respond(response: &Response) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{}", serde_json::to_string(response)?)?;
    output.flush()
}

/// A request in flight.
#[derive(Clone, Copy)]
struct InFlight {
    since: Instant,
    is_sync: bool,
}

/// Has each of the job's threads carry out its part, at the same time.
fn run(file: &File, job: &Job, device_bytes: u64) -> io::Result<Outcome> {
    let begin = Instant::now();
    let mut tallies = if job.threads > 1 {
        std::thread::scope(|scope| {
            let start = |thread| {
                scope.spawn(move || {
                    use_cpu(thread)?;
                    load(file, job, thread, device_bytes, begin)
                })
            };
            let threads: Vec<_> = (0..job.threads).map(start).collect();
            let join = |thread: ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
            };
            threads.into_iter().map(join).collect::<io::Result<Vec<_>>>()
        })?
    } else {
        vec![load(file, job, 0, device_bytes, begin)?]
    };
    let mut all = tallies.remove(0);
    tallies.into_iter().for_each(|tally| all.add(tally));
    Ok(all.outcome(u64::from(job.block), begin.elapsed()))
}

/// The calling thread runs on this CPU alone.
fn use_cpu(number: u32) -> io::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(usize::try_from(number).map_err(io::Error::other)?);
    sched_setaffinity(None, &cpus)
        .map_err(|errno| io::Error::other(format!("there is no CPU {number} for a thread: {errno}")))
}

/// Keeps a thread's number of requests in flight until its end, and waits for the last ones.
fn load(file: &File, job: &Job, thread: u32, device_bytes: u64, begin: Instant) -> io::Result<Tally> {
    let depth = usize::try_from(job.depth).unwrap_or(usize::MAX);
    let mut aio = Aio::new(file, depth, usize::try_from(job.block).unwrap_or(usize::MAX))?;
    let mut pattern = Pattern::new(job, thread, device_bytes);
    let mut start = |aio: &mut Aio, slot| {
        let operation = pattern.next();
        let since = Instant::now();
        aio.submit(slot, operation)?;
        Ok::<_, io::Error>(InFlight { since, is_sync: operation == Operation::Sync })
    };
    let counts_from = begin + Duration::from_secs_f64(job.ramp);
    let mut slots = (0..depth).map(|slot| start(&mut aio, slot)).collect::<io::Result<Vec<_>>>()?;
    let mut tally = Tally::new(job.limit, counts_from);
    let mut in_flight = depth;
    while in_flight > 0 {
        for slot in aio.wait()? {
            let request = slots.get_mut(slot).ok_or(io::ErrorKind::InvalidData)?;
            tally.completed(*request, Instant::now());
            if tally.is_over {
                in_flight -= 1;
            } else {
                *request = start(&mut aio, slot)?;
            }
        }
    }
    Ok(tally)
}

/// What has been measured so far.
struct Tally {
    limit: Limit,
    counts_from: Instant,
    /// When the last request completed that counts.
    counts_to: Instant,
    is_over: bool,
    micros: Vec<u32>,
    all_requests: u64,
    syncs: u64,
}

impl Tally {
    fn new(limit: Limit, counts_from: Instant) -> Self {
        // The list's growth is not to delay requests.
        let micros = Vec::with_capacity(1 << 20);
        Self { limit, counts_from, counts_to: counts_from, is_over: false, micros, all_requests: 0, syncs: 0 }
    }

    fn completed(&mut self, request: InFlight, now: Instant) {
        if let Limit::Seconds(seconds) = self.limit {
            self.is_over |= now.saturating_duration_since(self.counts_from).as_secs_f64() > seconds;
        }
        if request.is_sync {
            self.syncs += 1;
            return;
        }
        self.all_requests += 1;
        if self.is_over || now < self.counts_from {
            return;
        }
        let micros = now.saturating_duration_since(request.since).as_micros();
        self.micros.push(u32::try_from(micros).unwrap_or(u32::MAX));
        self.counts_to = now;
        if let Limit::Requests(count) = self.limit {
            self.is_over = self.micros.len() as u64 >= count;
        }
    }

    /// Adds what another thread has measured meanwhile.
    fn add(&mut self, other: Self) {
        self.counts_to = self.counts_to.max(other.counts_to);
        self.micros.extend(other.micros);
        self.all_requests += other.all_requests;
        self.syncs += other.syncs;
    }

    fn outcome(mut self, block: u64, all: Duration) -> Outcome {
        self.micros.sort_unstable();
        let requests = self.micros.len() as u64;
        let seconds = match self.limit {
            Limit::Seconds(seconds) => seconds,
            Limit::Requests(_) => self.counts_to.saturating_duration_since(self.counts_from).as_secs_f64(),
        };
        Outcome {
            requests,
            bytes: requests * block,
            seconds,
            p50: percentile(&self.micros, 50),
            p99: percentile(&self.micros, 99),
            all_requests: self.all_requests,
            syncs: self.syncs,
            all_seconds: all.as_secs_f64(),
        }
    }
}

/// The value that `percent` of the sorted values do not exceed; 0 where there is none.
fn percentile(sorted: &[u32], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0).into()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use vireo_tests::io_load::Mode;

    use super::*;

    const JOB: Job = Job {
        mode: Mode::RandomWrite,
        block: 4096,
        depth: 4,
        limit: Limit::Requests(400),
        ramp: 0.0,
        threads: 1,
    };

    #[test]
    fn percentiles_are_values_that_occurred() {
        let hundred: Vec<u32> = (1..=100).collect();
        assert_eq!([50, 99, 100].map(|percent| percentile(&hundred, percent)), [50, 99, 100]);
        assert_eq!(percentile(&[7], 50), 7);
        assert_eq!(percentile(&[1, 2, 3], 50), 2);
        assert_eq!(percentile(&[], 99), 0);
    }

    #[test]
    fn only_what_completes_between_ramp_and_end_counts() {
        let from = Instant::now();
        let at = |millis| from + Duration::from_millis(millis);
        let request = |millis| InFlight { since: at(millis), is_sync: false };
        let mut tally = Tally::new(Limit::Seconds(2.0), at(1000));
        tally.completed(request(0), at(999));
        tally.completed(request(0), at(1001));
        tally.completed(InFlight { since: at(0), is_sync: true }, at(2000));
        tally.completed(request(2000), at(3000));
        assert!(!tally.is_over);
        tally.completed(request(2000), at(3001));
        assert!(tally.is_over);
        let outcome = tally.outcome(512, Duration::from_secs(3));
        assert_eq!((outcome.requests, outcome.all_requests, outcome.syncs), (2, 4, 1));
        assert_eq!((outcome.bytes, outcome.p50, outcome.p99), (1024, 1_000_000, 1_001_000));
        assert!((outcome.seconds - 2.0).abs() < f64::EPSILON);
    }

    /// A file of zeros, 64 blocks long.
    fn device() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 * 4096).unwrap();
        file
    }

    #[test]
    fn writes_reach_all_blocks_and_nothing_beyond() {
        let mut file = device();
        let outcome = run(&file, &JOB, 64 * 4096).unwrap();
        assert_eq!((outcome.requests, outcome.bytes, outcome.syncs), (400, 400 * 4096, 0));
        // Those that were in flight at the end.
        assert_eq!(outcome.all_requests, 403);
        let mut content = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut content).unwrap();
        assert_eq!(content.len(), 64 * 4096);
        let written = content.chunks(4096).filter(|block| block.iter().all(|byte| *byte == 0x5a)).count();
        assert!(written > 60, "400 writes to 64 blocks reached {written}");
    }

    #[test]
    fn each_thread_has_its_requests() {
        let parallelism = std::thread::available_parallelism().unwrap().get();
        let threads = u32::try_from(parallelism.min(2)).unwrap();
        let outcome = run(&device(), &Job { threads, ..JOB }, 64 * 4096).unwrap();
        assert_eq!(outcome.requests, 400 * u64::from(threads));
        assert_eq!(outcome.all_requests, 403 * u64::from(threads));
        let error = run(&device(), &Job { threads: 64, ..JOB }, 64 * 4096);
        assert!(parallelism >= 64 || error.unwrap_err().to_string().contains("no CPU"));
    }

    #[test]
    fn mixed_requests_are_synchronized() {
        let job = Job { mode: Mode::Mixed, ..JOB };
        let outcome = run(&device(), &job, 64 * 4096).unwrap();
        assert_eq!(outcome.requests, 400);
        // 120 of the 400 write, on average.
        assert!((5..=9).contains(&outcome.syncs), "{}", outcome.syncs);
    }

    #[test]
    fn a_request_past_the_end_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(100).unwrap();
        let job = Job { mode: Mode::SequentialRead, ..JOB };
        let error = run(&file, &job, 4096).unwrap_err();
        assert!(error.to_string().contains("100 bytes"), "{error}");
    }
}
