//! `start`, `stop` and `restart` of a VM.

use axum::extract::Request;
use axum::response::Response;
use serde_json::{Value, json};
use vireo_api::v1::{VirtualMachine, VirtualMachineInstance};
use vireo_client::{Kind, ObjectKey, write};

use super::endpoint::Operation;
use super::{ApiError, VirtApi, accepted, body, read, refused, requires_put, retry_on_conflict};
use crate::vm::{self, RestartOptions, StartOptions, StopOptions, Writes};

/// What is asked for, with its options.
#[derive(Debug, Clone, Copy)]
enum Command {
    Start(StartOptions),
    Stop(StopOptions),
    Restart(RestartOptions),
}

impl Command {
    fn new(operation: Operation, options: &Value) -> Result<Self, ApiError> {
        Ok(match operation {
            Operation::Start => {
                let paused = options.get("paused").and_then(Value::as_bool).unwrap_or_default();
                Self::Start(StartOptions { paused })
            }
            Operation::Stop => Self::Stop(StopOptions { grace_period: number(options, "gracePeriod")? }),
            Operation::Restart => {
                let grace_period_seconds = number(options, "gracePeriodSeconds")?;
                Self::Restart(RestartOptions { grace_period_seconds })
            }
        })
    }

    fn decide(
        self,
        vm: &mut VirtualMachine,
        vmi: Option<&VirtualMachineInstance>,
    ) -> Result<Writes, vm::Rejection> {
        match self {
            Self::Start(options) => vm::start(vm, vmi, options),
            Self::Stop(options) => vm::stop(vm, vmi, options),
            Self::Restart(options) => vm::restart(vm, vmi, options),
        }
    }
}

fn number(options: &Value, field: &str) -> Result<Option<i64>, ApiError> {
    match options.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_i64().map(Some).ok_or_else(|| {
            ApiError::bad_request(format!("{field}: Invalid value: {value}: must be an integer"))
        }),
    }
}

/// Records what is asked for in the VM, whose controller does it.
pub(super) async fn serve(
    server: &VirtApi,
    key: ObjectKey,
    operation: Operation,
    request: Request,
) -> Result<Response, ApiError> {
    requires_put(&request)?;
    let options = body::object(request).await?.unwrap_or_default();
    let stages = options.get("dryRun").and_then(Value::as_array).into_iter().flatten();
    let is_dry = body::dry_run(stages.map(|stage| stage.as_str().unwrap_or("?")))?;
    let command = Command::new(operation, &options)?;
    retry_on_conflict(|| record(server, &key, command, is_dry)).await.map(|()| accepted())
}

async fn record(server: &VirtApi, key: &ObjectKey, command: Command, is_dry: bool) -> Result<(), ApiError> {
    let vms = Kind::VM.namespaced(&server.client, &key.namespace);
    let before: VirtualMachine = read(vms.get(&key.name).await?)?;
    let mut vm = before.clone();
    let vmi = server.vmi_of(&vm).await?;
    let asked =
        command.decide(&mut vm, vmi.as_ref()).map_err(|rejection| refused(Kind::VM, &key.name, rejection))?;
    if is_dry {
        return Ok(());
    }
    // Before anything else: a VMI is deleted with the grace period that it has.
    if let (Some(seconds), Some(vmi)) = (asked.grace_period, &vmi) {
        let vmis = Kind::VMI.namespaced(&server.client, &key.namespace);
        let patch = json!({"spec": {"terminationGracePeriodSeconds": seconds}});
        write::patch(&vmis, (&vmi.metadata).into(), patch).await?;
    }
    match asked.vm {
        Some(vm::Change::Spec) => {
            let (before, after) = (json!({"spec": before.spec}), json!({"spec": vm.spec}));
            if let Some(patch) = write::merge_diff(&before, &after) {
                write::patch(&vms, (&vm.metadata).into(), patch).await?;
            }
        }
        Some(vm::Change::Status) => {
            let (before, after) = (json!(before.status), json!(vm.status));
            write::patch_status(&vms, (&vm.metadata).into(), &before, &after).await?;
        }
        None => {}
    }
    Ok(())
}
