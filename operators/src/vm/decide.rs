use jiff::Timestamp;
use serde_json::Value;
use vireo_api::v1::{
    StateChangeRequest, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceTemplateSpec,
    VirtualMachineStatus, VolumeRequest,
};

use super::conditions::{FailureReason, Own, conditions};
use super::declared::{self, LiveChange};
use super::instance::{self, Start, StartError, is_outdated, template_generation};
use super::life::{Life, holds};
use super::memory_dump::DumpVolume;
use super::printable::printable;
use super::provision::Provision;
use super::refused::{Refusable, Refused};
use super::requests::{self, START};
use super::strategy::{RunStrategy, StrategyError};
use super::{FINALIZER, backoff, memory_dump, volumes};

/// The observed state of a VM.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The VM.
    pub vm: &'a VirtualMachine,
    /// The VMI of the same name, if the VM owns it.
    pub instance: Option<&'a VirtualMachineInstance>,
    /// The `data` of the ControllerRevision that the VMI was created from, if it still exists.
    pub revision: Option<&'a Value>,
    /// The template expanded with instance type and preference, or the error; absent for a VM without either.
    pub expanded: Option<Result<&'a VirtualMachineInstanceTemplateSpec, &'a str>>,
    /// How far the DataVolumes of its templates are.
    pub provision: &'a Provision,
    /// What was refused the last time.
    pub refused: Option<&'a Refused>,
    /// The current time.
    pub now: Timestamp,
    /// A random number from 0 to 1, which spreads restarts of VMs that failed together.
    pub jitter: f64,
}

/// The next action.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Nothing until something changes.
    Wait,
    /// Add [`FINALIZER`] to the VM.
    AddFinalizer,
    /// Create the DataVolumes of these templates, by their indices.
    CreateDataVolumes(Vec<usize>),
    /// Create the VMI.
    CreateVmi(Box<Start>),
    /// Apply a volume request to the template and the VMI, by [`super::volumes::apply`].
    ApplyVolumes(Box<VolumeRequest>),
    /// Change the hotpluggable volumes, the NICs and their links of the VMI to those of the template, which NICs leave that are
    /// unplugged.
    SyncInstance(Box<LiveChange>),
    /// Add the volume of a memory dump to the template or the VMI, or remove it.
    ApplyMemoryDump(DumpVolume),
    /// Delete the VMI.
    DeleteVmi,
    /// Remove [`FINALIZER`] from the VMI.
    ReleaseVmi,
    /// Write this run strategy into the spec, because a user requested a start.
    SetRunStrategy(RunStrategy),
    /// Remove [`FINALIZER`] from the VM.
    RemoveFinalizer,
}

/// The new status and the next action. The status is written first: the action may remove what it was read from.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The status of the VM.
    pub status: VirtualMachineStatus,
    /// The next action.
    pub action: Action,
    /// When to reconcile again even if nothing changes.
    pub requeue_at: Option<Timestamp>,
}

