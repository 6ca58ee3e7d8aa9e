//! `start`, `stop` and `restart` of a VirtualMachine.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use vireo_api::v1::VirtualMachine;
use vireo_apiserver::http::{ApiError, body, dry_run};
use vireo_apiserver::meta;
use vireo_apiserver::store::{Change, Object, Store};
use vireo_operators::vm::{self, Asked, RestartOptions, StartOptions, StopOptions};

use super::{Ask, VirtApi, vmi_of};
use crate::resource::kubevirt;
use vireo_apiserver::objects;

/// Writes down what is asked; the controller does it.
pub(super) async fn serve(server: &VirtApi, ask: Ask, request: Request) -> Result<Response, ApiError> {
    if request.method() != Method::PUT {
        return Err(ApiError::method_not_allowed());
    }
    let options = body::object(request).await?.unwrap_or_default();
    let store = Arc::clone(&server.store);
    let done = tokio::task::spawn_blocking(move || write(&store, &ask, &options)).await;
    done.map_err(|error| ApiError::internal(format!("the write broke off: {error}")))??;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

fn number(options: &Value, field: &str) -> Result<Option<i64>, ApiError> {
    match options.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value
            .as_i64()
            .map(Some)
            .ok_or_else(|| ApiError::bad_request(format!("{field}: this is no number"))),
    }
}

fn write(store: &Store, ask: &Ask, options: &Value) -> Result<(), ApiError> {
    let mut dry = false;
    for word in options.get("dryRun").and_then(Value::as_array).into_iter().flatten() {
        dry |= dry_run(word.as_str().unwrap_or("?"))?;
    }
    let row = &kubevirt::VMS;
    let key = row.key(&ask.namespace, &ask.name);
    let read = |before: Option<&Arc<Object>>| {
        let before = before.ok_or_else(|| ApiError::not_found(row, &ask.name))?;
        serde_json::from_value::<VirtualMachine>(before.value.clone())
            .map(|machine| (Arc::clone(before), machine))
            .map_err(|error| ApiError::internal(format!("the VirtualMachine cannot be read: {error}")))
    };
    let (_, mut machine) = read(store.get(&key).as_ref())?;
    // Before anything else: an instance that is deleted next takes it along.
    if let Some(seconds) = decide(store, &mut machine, ask, options)?.grace_period.filter(|_| !dry) {
        give_time(store, &machine, seconds)?;
    }
    store.write(&key, |before, store| {
        let (before, mut machine) = read(before)?;
        let asked = decide(store, &mut machine, ask, options)?;
        let mut value = before.value.clone();
        match asked.machine {
            Some(vm::Change::Spec) => {
                if let Ok(strategy) = vm::RunStrategy::of(&machine.spec) {
                    strategy.set(&mut value);
                }
            }
            Some(vm::Change::Status) => value["status"] = json!(machine.status),
            None => {}
        }
        meta::count_generation(&mut value, &before.value);
        Ok(if dry { Change::Nothing } else { Change::Put(value) })
    })?;
    Ok(())
}

/// Writes how long the guest of a machine gets to shut down.
fn give_time(store: &Store, machine: &VirtualMachine, seconds: i64) -> Result<(), ApiError> {
    let Some((instance, _)) = vmi_of(store, machine) else { return Ok(()) };
    Ok(objects::change(store, &instance, |value| {
        let before = value.clone();
        value["spec"]["terminationGracePeriodSeconds"] = json!(seconds);
        meta::count_generation(value, &before);
        true
    })?)
}

fn decide(
    store: &Store,
    machine: &mut VirtualMachine,
    ask: &Ask,
    options: &Value,
) -> Result<Asked, ApiError> {
    let instance = vmi_of(store, machine).map(|(_, instance)| instance);
    let asked = match ask.what.as_str() {
        "start" => {
            let paused = options.get("paused").and_then(Value::as_bool).unwrap_or_default();
            vm::start(machine, instance.as_ref(), StartOptions { paused })
        }
        "stop" => {
            let grace_period = number(options, "gracePeriod")?;
            vm::stop(machine, instance.as_ref(), StopOptions { grace_period })
        }
        _ => {
            let grace_period_seconds = number(options, "gracePeriodSeconds")?;
            vm::restart(machine, instance.as_ref(), RestartOptions { grace_period_seconds })
        }
    };
    asked.map_err(|refusal| match refusal {
        vm::Refusal::BadRequest(message) => ApiError::bad_request(message),
        vm::Refusal::Conflict(message) => ApiError::conflict(&kubevirt::VMS, &ask.name, &message),
    })
}
