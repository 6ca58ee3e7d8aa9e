//! Events about objects.

mod reason;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use serde_json::json;
use vireo_api::v1;

use crate::Kind;

pub use reason::Reason;

/// How many events are counted on; what is older gets an event of its own.
const COUNTED: usize = 4096;
/// The longest beginning of an event's name that is the name of its object.
const LONGEST_NAME: usize = 230;

/// UID, reason and message: what repeated events have in common.
type Key = (String, Reason, String);

/// What an event is about.
#[derive(Debug, Clone, Copy)]
pub struct Regarding<'a> {
    /// Kind.
    pub kind: Kind,
    /// Namespace; empty for cluster-wide objects, whose events are in the namespace `default`.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// UID.
    pub uid: &'a str,
}

impl<'a> Regarding<'a> {
    /// An object of a kind, by its metadata.
    pub fn new(kind: Kind, metadata: &'a v1::ObjectMeta) -> Self {
        let v1::ObjectMeta { namespace, name, uid, .. } = metadata;
        Self { kind, namespace, name, uid }
    }

    fn reference(self) -> ObjectReference {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        ObjectReference {
            api_version: Some(self.kind.api_version()),
            kind: text(self.kind.kind),
            name: text(self.name),
            namespace: text(self.namespace),
            uid: text(self.uid),
            ..ObjectReference::default()
        }
    }
}

/// Publishes events of one component. Repeated events are counted.
pub struct EventRecorder {
    client: Client,
    component: &'static str,
    host: Option<String>,
    published: Mutex<HashMap<Key, (String, i32)>>,
}

impl std::fmt::Debug for EventRecorder {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("EventRecorder").field("component", &self.component).finish_non_exhaustive()
    }
}

impl EventRecorder {
    /// Publishes as this component; as that of a node, where there is a host.
    pub fn new(client: Client, component: &'static str, host: Option<&str>) -> Self {
        Self { client, component, host: host.map(str::to_owned), published: Mutex::default() }
    }

    /// Publishes an event about an object. An event is no reason to fail: what goes wrong is logged.
    pub async fn publish(&self, regarding: Regarding<'_>, reason: Reason, message: impl Into<String>) {
        if let Err(error) = self.try_publish(&regarding.reference(), reason, message.into()).await {
            tracing::warn!(%error, reason = reason.as_str(), "cannot publish an event");
        }
    }

    async fn try_publish(
        &self,
        regarding: &ObjectReference,
        reason: Reason,
        message: String,
    ) -> Result<(), Error> {
        let events: Api<Event> =
            Api::namespaced(self.client.clone(), regarding.namespace.as_deref().unwrap_or("default"));
        let key = (regarding.uid.clone().unwrap_or_default(), reason, message);
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
        let object: String = regarding.name.iter().flat_map(|name| name.chars()).take(LONGEST_NAME).collect();
        let name = format!("{object}.{:x}", now.as_nanosecond());
        events.create(&PostParams::default(), &self.event(regarding, &key, &name, now)).await?;
        self.remember(key, name, 1);
        Ok(())
    }

    fn event(
        &self,
        regarding: &ObjectReference,
        (_, reason, message): &Key,
        name: &str,
        now: Timestamp,
    ) -> Event {
        let component = Some(self.component.to_owned());
        Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: regarding.namespace.clone(),
                ..ObjectMeta::default()
            },
            involved_object: regarding.clone(),
            reason: Some(reason.as_str().to_owned()),
            message: Some(message.clone()),
            type_: Some(if reason.is_warning() { "Warning" } else { "Normal" }.to_owned()),
            source: Some(EventSource { component: component.clone(), host: self.host.clone() }),
            reporting_instance: self.host.clone(),
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
