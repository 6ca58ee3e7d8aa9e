use jiff::Timestamp;
use serde_json::Value;
use vireo_api::v1::{
    StateChangeRequest, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceTemplateSpec,
    VirtualMachineStatus, VolumeRequest,
};

use super::conditions::{Own, conditions};
use super::instance::{Start, StartError, is_outdated, made_from};
use super::life::{Life, holds};
use super::printable::printable;
use super::requests::{self, START};
use super::strategy::{RunStrategy, StrategyError};
use super::{FINALIZER, backoff, volumes};

/// What there is.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The machine.
    pub vm: &'a VirtualMachine,
    /// The instance of its name, if the machine owns it.
    pub instance: Option<&'a VirtualMachineInstance>,
    /// The `data` of the revision that the instance was made from, where it is still there.
    pub made_from: Option<&'a Value>,
    /// The template with its instance type and preference, or why there is none; absent where the machine chose nothing.
    pub expanded: Option<Result<&'a VirtualMachineInstanceTemplateSpec, &'a str>>,
    /// What time it is.
    pub now: Timestamp,
    /// From 0 to 1, by chance: spreads machines that failed together.
    pub chance: f64,
}

/// The one thing to do now.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing until something changes.
    Wait,
    /// Put [`FINALIZER`] on the machine.
    Claim,
    /// Create the instance.
    Create(Box<Start>),
    /// Write what is asked for into the template and the instance, by [`super::volumes::apply`].
    Plug(Box<VolumeRequest>),
    /// Delete the instance.
    Delete,
    /// Take [`FINALIZER`] off the instance.
    Release,
    /// Write this run strategy into the spec, because a user asked for a start.
    Choose(RunStrategy),
    /// Take [`FINALIZER`] off the machine.
    Finalize,
}

/// What to write and what to do. The status is written first: a step may remove what it was read from.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The machine's status.
    pub status: VirtualMachineStatus,
    /// What to do.
    pub step: Step,
    /// When to look again even if nothing changes.
    pub again: Option<Timestamp>,
}

#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Decides about one machine.
pub fn decide(seen: Seen<'_>) -> Verdict {
    let Seen { vm, instance, made_from: origin, now, chance, .. } = seen;
    let mut status = vm.status.clone();
    requests::forget_done(&mut status.state_change_requests, instance);
    volumes::forget_done(&mut status.volume_requests, vm, instance);
    let strategy = RunStrategy::of(&vm.spec);
    if let Ok(strategy) = strategy {
        status.start_failure =
            backoff::count(status.start_failure.as_ref(), instance, strategy, (now, chance));
    }
    let life = Life::of(instance);
    let outcome = match &strategy {
        // Its end is counted by now. Nothing that is wrong with the VM may keep it.
        _ if life == Life::Ended && is_held(instance) => Ok(Step::Release),
        _ if vm.metadata.deletion_timestamp.is_some() => Ok(farewell(vm, instance)),
        _ if !vm.metadata.finalizers.iter().any(|one| one == FINALIZER) => Ok(Step::Claim),
        Ok(strategy) => step(*strategy, &seen, &mut status).map(|step| plug(step, &status)),
        Err(error) => Err(Trouble::Strategy(error.clone())),
    };
    let (step, failure) = match outcome {
        Ok(step) => (step, None),
        Err(trouble) => (Step::Wait, Some(trouble.to_string())),
    };
    let changed = origin.is_some_and(|origin| is_outdated(vm, origin));
    let own = Own { failure, restart_required: changed && !life.is_over() };
    status.conditions = conditions(&vm.status.conditions, instance, &own, now);
    status.created = instance.is_some();
    status.ready = instance.is_some_and(|instance| holds(instance, "Ready"));
    status.observed_generation = instance.and_then(made_from);
    status.desired_generation = vm.metadata.generation;
    let failing = status.start_failure.is_some();
    status.printable_status = printable(vm, instance, &step, (strategy.clone().ok(), failing)).to_owned();
    if let Ok(strategy) = strategy
        && (instance.is_some() || !strategy.starts_when_chosen())
    {
        status.run_strategy = Some(strategy.as_str().to_owned());
    }
    let again = backoff::waits_until(status.start_failure.as_ref(), now)
        .filter(|_| matches!(step, Step::Wait | Step::Plug(_)) && life == Life::Absent);
    Verdict { status, step, again }
}

