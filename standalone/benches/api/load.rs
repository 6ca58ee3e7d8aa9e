//! The load: requests as bytes and answers unread, so that the client takes as little of the host as can be.

use std::future::Future;
use std::time::Instant;

use axum::http::Request;
use futures_util::{StreamExt as _, TryStreamExt as _, future, stream};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::figures::Figures;
use super::subject::Subject;
use super::{Arguments, Error};

/// Bytes of an object's text.
const SIZE: usize = 1024;
/// Objects of a list.
const PAGE: usize = 500;
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Marks objects that are watched.
const WATCHED: &str = "bench.example.com/watched";

/// Measures everything once.
pub(super) async fn round(subject: &Subject, arguments: &Arguments, round: usize) -> Result<Figures, Error> {
    let Arguments { objects, gets, lists, clients, .. } = *arguments;
    let clients = (0..clients).map(|_| subject.client()).collect::<Result<Vec<_>, _>>()?;
    let name = |number: usize| format!("object-{round}-{number}");
    let creates = rate(&clients, objects, |client, number| async move {
        send(client, "POST", MAPS, Some(map(&name(number), json!({})))).await
    });
    let creates = creates.await?;
    let gets = rate(&clients, gets, |client, number| async move {
        send(client, "GET", &format!("{MAPS}/{}", name(number % objects)), None).await
    });
    let gets = gets.await?;
    let list = &*format!("{MAPS}?limit={PAGE}");
    let lists = rate(&clients, lists, |client, _| send(client, "GET", list, None)).await?;
    let events = fan_out(subject, &clients, arguments, round).await?;
    Ok(Figures { creates, gets, lists, events, memory: subject.memory()? })
}

/// Requests per second where each client sends one after the other.
async fn rate<'c, F>(
    clients: &'c [Client],
    count: usize,
    request: impl Fn(&'c Client, usize) -> F,
) -> Result<f64, Error>
where
    F: Future<Output = Result<(), Error>>,
{
    let (begin, request) = (Instant::now(), &request);
    let each = clients.iter().enumerate().map(|(first, client)| async move {
        for number in (first..count).step_by(clients.len()) {
            request(client, number).await?;
        }
        Ok::<_, Error>(())
    });
    future::try_join_all(each).await?;
    per_second(count, begin)
}

/// Events per second that watches of changing objects receive, all together.
async fn fan_out(
    subject: &Subject,
    clients: &[Client],
    arguments: &Arguments,
    round: usize,
) -> Result<f64, Error> {
    let label = json!({ WATCHED: round.to_string() });
    let name = |number: usize| format!("watched-{round}-{number}");
    for (number, client) in clients.iter().enumerate() {
        send(client, "POST", MAPS, Some(map(&name(number), label.clone()))).await?;
    }
    let selector = format!("labelSelector={WATCHED}%3D{round}");
    let client = clients.first().ok_or("no client")?;
    let list = client.request_text(get(&format!("{MAPS}?{selector}"))?).await?;
    let list: Value = serde_json::from_str(&list)?;
    let version = list["metadata"]["resourceVersion"].as_str().ok_or("a list without a version")?;
    let path = format!("{MAPS}?watch=1&{selector}&resourceVersion={version}");
    // Each has its answer's head before anything changes.
    let watches = stream::iter(0..arguments.watchers).map(|_| async {
        let client = subject.client()?;
        let response = client.send(Request::get(&path).body(Body::empty())?).await?;
        Ok::<_, Error>((client, response.into_body()))
    });
    let watches: Vec<(Client, Body)> = watches.buffer_unordered(clients.len()).try_collect().await?;
    let mut watching = JoinSet::new();
    let count = arguments.changes;
    for (client, body) in watches {
        watching.spawn(async move {
            let _client = client;
            received(body, count).await
        });
    }
    let begin = Instant::now();
    let change = |client, number: usize| {
        let path = format!("{MAPS}/{}", name(number % clients.len()));
        let patch = json!({"data": {"change": number.to_string()}});
        async move { send(client, "PATCH", &path, Some(patch)).await }
    };
    rate(clients, count, change).await?;
    while let Some(ended) = watching.join_next().await {
        ended??;
    }
    per_second(count * arguments.watchers, begin)
}

/// Reads a watch until it has had so many events, each of which is a line.
async fn received(body: Body, count: usize) -> Result<(), Error> {
    let mut chunks = body.into_data_stream();
    let mut seen = 0;
    while seen < count {
        let chunk = chunks.next().await.ok_or("a watch ended")??;
        seen += chunk.iter().filter(|byte| **byte == b'\n').count();
    }
    Ok(())
}

fn map(name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels},
        "data": {"text": crate::filler::text(name, SIZE)}})
}

fn get(path: &str) -> Result<Request<Vec<u8>>, Error> {
    Ok(Request::get(path).body(Vec::new())?)
}

/// Sends a request. The answer is received whole; an error is one.
async fn send(client: &Client, method: &str, path: &str, body: Option<Value>) -> Result<(), Error> {
    let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header("Content-Type", media);
    let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    client.request_text(request.body(body)?).await?;
    Ok(())
}

fn per_second(count: usize, begin: Instant) -> Result<f64, Error> {
    Ok(f64::from(u32::try_from(count)?) / begin.elapsed().as_secs_f64())
}
