//! Filters of system calls. What a program may call is data with a reason for each line ([`table`]); what every program of
//! ours needs is there once. A call that is not allowed ends the process, and a line of its log names the call.

pub mod table;
mod trap;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter, apply_filter_all_threads,
};

use table::{Allowed, Condition, Failing};
pub use trap::rejected_call;

/// The variable of the environment that has a [`Seccomp`].
pub const VARIABLE: &str = "VIREO_SECCOMP";

/// What becomes of a system call that is not allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Seccomp {
    /// It ends the process.
    #[default]
    Enforce,
    /// The kernel logs it and carries it out.
    Log,
    /// There is no filter.
    Off,
}

/// What a filter that holds does with a system call that is not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// The process ends, and its log names the call. For programs of ours.
    Ends,
    /// The call fails with this error. For other programs, of which there are many releases.
    Fails(i32),
}

/// Why a text is not a [`Seccomp`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("supported values: \"enforce\", \"log\", \"off\"")]
pub struct ParseSeccompError;

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
    /// The names of all.
    pub const NAMES: [&str; 3] = ["enforce", "log", "off"];

    /// The filters of what is listed: first those that have calls fail, last the one for what is not allowed. The kernel runs
    /// them all, and the strictest answer counts.
    ///
    /// # Errors
    /// When a line cannot be translated.
    pub fn compile<'a>(
        self,
        allowed: impl IntoIterator<Item = &'a Allowed>,
        failing: impl IntoIterator<Item = &'a Failing>,
        rejected: Rejected,
    ) -> Result<Filters, SeccompError> {
        let unlisted = match (self, rejected) {
            (Self::Enforce, Rejected::Ends) => SeccompAction::Trap,
            (Self::Enforce, Rejected::Fails(errno)) => SeccompAction::Errno(errno.cast_unsigned()),
            (Self::Log, _) => SeccompAction::Log,
            (Self::Off, _) => return Ok(Filters::default()),
        };
        Ok(compile(allowed, failing, unlisted)?)
    }

    /// Has a rejected call be reported, with the name of this program, before it ends the process.
    ///
    /// # Errors
    /// When the handler cannot be set.
    pub fn report_as(self, program: &'static str) -> Result<(), SeccompError> {
        match self {
            Self::Off => Ok(()),
            Self::Enforce | Self::Log => trap::handle(program).map_err(SeccompError::Handler),
        }
    }
}

impl FromStr for Seccomp {
    type Err = ParseSeccompError;

    fn from_str(text: &str) -> Result<Self, ParseSeccompError> {
        match text {
            "enforce" => Ok(Self::Enforce),
            "log" => Ok(Self::Log),
            "off" => Ok(Self::Off),
            _ => Err(ParseSeccompError),
        }
    }
}

impl fmt::Display for Seccomp {
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        form.write_str(match self {
            Self::Enforce => "enforce",
            Self::Log => "log",
            Self::Off => "off",
        })
    }
}

/// Compiled filters.
#[derive(Clone, Debug, Default)]
pub struct Filters(Vec<BpfProgram>);

impl Filters {
    /// Restricts the thread that calls, and those that it starts. After a fork, it makes system calls alone.
    ///
    /// # Errors
    /// When the kernel does not take one. The thread may be restricted in part then.
    pub fn apply(&self) -> Result<(), SeccompError> {
        Ok(self.0.iter().try_for_each(|filter| apply_filter(filter))?)
    }

    /// Restricts every thread of this process.
    ///
    /// # Errors
    /// When the kernel does not take one. The process may be restricted in part then.
    pub fn apply_to_process(&self) -> Result<(), SeccompError> {
        Ok(self.0.iter().try_for_each(|filter| apply_filter_all_threads(filter))?)
    }

    /// The number of instructions of each.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(Vec::len)
    }
}

fn compile<'a>(
    allowed: impl IntoIterator<Item = &'a Allowed>,
    failing: impl IntoIterator<Item = &'a Failing>,
    unlisted: SeccompAction,
) -> Result<Filters, BackendError> {
    let mut filters = Vec::new();
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let mut unconditional = Vec::new();
    for line in failing {
        let call = i64::from(line.call.id());
        let rule = rule(line.when)?;
        let action = SeccompAction::Errno(line.errno.cast_unsigned());
        let failing = BTreeMap::from([(call, rule.clone().into_iter().collect())]);
        filters.push(program(failing, SeccompAction::Allow, action)?);
        // What fails is not what is rejected.
        match rule {
            Some(rule) => rules.entry(call).or_default().push(rule),
            None => unconditional.push(call),
        }
    }
    for line in allowed {
        let call = i64::from(line.call.id());
        match rule(line.when)? {
            Some(rule) => rules.entry(call).or_default().push(rule),
            None => unconditional.push(call),
        }
    }
    // No rule: whatever the arguments are.
    rules.extend(unconditional.into_iter().map(|call| (call, Vec::new())));
    filters.push(program(rules, unlisted, SeccompAction::Allow)?);
    Ok(Filters(filters))
}

/// The rule of a line that has conditions.
fn rule(when: &[Condition]) -> Result<Option<SeccompRule>, BackendError> {
    match when {
        [] => Ok(None),
        when => {
            let conditions = when.iter().map(Condition::compile).collect::<Result<_, _>>()?;
            SeccompRule::new(conditions).map(Some)
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_names() {
        for name in Seccomp::NAMES {
            assert_eq!(name.parse::<Seccomp>().unwrap().to_string(), name);
        }
        assert_eq!("on".parse::<Seccomp>(), Err(ParseSeccompError));
        assert_eq!(Seccomp::default(), Seccomp::Enforce);
    }

    #[test]
    fn conditions_hold_for_what_fails() {
        const UNIX: &[Condition] = &[table::exactly(0, libc::AF_UNIX as u32)];
        let failing = [table::fails_when(syscalls::Sysno::socket, UNIX, libc::EACCES, "a test")];
        let filters = Seccomp::Enforce
            .compile(table::PROCESS, table::FAILING.iter().chain(&failing), Rejected::Ends)
            .unwrap();
        assert_eq!(filters.lengths().count(), table::FAILING.len() + 2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                filters.apply().unwrap();
                let error = std::os::unix::net::UnixDatagram::unbound().unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
                assert_eq!(std::thread::spawn(|| vec![1_u8; 1 << 20].len()).join().unwrap(), 1 << 20);
            });
        });
    }
}