/// A machine that is being deleted takes its instance along, unless that is to be left alone.
fn farewell(vm: &VirtualMachine, instance: Option<&VirtualMachineInstance>) -> Step {
    let has = |finalizer: &str| vm.metadata.finalizers.iter().any(|one| one == finalizer);
    match Life::of(instance) {
        _ if !has(FINALIZER) => Step::Wait,
        _ if has("orphan") => Step::Finalize,
        Life::Absent => Step::Finalize,
        Life::Alive | Life::Succeeded | Life::Failed => Step::Delete,
        Life::Stopping | Life::Ended => Step::Wait,
    }
}

/// Whether [`FINALIZER`] keeps an instance.
fn is_held(instance: Option<&VirtualMachineInstance>) -> bool {
    instance.is_some_and(|one| one.metadata.finalizers.iter().any(|name| name == FINALIZER))
}

/// Where nothing else is to be done, what is plugged in or out.
fn plug(step: Step, status: &VirtualMachineStatus) -> Step {
    match (step, status.volume_requests.first()) {
        (Step::Wait, Some(request)) => Step::Plug(Box::new(request.clone())),
        (step, _) => step,
    }
}

fn step(strategy: RunStrategy, seen: &Seen<'_>, status: &mut VirtualMachineStatus) -> Result<Step, Trouble> {
    use RunStrategy::{Always, Halted, Manual, Once, RerunOnFailure};
    let life = Life::of(seen.instance);
    match life {
        Life::Stopping | Life::Ended => return Ok(Step::Wait),
        Life::Absent | Life::Alive | Life::Succeeded | Life::Failed => {}
    }
    let requests = &mut status.state_change_requests;
    let asked = requests.first().map(|request| request.action.as_str());
    let first_time = seen.vm.status.run_strategy.as_deref() != Some(strategy.as_str());
    Ok(match (strategy, life) {
        // Requests to stop another instance are forgotten by now.
        (Always | RerunOnFailure | Manual, Life::Alive | Life::Succeeded | Life::Failed)
            if asked == Some(requests::STOP) =>
        {
            Step::Delete
        }
        (Halted, Life::Absent) if asked == Some(START) => Step::Choose(Always),
        (Always, Life::Absent) => create(seen, status)?,
        (RerunOnFailure | Once, Life::Absent) if first_time || asked == Some(START) => create(seen, status)?,
        (Manual, Life::Absent) if asked == Some(START) => create(seen, status)?,
        (RerunOnFailure, Life::Failed) => {
            if asked != Some(START) {
                requests.insert(0, StateChangeRequest { action: START.to_owned(), ..Default::default() });
            }
            Step::Delete
        }
        (Always | RerunOnFailure, Life::Succeeded | Life::Failed) => Step::Delete,
        (Halted, Life::Alive | Life::Succeeded | Life::Failed) => Step::Delete,
        _ => Step::Wait,
    })
}

fn create(seen: &Seen<'_>, status: &VirtualMachineStatus) -> Result<Step, Trouble> {
    if backoff::waits_until(status.start_failure.as_ref(), seen.now).is_some() {
        return Ok(Step::Wait);
    }
    let start = status.state_change_requests.first().filter(|request| request.action == START);
    let paused = start.is_some_and(|request| request.data.get("paused").is_some_and(|text| text == "true"));
    Ok(Step::Create(Box::new(Start::of(seen.vm, seen.expanded, paused)?)))
}
