//! The part that runs in the nested host: starts the contenders in turn, by the host's own clock.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::contender::Contender;
use crate::isolation;
use crate::launcher;
use crate::report::Sample;
use crate::start::Start;
use crate::{Error, parse_list};
use vireo_tests::memory::{self, Ram};

/// One start, marker and power-off, with the emulated host at its slowest.
const START: Duration = Duration::from_secs(180);

/// What is to be measured.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) runs: u32,
    pub(crate) start: Start,
    pub(crate) memory_mib: u32,
    pub(crate) command_line: String,
    pub(crate) contenders: Vec<Contender>,
    /// Where the programs are.
    pub(crate) programs: PathBuf,
    /// On this host, and in no nested one.
    pub(crate) here: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            runs: 5,
            start: Start::Kernel { full: false },
            memory_mib: 256,
            command_line: "console=ttyS0 quiet panic=-1".to_owned(),
            contenders: Contender::USUAL.to_vec(),
            programs: PathBuf::from("/in"),
            here: false,
        }
    }
}

impl Plan {
    /// Reads the options.
    pub(crate) fn parse(parser: &mut lexopt::Parser) -> Result<Self, lexopt::Error> {
        use lexopt::prelude::*;
        let mut plan = Self::default();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("runs") => plan.runs = parser.value()?.parse()?,
                Long("memory") => plan.memory_mib = parser.value()?.parse()?,
                Long("here") => plan.here = true,
                Long("cmdline") => plan.command_line = parser.value()?.string()?,
                Long("start") => plan.start = parser.value()?.parse_with(Start::parse)?,
                Long("only") => {
                    plan.contenders = parser.value()?.parse_with(|text| parse_list(&Contender::ALL, text))?;
                }
                other => return Err(other.unexpected()),
            }
        }
        Ok(plan)
    }

    /// The command line of `bench` that runs this plan here.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let names: Vec<String> = self.contenders.iter().map(Contender::to_string).collect();
        let words = [
            "inside".to_owned(),
            format!("--runs={}", self.runs),
            format!("--start={}", self.start.name()),
            format!("--memory={}", self.memory_mib),
            format!("--cmdline={}", self.command_line),
            format!("--only={}", names.join(",")),
        ];
        words.to_vec()
    }

    /// For all of it.
    pub(crate) fn deadline(&self) -> Duration {
        START * (self.runs + 1) * u32::try_from(self.contenders.len()).unwrap_or(u32::MAX)
    }
}

/// Runs the iterations, after one that only warms the host's caches, and reports their samples.
pub(crate) fn run(plan: &Plan, mut report: impl FnMut(Sample) -> Result<(), Error>) -> Result<(), Error> {
    if plan.contenders.contains(&Contender::Isolated) {
        if matches!(plan.start, Start::Disk(_)) {
            return Err("isolated is measured without disks: --start cloud, full or answer".into());
        }
        isolation::prepare()?;
    }
    if plan.start == Start::Answer && !plan.contenders.iter().all(|contender| contender.is_launcher()) {
        return Err("launchers alone answer: --only launcher,bare,isolated".into());
    }
    for round in 0..=plan.runs {
        for contender in &plan.contenders {
            plan.start.prepare()?;
            if !plan.here {
                overwrite_free_memory()?;
            }
            let sample = measure(*contender, plan).map_err(|error| format!("{contender}: {error}"))?;
            if round == 0 {
                eprintln!("warm-up: {contender} {:.0} ms", sample.millis);
            } else {
                report(sample)?;
            }
        }
    }
    Ok(())
}

/// Under emulation the first writes to memory that held code are slow: each one drops what was translated from there.
/// A guest in the memory of the one before would pay for that, up to half its start, and hardware knows no such cost.
fn overwrite_free_memory() -> Result<(), Error> {
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let free = info.lines().find_map(|line| line.strip_prefix("MemFree:")).ok_or("no MemFree")?;
    let kib: usize = free.trim().trim_end_matches("kB").trim().parse()?;
    // The rest is for the page tables of it, and for who else needs some meanwhile.
    std::hint::black_box(vec![1_u8; kib * 1024 / 16 * 15]);
    Ok(())
}

fn measure(contender: Contender, plan: &Plan) -> Result<Sample, Error> {
    let Some(words) = contender.command(plan) else { return launcher::measure(contender, plan) };
    let (program, arguments) = words.split_first().ok_or("an empty command")?;
    let start = Instant::now();
    let mut child =
        Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or("no standard output")?;
    let result = wait_for_mark(output, start, plan.start.mark()).and_then(|elapsed| {
        let ram = match contender {
            Contender::Qemu => Ram::Anonymous { bytes: u64::from(plan.memory_mib) << 20 },
            _ => Ram::Ours,
        };
        let kib = memory::beside(child.id(), ram)?;
        if plan.start.shuts_down() {
            let mut input = child.stdin.take().ok_or("no standard input")?;
            input.write_all(b"\n")?;
        }
        Ok(Sample { contender, millis: elapsed.as_secs_f64() * 1e3, kib })
    });
    finish(plan, result, |kill| end(&mut child, kill))
}

/// Ends what was measured, which ends by itself or is killed. The error of the run, and else that of its end.
pub(crate) fn finish<E>(
    plan: &Plan,
    result: Result<Sample, Error>,
    end: impl FnOnce(bool) -> Result<(), E>,
) -> Result<Sample, Error>
where
    Error: From<E>,
{
    let ended = end(result.is_err() || !plan.start.shuts_down());
    let sample = result?;
    ended?;
    Ok(sample)
}

/// Waits for a guest to power off, or kills it.
pub(crate) fn end(child: &mut Child, kill: bool) -> Result<(), Error> {
    if kill {
        child.kill()?;
    }
    child.wait()?;
    Ok(())
}

/// How long after `start` the guest's `mark` came out of `serial`. What follows is read and dropped, so that the guest
/// never waits for us.
pub(crate) fn wait_for_mark(
    mut serial: impl Read + Send + 'static,
    start: Instant,
    mark: &'static str,
) -> Result<Duration, Error> {
    let (found, is_found) = mpsc::channel();
    std::thread::spawn(move || {
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        let mut done = false;
        while let Ok(count) = serial.read(&mut buffer) {
            let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else { break };
            if done {
                continue;
            }
            seen.extend_from_slice(bytes);
            if seen.windows(mark.len()).any(|window| window == mark.as_bytes()) {
                done = true;
                // The receiver may have given up at its deadline.
                let _ = found.send(Ok(start.elapsed()));
            }
        }
        if !done {
            let _ = found.send(Err(String::from_utf8_lossy(&seen).into_owned()));
        }
    });
    match is_found.recv_timeout(START) {
        Ok(Ok(elapsed)) => Ok(elapsed),
        Ok(Err(seen)) => Err(format!("the guest never printed {mark:?}; its console:\n{seen}").into()),
        Err(_) => Err(format!("the guest did not print {mark:?} within {} s", START.as_secs()).into()),
    }
}
