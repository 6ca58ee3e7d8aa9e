//! `bench boot`: how soon a guest's first process runs (or a disk's login prompt shows), and what its monitor costs
//! beside its RAM, under `vmm`, under the whole launcher and under QEMU's q35, in one nested host. `hack/bench` builds what this measures.

mod contender;
mod inside;
mod launcher;
mod report;
mod start;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use vireo_tests::{Host, HostBuilder};

use self::contender::Contender;
use self::inside::Plan;
use self::report::Sample;
use self::start::Start;

const USAGE: &str = "\
usage: bench boot [--runs N] [--start WHAT] [--memory MIB] [--only vmm,launcher,qemu] [--cmdline TEXT]

Measures in one nested host, a round of all contenders after the other, and prints the medians.
  --runs     rounds (default 5)
  --start    cloud (default) or full: a kernel of Debian's; bios or efi: the guest image's disk by its firmware,
             up to its login prompt
  --memory   RAM of the guest in MiB (default 256)
  --cmdline  kernel command line (default \"console=ttyS0 quiet panic=-1\")";

type Error = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = error.to_string();
            let mut source = error.source();
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            eprintln!("bench: {text}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Error> {
    use lexopt::prelude::*;
    let mut parser = lexopt::Parser::from_env();
    let verb = match parser.next()? {
        Some(Value(verb)) => verb.string()?,
        Some(Long("help") | Short('h')) | None => {
            println!("{USAGE}");
            return Ok(());
        }
        Some(other) => return Err(other.unexpected().into()),
    };
    let mut plan = Plan::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("runs") => plan.runs = parser.value()?.parse()?,
            Long("memory") => plan.memory_mib = parser.value()?.parse()?,
            Long("cmdline") => plan.command_line = parser.value()?.string()?,
            Long("start") => plan.start = parser.value()?.parse_with(Start::parse)?,
            Long("only") => plan.contenders = parser.value()?.parse_with(Contender::parse_list)?,
            other => return Err(other.unexpected().into()),
        }
    }
    match verb.as_str() {
        "boot" => boot(&plan),
        "inside" => inside::run(&plan),
        other => Err(format!("no such benchmark: {other}\n{USAGE}").into()),
    }
}

fn boot(plan: &Plan) -> Result<(), Error> {
    let programs = std::env::current_exe()?.parent().map(Path::to_owned).unwrap_or_default();
    let scratch = tempfile::tempdir()?;
    let host = start_host(&programs, scratch.path(), plan)?;
    eprintln!(
        "bench: {}, {} rounds, {} MiB, {:?}",
        plan.start.name(),
        plan.runs,
        plan.memory_mib,
        plan.command_line
    );
    let output = host.command("/in/bench").args(plan.arguments()).deadline(plan.deadline()).stream().run()?;
    let text = output.ok();
    let samples: Vec<Sample> = text
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    print!("{}", report::table(&samples));
    Ok(())
}

fn start_host(programs: &Path, scratch: &Path, plan: &Plan) -> Result<Host, Error> {
    let program = |name: &str| -> PathBuf { programs.join(name) };
    let mut builder = HostBuilder::new(program("nested"))
        .memory_mib(1536 + plan.memory_mib)
        .deadline(plan.deadline() + Duration::from_secs(120))
        .file(program("bench"));
    if plan.contenders.contains(&Contender::Vmm) {
        builder = builder.file(program("vmm"));
    }
    if plan.contenders.contains(&Contender::Launcher) {
        builder = builder.file(program("virt-launcher"));
    }
    Ok(plan.start.provide(builder, scratch)?.start()?)
}