#[derive(Debug, thiserror::Error)]
enum DecideError {
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Decides on the next action for one VM.
pub fn decide(observed: Observed<'_>) -> Decision {
    let Observed { vm, instance, revision, provision, now, jitter, .. } = observed;
    let mut status = vm.status.clone();
    requests::forget_done(&mut status.state_change_requests, instance);
    volumes::forget_done(&mut status.volume_requests, vm, instance);
    memory_dump::advance(&mut status, vm, instance, now);
    let strategy = RunStrategy::of(&vm.spec);
    if let Ok(strategy) = strategy {
        status.start_failure =
            backoff::count(status.start_failure.as_ref(), instance, strategy, (now, jitter));
    }
    let life = Life::of(instance);
    let outcome = match &strategy {
        // Its end is counted by now. An invalid VM must not keep it from being deleted.
        _ if life == Life::Ended && is_held(instance) => Ok((Action::ReleaseVmi, None)),
        _ if vm.metadata.deletion_timestamp.is_some() => Ok((tear_down(vm, instance), None)),
        _ if !vm.metadata.finalizers.iter().any(|one| one == FINALIZER) => Ok((Action::AddFinalizer, None)),
        Ok(strategy) => {
            action(*strategy, &observed, &mut status).map(|action| provisioned(action, &observed, &status))
        }
        Err(error) => Err(DecideError::Strategy(error.clone())),
    };
    let (action, failure) =
        outcome.unwrap_or_else(|error: DecideError| (Action::Wait, Some(error.to_string())));
    let changed = revision.is_some_and(|revision| is_outdated(vm, revision)) || waits_for_restart(&observed);
    let is_refused = failure.is_some();
    let failure = failure
        .map(|message| (FailureReason::FailedCreate, message))
        .or_else(|| refusal(&action, observed.refused));
    let own = Own { failure, restart_required: changed && !life.is_over() };
    status.conditions = conditions(&vm.status.conditions, instance, &own, now);
    status.created = instance.is_some();
    status.ready = instance.is_some_and(|instance| holds(instance, "Ready"));
    status.observed_generation = instance.and_then(template_generation);
    status.desired_generation = vm.metadata.generation;
    let failing = status.start_failure.is_some();
    let provisioning = provision.printable(&action, is_refused);
    status.printable_status =
        printable(vm, instance, &action, provisioning, (strategy.clone().ok(), failing)).to_owned();
    if let Ok(strategy) = strategy
        && (instance.is_some() || !strategy.starts_when_chosen())
    {
        status.run_strategy = Some(strategy.as_str().to_owned());
    }
    let requeue_at = backoff::waits_until(status.start_failure.as_ref(), now).filter(|_| {
        matches!(
            action,
            Action::Wait | Action::ApplyVolumes(_) | Action::SyncInstance(_) | Action::CreateDataVolumes(_)
        ) && life == Life::Absent
    });
    Decision { status, action, requeue_at }
}

/// Why an action on the VMI, which is tried again, failed the last time.
fn refusal(action: &Action, refused: Option<&Refused>) -> Option<(FailureReason, String)> {
    let refused = refused.filter(|refused| Some(refused.action) == Refusable::of(action))?;
    match refused.action {
        Refusable::CreateVmi => Some((FailureReason::FailedCreate, refused.message.clone())),
        Refusable::DeleteVmi => Some((FailureReason::FailedDelete, refused.message.clone())),
        // With what is wrong with the templates.
        Refusable::CreateDataVolumes => None,
    }
}

/// Whether a volume is plugged in by a restart alone.
fn waits_for_restart(observed: &Observed<'_>) -> bool {
    template(observed).is_some_and(|template| declared::needs_restart(&template.spec, observed.instance))
}

/// The template, with what instance type and preference add to it.
fn template<'a>(observed: &Observed<'a>) -> Option<&'a VirtualMachineInstanceTemplateSpec> {
    match observed.expanded {
        Some(expanded) => expanded.ok(),
        None => observed.vm.spec.template.as_ref(),
    }
}

/// Deletion of a VM deletes its VMI first, unless the VMI is to be orphaned.
fn tear_down(vm: &VirtualMachine, instance: Option<&VirtualMachineInstance>) -> Action {
    let has = |finalizer: &str| vm.metadata.finalizers.iter().any(|one| one == finalizer);
    match Life::of(instance) {
        _ if !has(FINALIZER) => Action::Wait,
        _ if has("orphan") => Action::RemoveFinalizer,
        Life::Absent => Action::RemoveFinalizer,
        Life::Alive | Life::Succeeded | Life::Failed => Action::DeleteVmi,
        Life::Stopping | Life::Ended => Action::Wait,
    }
}

/// Whether a VMI has [`FINALIZER`].
fn is_held(instance: Option<&VirtualMachineInstance>) -> bool {
    instance.is_some_and(|one| one.metadata.finalizers.iter().any(|name| name == FINALIZER))
}

