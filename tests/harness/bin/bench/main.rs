//! `bench boot`: how soon a guest's first process runs, and what its machine costs beside its RAM, under `vmm`, under
//! the whole launcher and under QEMU's q35, in one nested host. `hack/bench` builds what this measures.

mod contender;
mod inside;
mod launcher;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use vireo_tests::{Host, HostBuilder, Image, Initrd, Kernel};

use self::contender::Contender;
use self::inside::Plan;
use self::report::Sample;

const USAGE: &str = "\
usage: bench boot [--runs N] [--kernel cloud|full] [--memory MIB] [--only vmm,launcher,qemu] [--cmdline TEXT]

Measures in one nested host, a round of all contenders after the other, and prints the medians.
  --runs     rounds (default 5)
  --kernel   Debian's cloud kernel (default) or the full one
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

struct Options {
    plan: Plan,
    full_kernel: bool,
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
    let mut options = Options { plan: Plan::default(), full_kernel: false };
    while let Some(argument) = parser.next()? {
        match argument {
            Long("runs") => options.plan.runs = parser.value()?.parse()?,
            Long("memory") => options.plan.memory_mib = parser.value()?.parse()?,
            Long("cmdline") => options.plan.command_line = parser.value()?.string()?,
            Long("kernel") => options.full_kernel = parser.value()?.parse_with(which_kernel)?,
            Long("only") => options.plan.contenders = parser.value()?.parse_with(Contender::parse_list)?,
            other => return Err(other.unexpected().into()),
        }
    }
    match verb.as_str() {
        "boot" => boot(&options),
        "inside" => inside::run(&options.plan),
        other => Err(format!("no such benchmark: {other}\n{USAGE}").into()),
    }
}

fn which_kernel(text: &str) -> Result<bool, String> {
    match text {
        "cloud" => Ok(false),
        "full" => Ok(true),
        other => Err(format!("{other:?} is neither cloud nor full")),
    }
}

fn boot(options: &Options) -> Result<(), Error> {
    let programs = std::env::current_exe()?.parent().map(Path::to_owned).unwrap_or_default();
    let image = Image::get()?;
    let kernel = if options.full_kernel { image.full_kernel()? } else { image.cloud_kernel()? };
    let scratch = tempfile::tempdir()?;
    let initrd = scratch.path().join("initrd");
    write_initrd(&image, &initrd)?;
    let host = start_host(&programs, &kernel, &initrd, &options.plan)?;
    let plan = &options.plan;
    eprintln!(
        "bench: {} rounds, {} MiB, {} ({:.1} MiB), {:?}",
        plan.runs,
        plan.memory_mib,
        kernel.version,
        std::fs::metadata(&kernel.image)?.len() as f64 / f64::from(1 << 20),
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

fn start_host(programs: &Path, kernel: &Kernel, initrd: &Path, plan: &Plan) -> Result<Host, Error> {
    let program = |name: &str| -> PathBuf { programs.join(name) };
    let mut builder = HostBuilder::new(program("nested"))
        .memory_mib(1536 + plan.memory_mib)
        .deadline(plan.deadline() + Duration::from_secs(120))
        .file_as(&kernel.image, "vmlinuz")
        .file_as(initrd, "initrd")
        .file(program("bench"));
    if plan.contenders.contains(&Contender::Vmm) {
        builder = builder.file(program("vmm"));
    }
    if plan.contenders.contains(&Contender::Launcher) {
        builder = builder.file(program("virt-launcher"));
    }
    Ok(builder.start()?)
}

/// A RAM disk whose first process says so at once, waits for a line and powers off.
fn write_initrd(image: &Image, path: &Path) -> std::io::Result<()> {
    let mut initrd = Initrd::with_busybox(&image.busybox())?;
    let init = format!("#!/bin/sh\necho {}\nread -r line\n/bin/busybox poweroff -f\n", inside::MARK);
    initrd.file("init", init.as_bytes())?;
    initrd.save(path)
}
