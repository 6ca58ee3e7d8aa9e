//! `bench boot`: how soon a guest's first process runs (or a disk's login prompt shows), and what its monitor costs
//! beside its RAM, under `vmm`, under the whole launcher and under QEMU's q35, in one nested host. `bench io`: requests to a
//! guest's disk, and `bench net`: its network, likewise. `hack/bench` builds what this measures; the programs are the ones beside this one.

mod contender;
mod inside;
mod io;
mod isolation;
mod launcher;
mod net;
mod report;
mod serial;
mod start;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde::de::DeserializeOwned;
use vireo_tests::{Host, HostBuilder};

use self::contender::Contender;
use self::inside::Plan;
use self::report::Sample;
use self::start::Start;

const USAGE: &str = "\
usage: bench boot [--runs N] [--start WHAT] [--memory MIB] [--only vmm,launcher,qemu,bare,isolated]
                  [--cmdline TEXT] [--here]
       bench io [--rounds N] [--seconds N] [--only vmm,vmm-direct,launcher,launcher-direct,qemu-direct,qemu-cached]
                [--stores warm,cold,null,qcow2] [--queues N] [--host-cpus N]
       bench net [--rounds N] [--seconds N] [--only vmm,vmm-vhost,qemu,qemu-vhost] [--queues 1,2] [--host-cpus N] [--other FILE]

boot measures starts in one nested host, a round of all contenders after the other, and prints the medians.
  --runs     rounds (default 5)
  --start    cloud (default) or full: a kernel of Debian's; bios or efi: the guest image's disk by its firmware,
             up to its login prompt; answer: no guest, launchers until they answer and have their files
  --here     with --start answer: on this host and not in a nested one; as root
  --memory   RAM of the guest in MiB (default 256)
  --only     what runs the guest (default vmm,launcher,qemu); bare is the launcher as root without filters, isolated
             the launcher as the node agent starts it; with both, what isolation adds is printed
  --cmdline  kernel command line (default \"console=ttyS0 quiet panic=-1\")

io measures requests to a disk in one nested host, a round of all stores and monitors after the other, and prints the
medians and their ratios to the better QEMU.
  --rounds     rounds (default 3)
  --seconds    time of each job (default 2)
  --only       what runs the guests (default all; vmm is measured but for qcow2, launcher with that alone)
  --stores     what the disk is on (default all)
  --queues     of the disk, with as many vCPUs, each of which makes requests; more than one is not measured on qcow2 (default 1)
  --host-cpus  CPUs of the nested host (default 1)

net measures TCP, UDP and round trips between a guest and the nested host, likewise.
  --queues   queue pairs of the NIC, with as many vCPUs and connections (default 1,2)
  --other    another build of vmm, which is measured beside this one";

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
    match verb.as_str() {
        "boot" => boot(&Plan::parse(&mut parser)?),
        "inside" => inside::run(&Plan::parse(&mut parser)?, |sample| {
            println!("{}", serde_json::to_string(&sample)?);
            Ok(())
        }),
        "io" => io::run(&io::Plan::parse(&mut parser)?),
        "io-inside" => io::run_inside(&io::Plan::parse(&mut parser)?),
        "net" => net::run(&net::Plan::parse(&mut parser)?),
        "net-inside" => net::run_inside(&net::Plan::parse(&mut parser)?),
        other => Err(format!("no such benchmark: {other}\n{USAGE}").into()),
    }
}

/// Some of `all`, named with commas between them.
fn parse_list<T: Copy + Display>(all: &[T], text: &str) -> Result<Vec<T>, String> {
    text.split(',')
        .map(|name| {
            let found = all.iter().copied().find(|item| item.to_string() == name);
            let names = || all.iter().map(T::to_string).collect::<Vec<_>>().join(", ");
            found.ok_or_else(|| format!("{name:?} is none of {}", names()))
        })
        .collect()
}

fn boot(plan: &Plan) -> Result<(), Error> {
    let programs = std::env::current_exe()?.parent().map(Path::to_owned).unwrap_or_default();
    if plan.here {
        return boot_here(Plan { programs, ..plan.clone() });
    }
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
    let samples: Vec<Sample> = samples(&text)?;
    print!("{}", report::table(&samples));
    Ok(())
}

/// On this host: of what needs no guest.
fn boot_here(plan: Plan) -> Result<(), Error> {
    if plan.start != Start::Answer {
        return Err("a nested host has the KVM that guests need: --here is for --start answer".into());
    }
    let mut samples = Vec::new();
    inside::run(&plan, |sample| {
        samples.push(sample);
        Ok(())
    })?;
    print!("{}", report::table(&samples));
    Ok(())
}

/// The samples among the lines that a bench printed in the nested host: those of JSON.
fn samples<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, Error> {
    let lines = text.lines().filter(|line| line.starts_with('{'));
    Ok(lines.map(serde_json::from_str).collect::<Result<_, _>>()?)
}

fn start_host(programs: &Path, scratch: &Path, plan: &Plan) -> Result<Host, Error> {
    let program = |name: &str| -> PathBuf { programs.join(name) };
    let mut builder = HostBuilder::new(program("nested"))
        .to_measure()
        .memory_mib(1536 + plan.memory_mib)
        .deadline(plan.deadline() + Duration::from_secs(120))
        .file(program("bench"));
    if plan.contenders.contains(&Contender::Vmm) {
        builder = builder.file(program("vmm"));
    }
    if plan.contenders.iter().any(|contender| contender.is_launcher()) {
        builder = builder.file(program("virt-launcher"));
    }
    Ok(plan.start.provide(builder, scratch)?.start()?)
}
