//! `nested -- CMD ARGS`: runs a command of the test host in a nested host, where `/dev/kvm` is real.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use vireo_tests::agent::{self, Channel};
use vireo_tests::{HostBuilder, HostError, Image, Status};

const USAGE: &str = "\
usage: nested [--smp N] [--memory MIB] [--file SRC[:NAME]]... [--tree DIR[:NAME]]... [--out DIR] [--tap NAME]
              [--disk IMAGE] [--spare-device] [--deadline SECONDS] [--] CMD [ARG]...
       nested --prepare

Boots a host with emulated SVM, loads kvm-amd, runs CMD in it and exits as it does.
  CMD          a file here is given to the host and run there; any other name is one of the host's own programs
  --file SRC   give SRC to the host as /in/NAME (default: its own name); an ARG that is exactly SRC becomes that
  --tree DIR   give all files of DIR to the host below /in/NAME (default: its own name)
  --out DIR    the host sees DIR as /out, writable
  --tap NAME   connect the host's eth0 to this tap device, which exists (default: the host has no NIC)
  --disk IMAGE the host has the raw IMAGE as /dev/vdb, writable (default: none)
  --spare-device  give the host devices to pass on to a guest: PCI devices with an IOMMU, a USB disk
  --memory     RAM of the host in MiB (default 2048)
  --smp        CPUs of the host (default 1)
  --deadline   when everything is killed (default 300)
  --prepare    only make the image of the host, where it is not there: later starts need no network";

fn main() -> ExitCode {
    match Arguments::parse() {
        Ok(Arguments::Agent(channel)) => match agent::serve(channel) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        },
        Ok(Arguments::Relay(address)) => match agent::relay(&address) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        },
        Ok(Arguments::Prepare) => match Image::get() {
            Ok(_) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        },
        Ok(Arguments::Run(run)) => run.go().unwrap_or_else(|error| fail(&error)),
        Ok(Arguments::Help) => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("nested: {error}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    eprintln!("nested: {text}");
    ExitCode::from(125)
}

enum Arguments {
    Help,
    Agent(Channel),
    Relay(String),
    Prepare,
    Run(Run),
}

struct Run {
    cpus: u32,
    memory_mib: u32,
    deadline: Duration,
    files: Vec<(PathBuf, String)>,
    trees: Vec<(PathBuf, String)>,
    tap: Option<String>,
    disk: Option<PathBuf>,
    spare_device: bool,
    output: Option<PathBuf>,
    command: Vec<String>,
}

impl Arguments {
    fn parse() -> Result<Self, lexopt::Error> {
        use lexopt::prelude::*;
        let mut run = Run {
            cpus: 1,
            memory_mib: 2048,
            deadline: Duration::from_secs(300),
            files: Vec::new(),
            trees: Vec::new(),
            tap: None,
            disk: None,
            spare_device: false,
            output: None,
            command: Vec::new(),
        };
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("agent") => return Ok(Self::Agent(Channel::Port)),
                Long("agent-here") => return Ok(Self::Agent(Channel::Stdio)),
                Long("relay") => return Ok(Self::Relay(parser.value()?.string()?)),
                Long("prepare") => return Ok(Self::Prepare),
                Long("help") | Short('h') => return Ok(Self::Help),
                Long("smp") => run.cpus = parser.value()?.parse()?,
                Long("memory") => run.memory_mib = parser.value()?.parse()?,
                Long("deadline") => run.deadline = Duration::from_secs(parser.value()?.parse()?),
                Long("file") => run.files.push(file(&parser.value()?.string()?)),
                Long("tree") => run.trees.push(file(&parser.value()?.string()?)),
                Long("tap") => run.tap = Some(parser.value()?.string()?),
                Long("disk") => run.disk = Some(parser.value()?.into()),
                Long("spare-device") => run.spare_device = true,
                Long("out") => run.output = Some(parser.value()?.into()),
                Value(program) => {
                    run.command.push(program.string()?);
                    for rest in parser.raw_args()? {
                        run.command.push(rest.string()?);
                    }
                }
                _ => return Err(argument.unexpected()),
            }
        }
        if run.command.is_empty() {
            return Err("no command".into());
        }
        Ok(Self::Run(run))
    }
}

/// `SRC` or `SRC:NAME`.
fn file(text: &str) -> (PathBuf, String) {
    match text.rsplit_once(':') {
        Some((source, name)) => (source.into(), name.to_owned()),
        None => {
            let name = Path::new(text).file_name().unwrap_or_default().to_string_lossy();
            (text.into(), name.into_owned())
        }
    }
}

impl Run {
    fn go(mut self) -> Result<ExitCode, HostError> {
        let own = std::env::current_exe().map_err(HostError::Start)?;
        if let Some(program) =
            self.command.first().filter(|name| name.contains('/') && Path::new(name).is_file())
        {
            self.files.push(file(program));
        }
        let mut builder =
            HostBuilder::new(own).cpus(self.cpus).memory_mib(self.memory_mib).deadline(self.deadline);
        for (source, name) in &self.files {
            builder = builder.file_as(source, name.clone());
        }
        for (source, name) in &self.trees {
            builder = builder.tree(source, name)?;
        }
        if let Some(tap) = self.tap {
            builder = builder.tap(tap);
        }
        if let Some(disk) = self.disk {
            builder = builder.disk(disk);
        }
        if self.spare_device {
            builder = builder.spare_device();
        }
        if let Some(output) = &self.output {
            builder = builder.output(output);
        }
        let host = builder.start()?;
        let mut words = self.command.into_iter().map(|word| {
            let given = self.files.iter().find(|(source, _)| source.as_os_str() == word.as_str());
            given.map_or(word, |(_, name)| format!("/in/{name}"))
        });
        let program = words.next().unwrap_or_default();
        let mut command =
            host.command(&program).args(words).directory("/tmp").stream().deadline(self.deadline);
        for (name, value) in std::env::vars().filter(|(name, _)| passed_on(name)) {
            command = command.env(&name, &value);
        }
        Ok(match command.run()?.status {
            Status::Code(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
            Status::Signal(number) => {
                eprintln!("nested: killed by signal {number}");
                ExitCode::from(u8::try_from(128 + number).unwrap_or(128))
            }
            Status::NotStarted(why) => {
                eprintln!("nested: cannot start {program}: {why}");
                ExitCode::from(127)
            }
        })
    }
}

/// What test binaries and our own programs look at.
fn passed_on(name: &str) -> bool {
    ["RUST_", "NEXTEST", "VIREO_", "PROPTEST_"].iter().any(|prefix| name.starts_with(prefix))
}
