//! What users ask for with `virtctl start`, `stop` and `restart`.

use std::collections::BTreeMap;

use vireo_api::v1::{StateChangeRequest, VirtualMachine, VirtualMachineInstance};

use super::life::Life;
use super::strategy::{RunStrategy, StrategyError};

pub(super) const START: &str = "Start";
pub(super) const STOP: &str = "Stop";

/// Why a request is turned down; each is an HTTP status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// 400.
    #[error("{0}")]
    BadRequest(String),
    /// 409.
    #[error("{0}")]
    Conflict(String),
}

impl From<StrategyError> for Rejection {
    fn from(error: StrategyError) -> Self {
        Self::Conflict(error.to_string())
    }
}

/// The body of a start request.
#[derive(Clone, Copy, Debug, Default)]
pub struct StartOptions {
    /// Starts with paused vCPUs.
    pub paused: bool,
}

/// The body of a stop request.
#[derive(Clone, Copy, Debug, Default)]
pub struct StopOptions {
    /// How long the guest may take, in seconds, instead of what its spec says.
    pub grace_period: Option<i64>,
}

/// The body of a restart request.
#[derive(Clone, Copy, Debug, Default)]
pub struct RestartOptions {
    /// 0 does not wait for the guest. Nothing else is possible.
    pub grace_period_seconds: Option<i64>,
}

/// What of the VM a request changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its spec.
    Spec,
    /// Its status.
    Status,
}

/// What is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writes {
    /// Of the VM.
    pub vm: Option<Change>,
    /// The instance's `spec.terminationGracePeriodSeconds`, before anything else.
    pub grace_period: Option<i64>,
}

impl Writes {
    fn of(vm: Change) -> Self {
        Self { vm: Some(vm), grace_period: None }
    }
}

/// Drops requests from the front that are done or have nothing to do any more.
pub(super) fn forget_done(requests: &mut Vec<StateChangeRequest>, instance: Option<&VirtualMachineInstance>) {
    let uid = instance.map(|instance| instance.metadata.uid.as_str());
    let runs = Life::of(instance) == Life::Alive;
    let done = |request: &StateChangeRequest| match request.action.as_str() {
        STOP => uid.is_none() || request.uid.as_deref() != uid,
        START => runs,
        _ => true,
    };
    let open = requests.iter().position(|request| !done(request)).unwrap_or(requests.len());
    requests.drain(..open);
}

/// `start`: changes `vm`, which the caller then writes.
pub fn start(
    vm: &mut VirtualMachine,
    instance: Option<&VirtualMachineInstance>,
    options: StartOptions,
) -> Result<Writes, Rejection> {
    let life = Life::of(instance);
    let begun = instance.is_some_and(|one| !matches!(one.status.phase.as_str(), "" | "Unknown"));
    if begun && !life.is_over() {
        return Err(conflict("VM is already running"));
    }
    match RunStrategy::of(&vm.spec)? {
        strategy @ (RunStrategy::Always | RunStrategy::Once) => {
            Err(conflict(format!("{strategy} does not support manual start requests")))
        }
        RunStrategy::RerunOnFailure if life == Life::Failed => {
            Err(conflict("RerunOnFailure starts the VM again by itself after a failure"))
        }
        RunStrategy::Halted if !options.paused => {
            RunStrategy::Always.write(&mut vm.spec);
            Ok(Writes::of(Change::Spec))
        }
        RunStrategy::Halted | RunStrategy::Manual | RunStrategy::RerunOnFailure => {
            let old = instance.filter(|_| life.is_over()).map(stop_of);
            let requests = old.into_iter().chain([start_of(options.paused)]).collect();
            ask(vm, requests)
        }
    }
}

/// `stop`: changes `vm`, which the caller then writes.
pub fn stop(
    vm: &mut VirtualMachine,
    instance: Option<&VirtualMachineInstance>,
    options: StopOptions,
) -> Result<Writes, Rejection> {
    let grace_period = options.grace_period;
    if grace_period.is_some_and(|seconds| seconds < 0) {
        return Err(Rejection::BadRequest("gracePeriod: a time is not negative".to_owned()));
    }
    let grace_period = grace_period.filter(|_| instance.is_some());
    let alive = instance.filter(|_| !Life::of(instance).is_over());
    match (RunStrategy::of(&vm.spec)?, alive) {
        (RunStrategy::Halted, Some(instance)) if shortens(instance, grace_period) => {
            Ok(Writes { vm: None, grace_period })
        }
        (RunStrategy::Halted, _) | (RunStrategy::Manual | RunStrategy::RerunOnFailure, None) => {
            Err(conflict("VM is not running"))
        }
        (RunStrategy::Manual | RunStrategy::RerunOnFailure, Some(instance)) => {
            let asked = ask(vm, vec![stop_of(instance)])?;
            Ok(Writes { grace_period, ..asked })
        }
        (RunStrategy::Always | RunStrategy::Once, _) => {
            RunStrategy::Halted.write(&mut vm.spec);
            Ok(Writes { vm: Some(Change::Spec), grace_period })
        }
    }
}

/// `restart`: changes `vm`, which the caller then writes.
pub fn restart(
    vm: &mut VirtualMachine,
    instance: Option<&VirtualMachineInstance>,
    options: RestartOptions,
) -> Result<Writes, Rejection> {
    let forced = match options.grace_period_seconds {
        None => None,
        Some(0) => Some(1),
        Some(..0) => {
            return Err(Rejection::BadRequest("gracePeriodSeconds: a time is not negative".to_owned()));
        }
        Some(_) => {
            let message = "gracePeriodSeconds: only 0 is possible, which restarts without waiting";
            return Err(Rejection::BadRequest(message.to_owned()));
        }
    };
    match RunStrategy::of(&vm.spec)? {
        strategy @ (RunStrategy::Halted | RunStrategy::Once) => {
            Err(conflict(format!("RunStategy {strategy} does not support manual restart requests")))
        }
        RunStrategy::Always | RunStrategy::Manual | RunStrategy::RerunOnFailure => {
            let Some(instance) = instance else { return Err(conflict("VM is not running: Halted")) };
            let asked = ask(vm, vec![stop_of(instance), start_of(false)])?;
            Ok(Writes { grace_period: forced, ..asked })
        }
    }
}

fn shortens(instance: &VirtualMachineInstance, seconds: Option<i64>) -> bool {
    let now = instance.spec.termination_grace_period_seconds;
    seconds.is_some_and(|seconds| now.is_none_or(|now| seconds < now))
}

/// One request at a time: what is under way is finished first.
fn ask(vm: &mut VirtualMachine, requests: Vec<StateChangeRequest>) -> Result<Writes, Rejection> {
    if !vm.status.state_change_requests.is_empty() {
        return Err(conflict("a start or stop of the VM is already under way"));
    }
    vm.status.state_change_requests = requests;
    // Who asks does not want to wait for the next attempt.
    vm.status.start_failure = None;
    Ok(Writes::of(Change::Status))
}

fn stop_of(instance: &VirtualMachineInstance) -> StateChangeRequest {
    let uid = Some(instance.metadata.uid.clone());
    StateChangeRequest { action: STOP.to_owned(), uid, ..StateChangeRequest::default() }
}

fn start_of(paused: bool) -> StateChangeRequest {
    let data =
        if paused { BTreeMap::from([("paused".to_owned(), "true".to_owned())]) } else { BTreeMap::new() };
    StateChangeRequest { action: START.to_owned(), data, ..StateChangeRequest::default() }
}

fn conflict(message: impl Into<String>) -> Rejection {
    Rejection::Conflict(message.into())
}
