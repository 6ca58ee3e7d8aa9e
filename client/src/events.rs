//! Events about objects.

mod reason;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use serde_json::json;
use tokio::sync::mpsc;
use tracing::{debug, warn};
use vireo_api::v1;

use crate::{Kind, write};

pub use reason::Reason;

/// How many events are counted on; what is older gets an event of its own.
const COUNTED: usize = 4096;
/// The longest beginning of an event's name that is the name of its object.
const LONGEST_NAME: usize = 230;

/// How long events are gathered: those that are sent together share a commit of the API server's store.
const GATHERING: Duration = Duration::from_millis(50);
/// How many events are sent at a time, and how many may wait for that.
const BATCH: usize = 64;
/// How many events are kept while the API server stores none.
const MOST_WAITING: usize = 256;
/// How often those are sent again.
const RETRY: Duration = Duration::from_secs(10);
/// How long after it happened an event is of use: as long as API servers keep events.
const LIFETIME: Duration = Duration::from_secs(3600);

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

/// Something that happened to an object.
#[derive(Debug, Clone)]
struct Occurrence {
    regarding: ObjectReference,
    reason: Reason,
    message: String,
    at: Timestamp,
}

impl Occurrence {
    fn key(&self) -> Key {
        (self.regarding.uid.clone().unwrap_or_default(), self.reason, self.message.clone())
    }

    fn is_expired(&self) -> bool {
        Timestamp::now().duration_since(self.at).unsigned_abs() > LIFETIME
    }
}

/// Publishes events of one component, without delaying it. Repeated events are counted; those that the API server cannot
/// store now, as on a full disk, are sent again for an hour.
pub struct EventRecorder {
    publisher: Arc<Publisher>,
    outbox: mpsc::Sender<Occurrence>,
    /// Until the task that sends the events runs.
    unsent: Mutex<Option<mpsc::Receiver<Occurrence>>>,
}

struct Publisher {
    client: Client,
    component: &'static str,
    host: Option<String>,
    published: Mutex<HashMap<Key, (String, i32)>>,
    /// Events that are sent again, by a task that runs while there are any.
    waiting: Mutex<VecDeque<Occurrence>>,
}

impl std::fmt::Debug for EventRecorder {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let component = &self.publisher.component;
        form.debug_struct("EventRecorder").field("component", component).finish_non_exhaustive()
    }
}

impl EventRecorder {
    /// Publishes as this component; as that of a node, where there is a host.
    pub fn new(client: Client, component: &'static str, host: Option<&str>) -> Self {
        let host = host.map(str::to_owned);
        let (published, waiting) = Default::default();
        let (outbox, unsent) = mpsc::channel(BATCH);
        let publisher = Arc::new(Publisher { client, component, host, published, waiting });
        Self { publisher, outbox, unsent: Mutex::new(Some(unsent)) }
    }

    /// Has an event about an object published soon. It waits only while many others do. An event is no reason to fail:
    /// what goes wrong is logged. Has to be called in a Tokio runtime.
    pub async fn publish(&self, regarding: Regarding<'_>, reason: Reason, message: impl Into<String>) {
        let (regarding, message, at) = (regarding.reference(), message.into(), Timestamp::now());
        let unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(unsent) = unsent {
            tokio::spawn(Arc::clone(&self.publisher).send_batches(unsent));
        }
        let occurrence = Occurrence { regarding, reason, message, at };
        if let Err(error) = self.outbox.send(occurrence).await {
            let reason = error.0.reason.as_str();
            warn!(reason, component = self.publisher.component, "an event is lost: its sender has stopped");
        }
    }
}

/// Whether the API server stores nothing new in the namespace, as it is being deleted.
fn is_terminating(error: &Error) -> bool {
    let Error::Api(status) = error else { return false };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}

