//! Filters of the system calls of a launcher.
//!
//! Where its VM runs on the monitor, one filter holds for the whole process from before its VM is built. Each thread of a vCPU
//! or a device adds a narrower one. Where it drives QEMU, one filter holds for the process from QEMU's start on; QEMU has its
//! own (`-sandbox on`). What is allowed is data: [`table`], and what every program may call. A call that is not allowed ends
//! the launcher, and its log names the call.

#[cfg(test)]
mod page;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tracing::{error, warn};
use vireo_privileges::seccomp::{Filters, Rejected, Seccomp, SeccompError, table as shared};
use vireo_vmm::config::{ThreadHook, ThreadKind};

use crate::fault::chain;
use table::{ALLOWED, FAILING, Thread};

/// The program that the log names.
const PROGRAM: &str = "virt-launcher";

/// Restricts every thread of this process, whose VM runs on the monitor. Returns what restricts those of vCPUs and devices
/// further, after `prepare`.
///
/// # Errors
/// When a filter cannot be set. The process may be restricted in part then.
pub fn restrict_monitor(
    seccomp: Seccomp,
    prepare: impl Fn(ThreadKind) + Send + Sync + 'static,
) -> Result<ThreadHook, SeccompError> {
    if restrict(seccomp, Thread::Other)? == Restricted::No {
        return Ok(ThreadHook::new(prepare));
    }
    let narrower = Arc::new((compile(seccomp, Thread::Vcpu)?, compile(seccomp, Thread::Device)?));
    Ok(ThreadHook::new(move |kind| {
        prepare(kind);
        let filters = match kind {
            ThreadKind::Vcpu => &narrower.0,
            // A kind that is new here gets the narrowest.
            _ => &narrower.1,
        };
        if let Err(error) = filters.apply() {
            error!("{}: the launcher ends", chain(&error));
            std::process::exit(1);
        }
    }))
}

/// Restricts every thread of this process, which has started QEMU and starts nothing else.
///
/// # Errors
/// When a filter cannot be set. The process may be restricted in part then.
pub fn restrict_driver(seccomp: Seccomp) -> Result<(), SeccompError> {
    restrict(seccomp, Thread::Driver).map(drop)
}

#[derive(PartialEq, Eq)]
enum Restricted {
    Yes,
    No,
}

fn restrict(seccomp: Seccomp, thread: Thread) -> Result<Restricted, SeccompError> {
    if seccomp == Seccomp::Off {
        warn!("the system calls of this launcher are not filtered");
        return Ok(Restricted::No);
    }
    seccomp.report_as(PROGRAM)?;
    compile(seccomp, thread)?.apply_to_process()?;
    Ok(Restricted::Yes)
}

/// The filters of one kind of thread. Its own lines are first, where their order matters.
fn compile(seccomp: Seccomp, thread: Thread) -> Result<Filters, SeccompError> {
    let allowed = ALLOWED.iter().filter(|line| thread.is_among(line.threads)).map(|line| &line.allowed);
    let failing = FAILING.iter().filter(|line| thread.is_among(line.threads)).map(|line| &line.failing);
    seccomp.compile(allowed.chain(shared::PROCESS), failing.chain(shared::FAILING), Rejected::Ends)
}
