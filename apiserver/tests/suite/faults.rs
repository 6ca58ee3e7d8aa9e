//! What a client meets when a request cannot be served.

use std::sync::Arc;
use std::task::Poll;

use axum::body::{Body as ServerBody, Bytes};
use axum::extract::Request;
use axum::http::Method;
use axum::response::Response;
use futures_util::stream;
use http_body_util::BodyExt as _;
use kube::api::PostParams;
use kube::client::Body;
use kube::{Client, Error};
use serde_json::{Value, json};
use vireo_apiserver::admission::{Admission, AdmissionResult, AdmitAll, Attributes};
use vireo_apiserver::auth::User;
use vireo_apiserver::client::InProcess;
use vireo_apiserver::http::{Answer, ApiError, ApiService, Endpoint, ResourcePath};

use crate::test_server::{TestServer, map, maps, refused};

/// Panics: with the path `.../before` before the response begins, else after its first bytes.
#[derive(Debug)]
struct Panics;

impl ApiService for Panics {
    fn endpoint(&self, path: &ResourcePath) -> Option<Result<Endpoint, ApiError>> {
        (path.group == "panics.example.com").then_some(Ok(Endpoint::Request))
    }

    fn serve(self: Arc<Self>, path: ResourcePath, _: Request) -> Answer<Result<Response, ApiError>> {
        Box::pin(async move {
            assert_ne!(path.resource, "before", "a bug");
            let mut chunks = vec![Bytes::from_static(b"one")].into_iter();
            let body = stream::poll_fn(move |_| match chunks.next() {
                Some(chunk) => Poll::Ready(Some(Ok::<_, std::io::Error>(chunk))),
                None => panic!("a bug"),
            });
            Ok(Response::new(ServerBody::from_stream(body)))
        })
    }
}

impl Admission for Panics {
    fn validate(&self, _: &Attributes<'_>, new: &Value) -> AdmissionResult {
        assert_ne!(new["metadata"]["name"], json!("bug"), "a bug");
        Ok(Vec::new())
    }
}

#[tokio::test]
async fn a_part_of_a_server_does_not_keep_it() {
    let server = TestServer::start();
    let part = InProcess::part_of(Arc::downgrade(&server.server), User::administrator());
    let client = Client::new(part, "default");
    assert!(client.apiserver_version().await.is_ok());
    let gone = Arc::downgrade(&server.server);
    drop(server);
    assert!(gone.upgrade().is_none());
    assert_eq!(refused(client.apiserver_version().await).code, 503);
}

fn get(path: &str) -> axum::http::Request<Vec<u8>> {
    axum::http::Request::get(path).body(Vec::new()).unwrap()
}

#[tokio::test]
async fn a_panic_is_an_error() {
    let server = TestServer::start_with(Arc::new(Panics), vec![Arc::new(Panics)]);
    let client = server.admin();
    let failed = refused(client.request_text(get("/apis/panics.example.com/v1/before")).await);
    assert_eq!((failed.code, failed.reason.as_str()), (500, "InternalError"));
    assert!(failed.message.contains("panic"), "{failed:?}");
    let admitted = refused(maps(&client).create(&PostParams::default(), &map("bug")).await);
    assert_eq!(admitted.code, 500);

    let after = get("/apis/panics.example.com/v1/after").map(Body::from);
    let mut body = client.send(after).await.unwrap().into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
    assert!(body.frame().await.unwrap().unwrap_err().to_string().contains("panicked"));
    assert!(body.frame().await.is_none());
    let whole = client.request_text(get("/apis/panics.example.com/v1/after")).await;
    assert!(!matches!(whole, Ok(_) | Err(Error::Api(_))), "{whole:?}");

    maps(&client).create(&PostParams::default(), &map("good")).await.unwrap();
}

#[tokio::test]
async fn limits_are_those_of_every_client() {
    let server = TestServer::start_with(Arc::new(AdmitAll), Vec::new());
    let mut large = map("large");
    large.data.as_mut().unwrap().insert("large".to_owned(), "x".repeat(4 << 20));
    let refused = refused(maps(&server.admin()).create(&PostParams::default(), &large).await);
    assert_eq!((refused.code, refused.reason.as_str()), (413, "RequestEntityTooLarge"));
}

#[tokio::test]
async fn an_upgrade_is_refused() {
    let server = TestServer::start();
    let client = server.client(User::administrator());
    let mut request = get("/api/v1/namespaces/default/pods/p/exec");
    request.headers_mut().insert("Connection", "Upgrade".parse().unwrap());
    request.headers_mut().insert("Upgrade", "websocket".parse().unwrap());
    let refused = refused(client.request_text(request).await);
    assert_eq!((refused.code, refused.reason.as_str()), (400, "BadRequest"));
    assert!(refused.message.starts_with("Upgrade requests are not supported"), "{}", refused.message);
}

#[tokio::test]
async fn head_has_no_body() {
    let server = TestServer::start();
    let mut request = get("/version").map(Body::from);
    *request.method_mut() = Method::HEAD;
    let response = server.admin().send(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.into_body().collect().await.unwrap().to_bytes().is_empty());
}
