//! `vmm`: the monitor alone, a kernel on KVM with its serial port on the terminal.

mod args;
mod console;
mod display;
mod log;
mod open;
mod resets;
mod spool;
mod terminal;

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use vireo_vmm::{Exit, Vm};

use args::{Args, Command, HELP};
use console::{Console, Ended};
use display::VncDisplay;
use resets::Resets;

/// Exit codes, as `--help` documents them.
const OK: u8 = 0;
const FAILED: u8 = 1;
const CRASHED: u8 = 3;
const RESET_LOOP: u8 = 4;
const LEFT: u8 = 5;
const SAVED: u8 = 6;

fn main() -> ExitCode {
    limit_arenas();
    log::install();
    let outcome = match args::parse(std::env::args_os()) {
        Ok(Command::Help) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Ok(Command::Version) => {
            println!("vmm {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Ok(Command::Run(args)) => run(&args),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("vmm: {}", chain(error.as_ref()));
            FAILED.into()
        }
    }
}

/// One heap for all threads: each further one would cost a page table and its first pages beside every guest.
fn limit_arenas() {
    // SAFETY: called before there is a second thread, with a documented parameter.
    #[expect(unsafe_code, reason = "the allocator is configured by a C function")]
    let _supported = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// An error and what caused it, on one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

fn run(args: &Args) -> Result<u8, Box<dyn Error>> {
    let config = open::open(args)?;
    config.probe()?;
    // First: the signals it takes over are those of all threads.
    let console = Console::open(&args.serial, args.save.clone())?;
    let mut saved = args.load.as_deref().map(console::read_saved).transpose()?;
    let display = args.vnc.as_ref().map(|address| VncDisplay::open(address, args.video)).transpose()?;
    let config = config.with_graphics(display.as_ref().map(VncDisplay::graphics).transpose()?);
    let mut resets = Resets::new(display.is_some());
    let code = loop {
        let output = Box::new(resets.watch(console.output()));
        let vm = match saved.take() {
            Some(saved) => Vm::load(&config, output, &saved)?,
            // A guest that resets itself boots.
            None => Vm::build(&config, output)?,
        };
        let vm = vm.start()?;
        let started = Instant::now();
        console.attach(vm.controls());
        match vm.wait() {
            Exit::TripleFault if args.exit_on_triple_fault => {
                console.close();
                eprintln!("vmm: the guest crashed: a vCPU triple-faulted");
                break CRASHED;
            }
            Exit::Reset | Exit::TripleFault if resets.is_loop(started.elapsed()) => {
                console.close();
                eprintln!("vmm: the guest resets itself over and over; its console shows why");
                break RESET_LOOP;
            }
            Exit::Reset => {}
            Exit::TripleFault => tracing::warn!("a vCPU of the guest triple-faulted, which resets it"),
            Exit::PowerOff => break OK,
            Exit::Panicked => {
                console.close();
                eprintln!("vmm: the guest crashed: its kernel panicked");
                break CRASHED;
            }
            Exit::WatchdogExpired => {
                console.close();
                eprintln!("vmm: the guest's watchdog expired");
                break CRASHED;
            }
            Exit::Killed => break why_killed(&console),
            Exit::Failed(error) => return Err(error.into()),
        }
    };
    console.close();
    Ok(code)
}

fn why_killed(console: &Console) -> u8 {
    let ended = console.ended();
    console.close();
    match ended {
        Some(Ended::Detached) | None => LEFT,
        Some(Ended::Saved) => {
            eprintln!("vmm: the VM was saved");
            SAVED
        }
        Some(Ended::Signal(signal)) => {
            eprintln!("vmm: ended by signal {signal}");
            FAILED
        }
    }
}