impl Publisher {
    /// Sends events until there is no recorder any more.
    async fn send_batches(self: Arc<Self>, mut outbox: mpsc::Receiver<Occurrence>) {
        let mut batch = Vec::with_capacity(BATCH);
        while outbox.recv_many(&mut batch, BATCH).await > 0 {
            tokio::time::sleep(GATHERING).await;
            while batch.len() < BATCH
                && let Ok(next) = outbox.try_recv()
            {
                batch.push(next);
            }
            while !batch.is_empty() {
                // The count of a repeated event is known once the event before it is stored.
                let mut keys = HashSet::new();
                let (first, repeated) = std::mem::take(&mut batch)
                    .into_iter()
                    .partition::<Vec<_>, _>(|one| keys.insert(one.key()));
                join_all(first.into_iter().map(|occurrence| self.publish(occurrence))).await;
                batch = repeated;
            }
        }
    }

    async fn publish(self: &Arc<Self>, occurrence: Occurrence) {
        if let Some(later) = self.send(occurrence).await
            && self.wait(later)
        {
            tokio::spawn(Arc::clone(self).send_waiting());
        }
    }

    /// Publishes it. Returns it if that may succeed later.
    async fn send(&self, occurrence: Occurrence) -> Option<Occurrence> {
        let error = self.try_publish(&occurrence).await.err()?;
        let reason = occurrence.reason.as_str();
        if is_terminating(&error) {
            debug!(%error, reason, "the namespace of an event is being deleted");
            return None;
        }
        // One that exists was stored before, whatever the answer was.
        if write::rejection(&error).is_some() || write::already_exists(&error) {
            warn!(%error, reason, "cannot publish an event");
            return None;
        }
        warn!(%error, reason, "cannot publish an event yet");
        Some(occurrence)
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Occurrence>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps it for later. Whether it is the first, so that nothing sends those that wait yet.
    fn wait(&self, occurrence: Occurrence) -> bool {
        let mut waiting = self.waiting();
        if waiting.len() == MOST_WAITING {
            warn!(reason = occurrence.reason.as_str(), "too many events wait: one is lost");
            return false;
        }
        waiting.push_back(occurrence);
        waiting.len() == 1
    }

    /// Sends those that wait, the oldest first, until none is left.
    async fn send_waiting(self: Arc<Self>) {
        loop {
            tokio::time::sleep(RETRY).await;
            loop {
                let Some(oldest) = self.waiting().front().cloned() else { return };
                if !oldest.is_expired() && self.send(oldest).await.is_some() {
                    break;
                }
                let mut waiting = self.waiting();
                waiting.pop_front();
                // Under one lock with the removal: the next publisher starts this again.
                if waiting.is_empty() {
                    return;
                }
            }
        }
    }

    async fn try_publish(&self, occurrence: &Occurrence) -> Result<(), Error> {
        let Occurrence { regarding, at, .. } = occurrence;
        let events: Api<Event> =
            Api::namespaced(self.client.clone(), regarding.namespace.as_deref().unwrap_or("default"));
        let key = occurrence.key();
        let before = self.published.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some((name, count)) = before {
            let patch = Patch::Merge(json!({"count": count + 1, "lastTimestamp": Time(*at)}));
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
        let name = format!("{object}.{:x}", at.as_nanosecond());
        events.create(&PostParams::default(), &self.event(occurrence, &name)).await?;
        self.remember(key, name, 1);
        Ok(())
    }

    fn event(&self, occurrence: &Occurrence, name: &str) -> Event {
        let Occurrence { regarding, reason, message, at } = occurrence;
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
            first_timestamp: Some(Time(*at)),
            last_timestamp: Some(Time(*at)),
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Body;
    use axum::http::{Request, Response, StatusCode};
    use kube::core::Status;
    use serde_json::Value;
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;

    const ABOUT: Regarding<'_> =
        Regarding { kind: Kind::VMI, namespace: "default", name: "one", uid: "of-one" };

    /// A client of an API server that answers each request with the next of these codes, and stores events with 201. Gets
    /// the bodies of the requests.
    fn server(answers: &[u16]) -> (EventRecorder, mpsc::UnboundedReceiver<Value>) {
        let (requests, received) = mpsc::unbounded_channel();
        let answers = Arc::new(Mutex::new(VecDeque::from(answers.to_vec())));
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (requests, answers) = (requests.clone(), Arc::clone(&answers));
            async move {
                let body = request.into_body().collect_bytes().await.unwrap();
                let event: Value = serde_json::from_slice(&body).unwrap();
                let code = answers.lock().unwrap().pop_front().expect("a request too many");
                let body = match code {
                    200..300 => event.to_string(),
                    409 => json!(Status::failure("no", "AlreadyExists").with_code(code)).to_string(),
                    _ => json!(Status::failure("no", "No").with_code(code)).to_string(),
                };
                requests.send(event).unwrap();
                let answer = Response::builder().status(StatusCode::from_u16(code).unwrap());
                Ok::<_, Infallible>(answer.body(Body::from(body)).unwrap())
            }
        });
        (EventRecorder::new(Client::new(service, "default"), "virt-handler", Some("node1")), received)
    }

    #[test]
    fn a_namespace_that_is_being_deleted_is_known_by_the_cause() {
        let error = |reason: &str| {
            let status = json!({"code": 403, "reason": "Forbidden", "message": "",
                "details": {"causes": [{"reason": reason, "message": "", "field": ""}]}});
            Error::Api(Box::new(serde_json::from_value(status).unwrap()))
        };
        assert!(is_terminating(&error("NamespaceTerminating")));
        assert!(!is_terminating(&error("Other")));
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_stored_yet_is_sent_again() {
        let (recorder, mut requests) = server(&[500, 503, 500, 201, 201]);
        let begin = Instant::now();
        recorder.publish(ABOUT, Reason::IoError, "full").await;
        recorder.publish(ABOUT, Reason::Unhealthy, "slow").await;
        let full = requests.recv().await.unwrap();
        let slow = requests.recv().await.unwrap();
        assert_eq!((&full["message"], &slow["message"]), (&json!("full"), &json!("slow")));
        assert_eq!(begin.elapsed(), GATHERING);
        // The rest waits while the oldest is refused.
        assert_eq!(requests.recv().await.unwrap(), full, "the same, with the time when it happened");
        assert_eq!(begin.elapsed().as_secs(), 10);
        assert_eq!([requests.recv().await.unwrap(), requests.recv().await.unwrap()], [full, slow]);
        assert_eq!(begin.elapsed().as_secs(), 20);
        tokio::time::sleep(LIFETIME).await;
        assert!(requests.is_empty());
        assert!(recorder.publisher.waiting().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_sent_together_and_repeated_ones_counted() {
        let (recorder, mut requests) = server(&[201, 201, 200]);
        let begin = Instant::now();
        for message in ["full", "full", "slow"] {
            recorder.publish(ABOUT, Reason::IoError, message).await;
        }
        assert_eq!(begin.elapsed(), Duration::ZERO, "publishing does not wait for the API server");
        drop(recorder);
        let mut sent = Vec::new();
        while let Some(event) = requests.recv().await {
            sent.push((event["message"].clone(), event["count"].clone()));
        }
        assert_eq!(begin.elapsed(), GATHERING);
        let expected = [(json!("full"), json!(1)), (json!("slow"), json!(1)), (Value::Null, json!(2))];
        assert_eq!(sent, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_is_not_sent_again() {
        for code in [403, 404, 409, 422] {
            let (recorder, requests) = server(&[code]);
            recorder.publish(ABOUT, Reason::IoError, "full").await;
            tokio::time::sleep(LIFETIME).await;
            assert_eq!(requests.len(), 1, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_so_many_wait() {
        let (recorder, requests) = server(&vec![500; MOST_WAITING + 1]);
        for number in 0..=MOST_WAITING {
            recorder.publish(ABOUT, Reason::IoError, number.to_string()).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(requests.len(), MOST_WAITING + 1);
        assert_eq!(recorder.publisher.waiting().len(), MOST_WAITING);
        assert_eq!(recorder.publisher.waiting().front().map(|one| one.message.clone()).as_deref(), Some("0"));
    }

    #[tokio::test(start_paused = true)]
    async fn old_events_are_not_sent_again() {
        let (recorder, requests) = server(&[500]);
        recorder.publish(ABOUT, Reason::IoError, "full").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        for one in recorder.publisher.waiting().iter_mut() {
            one.at = one.at - LIFETIME - Duration::from_secs(1);
        }
        tokio::time::sleep(RETRY * 2).await;
        assert!(recorder.publisher.waiting().is_empty());
        assert_eq!(requests.len(), 1);
    }
}
