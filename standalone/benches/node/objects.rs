//! Requests for ConfigMaps, by clients that ask at the same time, and what the stored ones take.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::server::Server;
use super::{Arguments, Error, cost, table};

const SIZE: usize = 1024;

pub(super) fn map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([("text".to_owned(), crate::filler::text(name, SIZE))])),
        ..ConfigMap::default()
    }
}

pub(super) async fn measure(server: &Server, arguments: &Arguments) -> Result<(), Error> {
    let Arguments { objects: count, clients, .. } = *arguments;
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client().await);
    let name = |number: usize| format!("object-{number}");
    println!(
        "\n{count} ConfigMaps of {SIZE} bytes, {clients} clients at the same time, on one connection pool:"
    );
    let (before, begin) = (cost::memory(server), cost::cpu_time(server)?);
    let create = |number| {
        let maps = maps.clone();
        async move { maps.create(&PostParams::default(), &map(&name(number))).await.map(drop) }
    };
    timed("create", count, clients, create).await?;
    let (memory, cpu_time) =
        (cost::memory(server).since(before), cost::cpu_time(server)?.saturating_sub(begin));
    println!("  of vireo: {memory}, and {cpu_time:.2?} of a CPU");
    let get = |number| {
        let maps = maps.clone();
        async move { maps.get(&name(number)).await.map(drop) }
    };
    timed("get", count, clients, get).await?;
    let change = json!({"data": {"other": "y"}});
    let patch = |number| {
        let (maps, change) = (maps.clone(), change.clone());
        async move { maps.patch(&name(number), &PatchParams::default(), &Patch::Merge(change)).await.map(drop) }
    };
    timed("patch", count, clients, patch).await?;
    let begin = Instant::now();
    let listed = maps.list(&ListParams::default()).await?.items.len();
    println!("  a list of {listed}: {:.2?}", begin.elapsed());
    let begin = cost::cpu_time(server)?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    println!("  at rest for 5 s: {:.2?} of a CPU", cost::cpu_time(server)?.saturating_sub(begin));
    Ok(())
}

/// One request for each number, `clients` at a time.
async fn timed<F>(
    what: &str,
    count: usize,
    clients: usize,
    ask: impl Fn(usize) -> F,
) -> Result<(), kube::Error>
where
    F: Future<Output = Result<(), kube::Error>>,
{
    let begin = Instant::now();
    let each = stream::iter(0..count).map(|number| {
        let asked = ask(number);
        async {
            let begin = Instant::now();
            asked.await.map(|()| begin.elapsed())
        }
    });
    let mut took: Vec<Duration> = each.buffer_unordered(clients).try_collect().await?;
    println!("  {what}: {}; {}", table::rate(count, begin.elapsed()), table::spread(&mut took));
    Ok(())
}
