//! A server that dies while it is written to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::Notify;

use crate::server::Server;

const WRITERS: usize = 4;
const NAMES: usize = 5;
const KEY: &str = "value";

/// What the writer of an object knows of it: the value that was acknowledged, and what it asked for since.
#[derive(Clone, Debug, Default, PartialEq)]
struct Known {
    certain: Option<u64>,
    asked: Option<Option<u64>>,
}

/// One client's objects, which no other client writes.
#[derive(Debug)]
struct Writer {
    names: BTreeMap<String, Known>,
    rng: fastrand::Rng,
    /// The highest resource version that was acknowledged.
    version: u64,
    next: u64,
}

/// Counts what was acknowledged.
#[derive(Debug, Default)]
struct Acknowledged {
    count: AtomicUsize,
    more: Notify,
}

/// `VIREO_KILL_ROUNDS` asks for more than the few that every run does.
fn rounds() -> usize {
    std::env::var("VIREO_KILL_ROUNDS")
        .map_or(10, |rounds| rounds.parse().expect("VIREO_KILL_ROUNDS is a number"))
}

#[tokio::test]
async fn a_kill_at_any_moment_loses_no_acknowledged_write() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::new(number, rng.fork())).collect();
    let mut server = Server::start();
    let mut total = 0;
    for round in 1..=rounds() {
        let acknowledged = Arc::new(Acknowledged::default());
        let client = server.client().await;
        let writing: Vec<_> = writers
            .drain(..)
            .map(|writer| tokio::spawn(writer.write(client.clone(), Arc::clone(&acknowledged))))
            .collect();
        acknowledged.reaches(rng.usize(1..80)).await;
        server.kill();
        for writer in writing {
            writers.push(writer.await.expect("a writer fails by what the server answers only"));
        }
        server.again();
        let client = server.client().await;
        for writer in &mut writers {
            writer.compare(&client, round).await;
        }
        total += acknowledged.count.load(Ordering::SeqCst);
    }
    println!("{} rounds, {total} acknowledged writes, none lost", rounds());
}

impl Acknowledged {
    fn one(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.more.notify_one();
    }

    async fn reaches(&self, wanted: usize) {
        while self.count.load(Ordering::SeqCst) < wanted {
            self.more.notified().await;
        }
    }
}

impl Writer {
    fn new(number: usize, rng: fastrand::Rng) -> Self {
        let names = (0..NAMES).map(|name| (format!("writer-{number}-{name}"), Known::default())).collect();
        Self { names, rng, version: 0, next: 0 }
    }

    /// Writes until the server does not answer.
    async fn write(mut self, client: Client, acknowledged: Arc<Acknowledged>) -> Self {
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        while self.one(&maps).await {
            acknowledged.one();
        }
        self
    }

    /// One write; whether it was acknowledged.
    async fn one(&mut self, maps: &Api<ConfigMap>) -> bool {
        let chosen = self.rng.usize(..self.names.len());
        let (name, known) = self.names.iter_mut().nth(chosen).expect("one of them");
        self.next += 1;
        let wanted = match known.certain {
            Some(_) if self.rng.u8(..4) == 0 => None,
            _ => Some(self.next),
        };
        known.asked = Some(wanted);
        let answer = match (known.certain, wanted) {
            (_, None) => maps.delete(name, &DeleteParams::default()).await.map(|_| None),
            (None, Some(value)) => maps.create(&PostParams::default(), &map(name, value)).await.map(Some),
            (Some(_), Some(value)) => {
                let patch = Patch::Merge(json!({ "data": { KEY: value.to_string() } }));
                maps.patch(name, &PatchParams::default(), &patch).await.map(Some)
            }
        };
        match answer {
            Ok(written) => {
                *known = Known { certain: wanted, asked: None };
                if let Some(written) = written {
                    let version = version(&written);
                    assert!(version > self.version, "{name}: version {version} comes after {}", self.version);
                    self.version = version;
                }
                true
            }
            Err(kube::Error::Api(status)) => panic!("{name}: {status:?}, while this was known: {known:?}"),
            Err(_) => false,
        }
    }

    /// What is there now must be what was acknowledged, or what was asked for last.
    async fn compare(&mut self, client: &Client, round: usize) {
        let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
        for (name, known) in &mut self.names {
            let there = maps.get_opt(name).await.expect("the server answers");
            let value = there.as_ref().map(value);
            assert!(
                value == known.certain || Some(value) == known.asked,
                "round {round}: {name} is {value:?}, its writer knows {known:?}"
            );
            *known = Known { certain: value, asked: None };
            self.version = self.version.max(there.as_ref().map_or(0, version));
        }
    }
}

fn map(name: &str, value: u64) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([(KEY.to_owned(), value.to_string())])),
        ..ConfigMap::default()
    }
}

fn value(map: &ConfigMap) -> u64 {
    map.data.as_ref().unwrap()[KEY].parse().unwrap()
}

fn version(map: &ConfigMap) -> u64 {
    map.resource_version().unwrap().parse().unwrap()
}
