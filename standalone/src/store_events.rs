//! Events that are written to the store directly.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use vireo_api::v1::ObjectMeta;
use vireo_apiserver::meta;
use vireo_apiserver::objects;
use vireo_apiserver::store::{Change, DiskError, Store, WriteError};

/// One thing to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    warning: bool,
    reason: String,
    message: String,
}

/// Whom it is about, and who says so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    /// Of something that is served.
    pub(crate) kind: &'a str,
    /// Its name, namespace and UID.
    pub(crate) metadata: &'a ObjectMeta,
    /// The program that says so.
    pub(crate) component: &'a str,
    /// And its node.
    pub(crate) host: &'a str,
}

impl Event {
    pub(crate) fn new(warning: bool, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { warning, reason: reason.into(), message: message.into() }
    }
}

/// Writes an event, or counts it where it was told before. Blocks.
pub(crate) fn write(store: &Store, about: &About<'_>, event: &Event) -> Result<(), DiskError> {
    let metadata = about.metadata;
    let mut hash = Sha256::new();
    for part in [&metadata.uid, &event.reason, &event.message] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let tail: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let name = format!("{}.{tail}", metadata.name.chars().take(230).collect::<String>());
    let now = meta::now();
    let written: Result<_, WriteError<std::convert::Infallible>> =
        store.write(&vireo_apiserver::resource::EVENTS.key(&metadata.namespace, &name), |before, store| {
            // A namespace that goes takes no news.
            if objects::namespace(store, &metadata.namespace)
                .is_none_or(|namespace| meta::is_leaving(&namespace.value))
            {
                return Ok(Change::Nothing);
            }
            let mut value = match before {
                Some(before) => before.value.clone(),
                None => fresh(about, event, &name, &now),
            };
            let count = value.get("count").and_then(Value::as_i64).unwrap_or_default();
            value["count"] = json!(count + 1);
            value["lastTimestamp"] = json!(now);
            Ok(Change::Put(value))
        });
    match written {
        Ok(_) => Ok(()),
        Err(WriteError::Refused(never)) => match never {},
        Err(WriteError::Disk(error)) => Err(error),
    }
}

fn fresh(about: &About<'_>, event: &Event, name: &str, now: &str) -> Value {
    let metadata = about.metadata;
    let of_kind = crate::resource::kubevirt::rows().into_iter().find(|row| row.kind == about.kind);
    let mut value = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {},
        "involvedObject": {
            "apiVersion": of_kind.map(|row| row.api_version()), "kind": about.kind,
            "namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid,
        },
        "reason": event.reason, "message": event.message,
        "type": if event.warning { "Warning" } else { "Normal" },
        "source": {"component": about.component, "host": about.host},
        "reportingComponent": about.component, "reportingInstance": about.host,
        "firstTimestamp": now,
    });
    meta::create(&mut value, &metadata.namespace, name);
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap;

    #[test]
    fn the_same_news_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        bootstrap::prepare(&store, "node1").unwrap();
        let metadata =
            ObjectMeta { name: "x".to_owned(), namespace: "default".to_owned(), ..ObjectMeta::default() };
        let about = About {
            kind: "VirtualMachineInstance",
            metadata: &metadata,
            component: "virt-handler",
            host: "",
        };
        for message in ["a", "a", "b"] {
            write(&store, &about, &Event::new(true, "Reason", message)).unwrap();
        }
        let counts: Vec<(String, i64)> = store
            .list("events", None)
            .objects
            .iter()
            .map(|object| {
                (
                    object.value["message"].as_str().unwrap().to_owned(),
                    object.value["count"].as_i64().unwrap(),
                )
            })
            .collect();
        assert_eq!(counts.len(), 2);
        assert!(counts.contains(&("a".to_owned(), 2)) && counts.contains(&("b".to_owned(), 1)), "{counts:?}");
    }
}
