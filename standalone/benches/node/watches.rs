//! How soon those who watch learn of a change.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, future};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::server::Server;
use super::{Arguments, Error, objects, table};

const CHANGES: usize = 100;
const NAME: &str = "watched";

pub(super) async fn measure(server: &Server, arguments: &Arguments) -> Result<(), Error> {
    let count = arguments.watchers;
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client().await);
    let made = maps.create(&PostParams::default(), &objects::map(NAME)).await?;
    let version = made.metadata.resource_version.ok_or("an object without a version")?;
    let ready = Arc::new(Semaphore::new(0));
    let (reported, mut events) = mpsc::unbounded_channel();
    let mut watchers = JoinSet::new();
    for _ in 0..count {
        // A client each, and so a connection each.
        let maps: Api<ConfigMap> = Api::default_namespaced(server.client().await);
        watchers.spawn(watch(maps, version.clone(), Arc::clone(&ready), reported.clone()));
    }
    tokio::select! {
        all = ready.acquire_many(u32::try_from(count)?) => all?.forget(),
        Some(ended) = watchers.join_next() => {
            ended??;
            return Err("a watcher ended".into());
        }
    }
    let (mut all, mut last) = (Vec::new(), Vec::new());
    for change in 0..CHANGES {
        let begin = Instant::now();
        let text = json!({"data": {"change": change.to_string()}});
        let (changed, seen) = future::join(
            maps.patch(NAME, &PatchParams::default(), &Patch::Merge(text)),
            heard(&mut events, count, begin),
        )
        .await;
        changed?;
        let seen = seen.ok_or("a watcher ended")?;
        last.extend(seen.iter().max());
        all.extend(seen);
    }
    println!("\n{CHANGES} changes of one object, one after the other, {count} watchers in one process:");
    println!("  from the request to a watcher's event: {}", table::spread(&mut all));
    println!("  to the last watcher's: {}", table::spread(&mut last));
    Ok(())
}

/// The times after `begin` at which all `count` were notified.
async fn heard(
    events: &mut mpsc::UnboundedReceiver<Instant>,
    count: usize,
    begin: Instant,
) -> Option<Vec<Duration>> {
    let mut seen = Vec::with_capacity(count);
    while seen.len() < count {
        seen.push(events.recv().await?.saturating_duration_since(begin));
    }
    Some(seen)
}

async fn watch(
    maps: Api<ConfigMap>,
    version: String,
    ready: Arc<Semaphore>,
    reported: mpsc::UnboundedSender<Instant>,
) -> Result<(), kube::Error> {
    let only = WatchParams::default().fields(&format!("metadata.name={NAME}"));
    let mut events = maps.watch(&only, &version).await?.boxed();
    ready.add_permits(1);
    while let Some(event) = events.next().await {
        if matches!(event?, WatchEvent::Modified(_)) && reported.send(Instant::now()).is_err() {
            break;
        }
    }
    Ok(())
}
