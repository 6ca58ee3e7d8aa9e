//! Events about KubeVirt's objects.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use serde_json::json;

/// How many events are counted on; what is older gets an event of its own.
const COUNTED: usize = 4096;
/// The longest beginning of an event's name that is the name of its object.
const LONGEST_NAME: usize = 230;

/// Why there is an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    /// An object was created for another.
    SuccessfulCreate,
    /// It could not be created.
    FailedCreate,
    /// It was deleted.
    SuccessfulDelete,
    /// A replica set was paused.
    SuccessfulPaused,
    /// It was resumed.
    SuccessfulResumed,
}

impl Reason {
    /// As KubeVirt spells it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::SuccessfulCreate => "SuccessfulCreate",
            Self::FailedCreate => "FailedCreate",
            Self::SuccessfulDelete => "SuccessfulDelete",
            Self::SuccessfulPaused => "SuccessfulPaused",
            Self::SuccessfulResumed => "SuccessfulResumed",
        }
    }

    /// `Normal` or `Warning`.
    pub(crate) fn event_type(self) -> &'static str {
        match self {
            Self::FailedCreate => "Warning",
            Self::SuccessfulCreate
            | Self::SuccessfulDelete
            | Self::SuccessfulPaused
            | Self::SuccessfulResumed => "Normal",
        }
    }
}

/// UID, reason and message: what repeated events have in common.
type Key = (String, Reason, String);

/// Publishes events of one component. Repeated events are counted.
pub(crate) struct EventRecorder {
    client: Client,
    component: &'static str,
    published: Mutex<HashMap<Key, (String, i32)>>,
}

impl EventRecorder {
    /// Publishes as this component.
    pub(crate) fn new(client: Client, component: &'static str) -> Self {
        Self { client, component, published: Mutex::default() }
    }

    /// Publishes an event about an object. An event is no reason to fail: what goes wrong is logged.
    pub(crate) async fn publish(&self, about: &ObjectReference, reason: Reason, message: String) {
        if let Err(error) = self.try_publish(about, reason, message).await {
            tracing::warn!(%error, reason = reason.as_str(), "cannot publish an event");
        }
    }

    async fn try_publish(
        &self,
        about: &ObjectReference,
        reason: Reason,
        message: String,
    ) -> Result<(), Error> {
        let events: Api<Event> =
            Api::namespaced(self.client.clone(), about.namespace.as_deref().unwrap_or("default"));
        let key = (about.uid.clone().unwrap_or_default(), reason, message);
        let before = self.published.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let now = Timestamp::now();
        if let Some((name, count)) = before {
            let patch = Patch::Merge(json!({"count": count + 1, "lastTimestamp": Time(now)}));
            match events.patch(&name, &PatchParams::default(), &patch).await {
                // It has expired.
                Err(Error::Api(status)) if status.code == 404 => {}
                patched => {
                    patched?;
                    self.remember(key, name, count + 1);
                    return Ok(());
                }
            }
        }
        let object: String = about.name.iter().flat_map(|name| name.chars()).take(LONGEST_NAME).collect();
        let name = format!("{object}.{:x}", now.as_nanosecond());
        events.create(&PostParams::default(), &self.event(about, &key, &name, now)).await?;
        self.remember(key, name, 1);
        Ok(())
    }

    fn event(
        &self,
        about: &ObjectReference,
        (_, reason, message): &Key,
        name: &str,
        now: Timestamp,
    ) -> Event {
        let component = Some(self.component.to_owned());
        Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: about.namespace.clone(),
                ..ObjectMeta::default()
            },
            involved_object: about.clone(),
            reason: Some(reason.as_str().to_owned()),
            message: Some(message.clone()),
            type_: Some(reason.event_type().to_owned()),
            source: Some(EventSource { component: component.clone(), host: None }),
            reporting_component: component,
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            ..Event::default()
        }
    }

    fn remember(&self, key: Key, name: String, count: i32) {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        if published.len() >= COUNTED {
            published.clear();
        }
        published.insert(key, (name, count));
    }
}
