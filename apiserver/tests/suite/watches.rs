//! Watches, and what is built on them.

use std::pin::pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt as _, reflector};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::test_server::{TestServer, map, maps};

/// How long an event may take.
const LIMIT: Duration = Duration::from_secs(30);

async fn next<T, E: std::fmt::Debug>(stream: &mut (impl Stream<Item = Result<T, E>> + Unpin)) -> T {
    let next = tokio::time::timeout(LIMIT, stream.next()).await;
    next.expect("an event comes").expect("the stream goes on").unwrap()
}

fn name_of(event: Event<ConfigMap>) -> String {
    match event {
        Event::Init => "init".to_owned(),
        Event::InitApply(map) => format!("init {}", map.name_any()),
        Event::InitDone => "done".to_owned(),
        Event::Apply(map) => format!("apply {}", map.name_any()),
        Event::Delete(map) => format!("delete {}", map.name_any()),
    }
}

#[tokio::test]
async fn a_watcher_sees_changes_until_it_is_dropped() {
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let server = TestServer::start();
        let maps = maps(&server.admin());
        maps.create(&PostParams::default(), &map("before")).await.unwrap();
        {
            let mut events = pin!(watcher(maps.clone(), config));
            for expected in ["init", "init before", "done"] {
                assert_eq!(name_of(next(&mut events).await), expected);
            }
            // The next event is asked for before there is one.
            let (event, made) = tokio::join!(next(&mut events), async {
                maps.create(&PostParams::default(), &map("a")).await
            });
            made.unwrap();
            assert_eq!((name_of(event), server.watches()), ("apply a".to_owned(), 1));
            let patch = Patch::Merge(json!({"data": {"key": "new"}}));
            maps.patch("a", &PatchParams::default(), &patch).await.unwrap();
            assert_eq!(name_of(next(&mut events).await), "apply a");
            maps.delete("a", &DeleteParams::default()).await.unwrap();
            assert_eq!(name_of(next(&mut events).await), "delete a");
            assert_eq!(server.watches(), 1);
        }
        assert_eq!(server.watches(), 0, "the server's side ends with the stream");
    }
}

#[tokio::test]
async fn a_reflector_has_what_the_server_has() {
    let server = TestServer::start();
    let maps = maps(&server.admin());
    let (store, writer) = reflector::store();
    let stream = watcher(maps.clone(), watcher::Config::default()).default_backoff();
    let mut stream = pin!(reflector::reflector(writer, stream).applied_objects());
    maps.create(&PostParams::default(), &map("first")).await.unwrap();
    assert_eq!(next(&mut stream).await.name_any(), "first");
    let made = maps.create(&PostParams::default(), &map("second")).await.unwrap();
    assert_eq!(next(&mut stream).await.resource_version(), made.resource_version());
    let seen = store.state().iter().map(|map| map.name_any()).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["first", "second"]);
}

#[tokio::test]
async fn a_watch_goes_on_from_a_resource_version() {
    let server = TestServer::start();
    let maps = maps(&server.admin());
    let first = maps.create(&PostParams::default(), &map("a")).await.unwrap();
    maps.create(&PostParams::default(), &map("b")).await.unwrap();
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    let version = first.resource_version().unwrap();
    let mut events = pin!(maps.watch(&WatchParams::default(), &version).await.unwrap());
    let WatchEvent::Added(added) = next(&mut events).await else { panic!("b was added") };
    assert_eq!(added.name_any(), "b");
    let WatchEvent::Deleted(deleted) = next(&mut events).await else { panic!("a was deleted") };
    assert_eq!(deleted.name_any(), "a");
    // A watch ends at the time it was given.
    let params = WatchParams::default().timeout(1);
    let events: Vec<_> = maps.watch(&params, &version).await.unwrap().try_collect().await.unwrap();
    assert_eq!(events.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_carry_the_position_of_a_quiet_watch() {
    let server = TestServer::start();
    let client = server.admin();
    let (maps, secrets) = (maps(&client), Api::<Secret>::default_namespaced(client));
    let made = maps.create(&PostParams::default(), &map("a")).await.unwrap();
    let version = made.resource_version().unwrap();
    // A watch may last longer than bookmarks are apart.
    let mut events = pin!(maps.watch(&WatchParams::default().timeout(290), &version).await.unwrap());
    let other: Secret = serde_json::from_value(json!({"metadata": {"name": "other"}})).unwrap();
    let other = secrets.create(&PostParams::default(), &other).await.unwrap();
    let WatchEvent::Bookmark(bookmark) = next_paused(&mut events).await else { panic!("nothing changed") };
    assert_eq!(Some(bookmark.metadata.resource_version), other.resource_version());
}

/// The next event, where time passes as soon as nothing else can happen.
async fn next_paused<T, E: std::fmt::Debug>(stream: &mut (impl Stream<Item = Result<T, E>> + Unpin)) -> T {
    stream.next().await.expect("the stream goes on").unwrap()
}