/// What to do while DataVolumes of templates are not ready: the VM is not started. What is wrong with them.
fn provisioned(
    action: Action,
    observed: &Observed<'_>,
    status: &VirtualMachineStatus,
) -> (Action, Option<String>) {
    let Observed { vm, provision, refused, .. } = *observed;
    let is_start = matches!(action, Action::CreateVmi(_));
    let is_held = is_start && *provision != Provision::Ready;
    // Without the volume that a request removes, they may be ready.
    let action = apply_volumes(if is_held { Action::Wait } else { action }, observed, status);
    let refused = refused.filter(|refused| refused.action == Refusable::CreateDataVolumes);
    let (missing, failure) = provision.due(vm, is_start, refused.map(|refused| refused.message.as_str()));
    match (action, missing) {
        (Action::Wait, Some(missing)) => (Action::CreateDataVolumes(missing.to_vec()), failure),
        (action, _) => (action, failure),
    }
}

/// Applies a volume request if there is no other action.
fn apply_volumes(action: Action, observed: &Observed<'_>, status: &VirtualMachineStatus) -> Action {
    match (action, status.volume_requests.first()) {
        (Action::Wait, Some(request)) => Action::ApplyVolumes(Box::new(request.clone())),
        (Action::Wait, None) => {
            let dump = memory_dump::change(status, observed.vm, observed.instance);
            let started_with = observed.revision.and_then(instance::started_with);
            let declared =
                || declared::change(&template(observed)?.spec, observed.instance, started_with.as_ref());
            dump.map(Action::ApplyMemoryDump)
                .or_else(|| declared().map(|change| Action::SyncInstance(Box::new(change))))
                .unwrap_or(Action::Wait)
        }
        (action, _) => action,
    }
}

fn action(
    strategy: RunStrategy,
    observed: &Observed<'_>,
    status: &mut VirtualMachineStatus,
) -> Result<Action, DecideError> {
    use RunStrategy::{Always, Halted, Manual, Once, RerunOnFailure};
    let life = Life::of(observed.instance);
    match life {
        Life::Stopping | Life::Ended => return Ok(Action::Wait),
        Life::Absent | Life::Alive | Life::Succeeded | Life::Failed => {}
    }
    let requests = &mut status.state_change_requests;
    let requested = requests.first().map(|request| request.action.as_str());
    let first_time = observed.vm.status.run_strategy.as_deref() != Some(strategy.as_str());
    Ok(match (strategy, life) {
        // Requests to stop an earlier VMI were removed before.
        (Always | RerunOnFailure | Manual, Life::Alive | Life::Succeeded | Life::Failed)
            if requested == Some(requests::STOP) =>
        {
            Action::DeleteVmi
        }
        (Halted, Life::Absent) if requested == Some(START) => Action::SetRunStrategy(Always),
        (Always, Life::Absent) => create(observed, status)?,
        (RerunOnFailure | Once, Life::Absent) if first_time || requested == Some(START) => {
            create(observed, status)?
        }
        (Manual, Life::Absent) if requested == Some(START) => create(observed, status)?,
        (RerunOnFailure, Life::Failed) => {
            if requested != Some(START) {
                requests.insert(0, StateChangeRequest { action: START.to_owned(), ..Default::default() });
            }
            Action::DeleteVmi
        }
        (Always | RerunOnFailure, Life::Succeeded | Life::Failed) => Action::DeleteVmi,
        (Halted, Life::Alive | Life::Succeeded | Life::Failed) => Action::DeleteVmi,
        _ => Action::Wait,
    })
}

fn create(observed: &Observed<'_>, status: &VirtualMachineStatus) -> Result<Action, DecideError> {
    if backoff::waits_until(status.start_failure.as_ref(), observed.now).is_some() {
        return Ok(Action::Wait);
    }
    let start = status.state_change_requests.first().filter(|request| request.action == START);
    let paused = start.is_some_and(|request| request.data.get("paused").is_some_and(|text| text == "true"));
    Ok(Action::CreateVmi(Box::new(Start::of(observed.vm, observed.expanded, paused)?)))
}
