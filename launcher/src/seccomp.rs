//! Filters of the system calls of a launcher whose VM runs on the monitor.
//!
//! One filter holds for the whole process from before its VM is built. Each thread of a vCPU or a device adds a narrower one.
//! What is allowed is data: [`table`]. A call that is not allowed ends the launcher, and its log names the call
//! ([`trap`]).
//!
//! QEMU has its own filter (`-sandbox on`); its launcher has none.

mod table;
#[cfg(test)]
mod tests;
mod trap;

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::ValueEnum;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter, apply_filter_all_threads,
};
use tracing::{error, warn};
use vireo_vmm::config::{ThreadHook, ThreadKind};

use crate::fault::chain;
use table::{ALLOWED, Condition, FAILING, Thread};

/// What becomes of a system call that is not allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Seccomp {
    /// It ends the launcher.
    #[default]
    Enforce,
    /// The kernel logs it and carries it out.
    Log,
    /// There is no filter.
    Off,
}

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// The table cannot be translated.
    #[error("cannot compile the filter of system calls")]
    Compile(#[from] BackendError),
    /// The kernel does not take it.
    #[error("cannot set the filter of system calls")]
    Set(#[from] seccompiler::Error),
    /// There is no handler for what it rejects.
    #[error("cannot handle SIGSYS")]
    Handler(#[source] std::io::Error),
}

impl Seccomp {
    /// Restricts every thread of this process. Returns what restricts those of vCPUs and devices further, after `prepare`.
    ///
    /// # Errors
    /// When a filter cannot be set. The process may be restricted in part then.
    pub fn restrict(
        self,
        prepare: impl Fn(ThreadKind) + Send + Sync + 'static,
    ) -> Result<ThreadHook, SeccompError> {
        let unlisted = match self {
            Self::Enforce => SeccompAction::Trap,
            Self::Log => SeccompAction::Log,
            Self::Off => {
                warn!("the system calls of this launcher are not filtered");
                return Ok(ThreadHook::new(prepare));
            }
        };
        trap::handle().map_err(SeccompError::Handler)?;
        let compile = |thread| compile(thread, &unlisted);
        let (process, vcpu, device) =
            (compile(Thread::Other)?, compile(Thread::Vcpu)?, compile(Thread::Device)?);
        process.iter().try_for_each(|filter| apply_filter_all_threads(filter))?;
        let narrower = Arc::new((vcpu, device));
        Ok(ThreadHook::new(move |kind| {
            prepare(kind);
            let filters = match kind {
                ThreadKind::Vcpu => &narrower.0,
                // A kind that is new here gets the narrowest.
                _ => &narrower.1,
            };
            if let Err(error) = filters.iter().try_for_each(|filter| apply_filter(filter)) {
                error!("{}: the launcher ends", chain(&SeccompError::Set(error)));
                std::process::exit(1);
            }
        }))
    }
}

/// The filters of one kind of thread: first those that have calls fail, last the one for what is not allowed. The kernel
/// runs them all, and the strictest answer counts.
fn compile(thread: Thread, unlisted: &SeccompAction) -> Result<Vec<BpfProgram>, BackendError> {
    let mut filters = Vec::new();
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for failing in FAILING.iter().filter(|failing| thread.is_among(failing.threads)) {
        let call = i64::from(failing.call.id());
        // No rule: whatever the arguments are.
        rules.insert(call, Vec::new());
        let action = SeccompAction::Errno(failing.errno.cast_unsigned());
        filters.push(program(BTreeMap::from([(call, Vec::new())]), SeccompAction::Allow, action)?);
    }
    for allowed in ALLOWED.iter().filter(|allowed| thread.is_among(allowed.threads)) {
        let rules = rules.entry(i64::from(allowed.call.id())).or_default();
        if !allowed.when.is_empty() {
            let conditions = allowed.when.iter().map(Condition::compile).collect::<Result<_, _>>()?;
            rules.push(SeccompRule::new(conditions)?);
        }
    }
    filters.push(program(rules, unlisted.clone(), SeccompAction::Allow)?);
    Ok(filters)
}

fn program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    unlisted: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    SeccompFilter::new(rules, unlisted, listed, TargetArch::x86_64)?.try_into()
}

impl Condition {
    /// The kernel reads 32 bits of every argument that has a condition.
    fn compile(&self) -> Result<SeccompCondition, BackendError> {
        let Self { argument, mask, value } = *self;
        SeccompCondition::new(
            argument,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::MaskedEq(mask.into()),
            value.into(),
        )
    }
}
