//! What keeps a launcher Pod from its start on its node, as far as only events tell it: no status says which volume cannot be
//! mounted, or why there is no sandbox.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client};
use tracing::debug;
use vireo_api::v1::VirtualMachineInstance;
use vireo_client::ObjectKey;

use super::LauncherPod;
use super::decide::{PREPARATION, current, is_starting, time_since_creation};

/// Reasons of warnings about what a Pod needs before its containers are made; causes come before what follows from them.
const REASONS: [&str; 9] = [
    "FailedAttachVolume",
    "FailedMapVolume",
    "FailedMount",
    "FailedPrepareDynamicResources",
    "NetworkNotReady",
    "FailedCreatePodSandBox",
    "FailedPodSandBoxStatus",
    "FailedCreatePodContainer",
    "FailedSync",
];
/// The condition of a Pod whose volumes are mounted and whose sandbox runs.
const READY_TO_START_CONTAINERS: &str = "PodReadyToStartContainers";
/// The most events of one Pod that are read.
const MOST: u32 = 200;
/// How long before the last warning another one still counts: the kubelet and the controller of attachments try again within
/// little more than 2 minutes.
const CURRENT: Duration = Duration::from_secs(300);
/// The longest time until the events are read again. Until then it grows with the age of the Pod.
const LONGEST: Duration = Duration::from_secs(60);

/// The reason and the message of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Such as `FailedMount`.
    pub reason: String,
    /// The same for people.
    pub message: String,
}

impl Warning {
    /// The one of some events that names the cause. Reasons that take turns give the same one, so that a status that has it
    /// changes seldom.
    fn of(events: impl IntoIterator<Item = Event>) -> Option<Self> {
        let rank = |event: &Event| REASONS.iter().position(|reason| Some(*reason) == event.reason.as_deref());
        let known: Vec<_> =
            events.into_iter().filter_map(|event| Some((rank(&event)?, last(&event), event))).collect();
        let newest = known.iter().map(|(_, at, _)| *at).max()?;
        let is_current = |at: Timestamp| newest.duration_since(at).unsigned_abs() <= CURRENT;
        let current = known.into_iter().filter(|(_, at, _)| is_current(*at));
        let (.., event) = current.min_by_key(|(rank, at, _)| (*rank, Reverse(*at)))?;
        Some(Self { reason: event.reason?, message: event.message.unwrap_or_default() })
    }
}

/// When an event happened last.
fn last(event: &Event) -> Timestamp {
    let in_series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let in_series = in_series.or(event.event_time.as_ref()).map(|time| time.0);
    let last = event.last_timestamp.as_ref().or(event.first_timestamp.as_ref()).map(|time| time.0);
    last.max(in_series).unwrap_or_default()
}

/// What was found in the events of a Pod.
#[derive(Debug)]
struct Found {
    pod: String,
    warning: Option<Warning>,
    /// When they are to be read again.
    expires: Timestamp,
}

/// What was found in the events of the Pods that wait, by their instances.
#[derive(Debug, Default)]
pub(super) struct PodEvents {
    found: Mutex<HashMap<ObjectKey, Found>>,
}

impl PodEvents {
    /// What keeps the Pod of an instance from its start, and when to look again. The events of a Pod are read when it has
    /// waited on its node for [`PREPARATION`], and ever more seldom after that.
    pub(super) async fn warning(
        &self,
        client: &Client,
        vmi: &VirtualMachineInstance,
        pods: &[&LauncherPod],
        now: Timestamp,
    ) -> (Option<Warning>, Option<Duration>) {
        let vireo_api::v1::ObjectMeta { namespace, name, .. } = &vmi.metadata;
        let key = ObjectKey::new(namespace, name);
        let Some((pod, waits)) = waiting(vmi, pods, now) else {
            self.forget(&key);
            return (None, None);
        };
        if let Some(found) = self.found().get(&key).filter(|found| found.pod == pod && found.expires > now) {
            let left = Duration::try_from(found.expires.duration_since(now)).unwrap_or_default();
            return (found.warning.clone(), Some(left));
        }
        let events: Api<Event> = Api::namespaced(client.clone(), namespace);
        let of_pod = format!("involvedObject.kind=Pod,involvedObject.uid={pod},type=Warning");
        let warning = match events.list(&ListParams::default().fields(&of_pod).limit(MOST)).await {
            Ok(listed) => Warning::of(listed),
            // It says nothing then: that it waits is known without them.
            Err(error) => {
                debug!(%key, %error, "the events of a launcher Pod cannot be read");
                None
            }
        };
        let again = waits.clamp(PREPARATION, LONGEST);
        let expires = now.checked_add(again).unwrap_or(Timestamp::MAX);
        self.found().insert(key, Found { pod: pod.to_owned(), warning: warning.clone(), expires });
        (warning, Some(again))
    }

    /// Forgets what was found for an instance.
    pub(super) fn forget(&self, key: &ObjectKey) {
        self.found().remove(key);
    }

    fn found(&self) -> MutexGuard<'_, HashMap<ObjectKey, Found>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The UID of the Pod of an instance that has waited on its node for [`PREPARATION`] for what no status tells of, and how long.
fn waiting<'a>(
    vmi: &VirtualMachineInstance,
    pods: &[&'a LauncherPod],
    now: Timestamp,
) -> Option<(&'a str, Duration)> {
    let pod = current(pods).filter(|_| is_starting(vmi))?;
    let waits = time_since_creation(pod, now).filter(|waits| *waits >= PREPARATION)?;
    let is_prepared =
        pod.condition(READY_TO_START_CONTAINERS).is_some_and(|condition| condition.status == "True");
    let has_containers = pod.has_started_any() || pod.container_failure().is_some();
    let is_waiting = pod.node().is_some() && !pod.is_final() && !is_prepared && !has_containers;
    is_waiting.then_some((pod.metadata.uid.as_str(), waits))
}

#[cfg(test)]
mod tests;
