//! Requests to a server that has Kubernetes' resources alone, and admits everything that is valid.

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;

use super::*;
use crate::admission::AdmitAll;
use crate::rbac::defaults::Policy;
use crate::resource::Registry;

mod custom;
mod review;
mod token;

struct World {
    _dir: tempfile::TempDir,
    server: Arc<Server>,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let registry = Arc::new(Registry::default());
        let store = Store::open(&dir.path().join("store")).unwrap();
        let store = Arc::new(store.recorded_by(Arc::clone(&registry) as _));
        crate::objects::prepare(&store).unwrap();
        crate::rbac::bootstrap::prepare(&store, &Policy::default()).unwrap();
        let tokens = Arc::new(Tokens::of_a_test(dir.path(), Arc::clone(&store)));
        let server = Arc::new(Server {
            store,
            tokens,
            admission: Arc::new(AdmitAll),
            services: Vec::new(),
            proxies: Vec::new(),
            state_dir: dir.path().to_owned(),
            served: ServedResourcesCache::new(registry),
            roles: RolesNow::default(),
            metrics: Router::new(),
            measures: Measures::default(),
            flow_control: FlowControl::default(),
        });
        Self { _dir: dir, server }
    }

    /// As kubectl would: method, path, media type, body.
    async fn send(&self, method: &str, path: &str, media: &str, body: impl Into<Body>) -> (u16, Value) {
        let request = Request::builder().method(method).uri(path).header("Content-Type", media);
        self.send_as(User::administrator(), request.body(body.into()).unwrap()).await
    }

    /// A request of a user.
    async fn send_as(&self, user: User, request: Request<Body>) -> (u16, Value) {
        let response = answer(Arc::clone(&self.server), user, request).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap())
    }

    async fn ask(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(method, path, "application/json", body).await
    }

    async fn patch(&self, path: &str, kind: &str, body: Value) -> (u16, Value) {
        self.send("PATCH", path, &format!("application/{kind}-patch+json"), body.to_string()).await
    }
}
