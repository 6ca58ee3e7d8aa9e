//! The server of tests.

use std::fmt::Debug;
use std::time::Duration;

use crate::compose::{Parts, part_client};
use vireo_apiserver::flow_control::FlowControl;
use vireo_install::policy::CDI_API;

use super::*;

/// How long a change may take.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// A store that has lost objects.
fn with_unreadable(directory: &Path, keys: &[Key]) -> Store {
    for Key { resource, namespace, name } in keys {
        let lost = directory.join("unreadable").join(resource).join(namespace).join(name);
        std::fs::create_dir_all(&lost).unwrap();
        std::fs::write(lost.join("1.json"), "{").unwrap();
    }
    Store::open(&directory.join("store")).unwrap()
}

/// Tokens for the accounts of a store, with `right` as the administrator's.
pub(crate) fn tokens(directory: &Path, store: &Arc<Store>) -> Tokens {
    let signer = Signer::of(&directory.join("sa.key")).unwrap();
    Tokens::new("right".to_owned(), signer, Arc::clone(store))
}

/// A server that is composed as `vireo standalone` is, without a socket.
pub(super) struct World {
    pub(super) _dir: tempfile::TempDir,
    pub(super) server: Arc<Server>,
    pub(super) cdi: Arc<CdiApi>,
}

impl World {
    pub(super) fn new() -> Self {
        Self::with_unreadable(&[])
    }

    pub(super) fn with_unreadable(keys: &[vireo_apiserver::store::Key]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let registry = Arc::new(Registry::new(crate::resource::rows()));
        let store = with_unreadable(dir.path(), keys);
        let store = Arc::new(store.recorded_by(Arc::clone(&registry) as _));
        crate::bootstrap::prepare(&store, "node1").unwrap();
        vireo_apiserver::rbac::bootstrap::prepare(&store, &vireo_install::policy::policy()).unwrap();
        let tokens = Arc::new(tokens(dir.path(), &store));
        let allowed = AllowedPaths {
            host_disks: AllowedDirectories::Below(vec!["/srv/disks".into()]),
            images: AllowedDirectories::Below(vec!["/srv/images".into()]),
            named_images: vec!["/srv/images".into()],
        };
        let files = vireo_handler::storage::Claims::below(
            dir.path().join("claims"),
            vireo_handler::storage::ImageReader::InProcess,
        );
        let state_dir = dir.path().to_owned();
        let mut cdi = None;
        let server = Arc::new_cyclic(|server| {
            let uploads = Uploads {
                client: part_client(server, CDI_API, "cdi-apiserver"),
                files,
                url: "https://127.0.0.1:6443".to_owned(),
                jobs: vireo_handler::jobs::Jobs::default(),
            };
            let served = cdi.insert(Arc::new(CdiApi { tokens, uploads }));
            let parts = Parts {
                store,
                registry,
                state_dir,
                allowed,
                cdi: Arc::clone(served),
                node: Router::new(),
                measures: Measures::default(),
                flow_control: FlowControl::default(),
            };
            parts.server(server)
        });
        let cdi = cdi.unwrap();
        Self { _dir: dir, server, cdi }
    }

    /// Waits until something holds after a write. When it takes too long, the test fails with the state.
    pub(super) async fn until<S: Debug>(&self, what: &str, holds: impl Fn() -> bool, state: impl Fn() -> S) {
        let mut revisions = self.server.store.subscribe();
        let waiting = async {
            while !holds() {
                revisions.changed().await.unwrap();
            }
        };
        let waited = tokio::time::timeout(LIMIT, waiting).await;
        assert!(waited.is_ok(), "{what}: {:#?}", state());
    }

    /// As kubectl would: method, path, media type, body.
    pub(super) async fn send(
        &self,
        method: &str,
        path: &str,
        media: &str,
        body: impl Into<Body>,
    ) -> (u16, Value) {
        let request = Request::builder().method(method).uri(path).header("Content-Type", media);
        self.send_as(User::administrator(), request.body(body.into()).unwrap()).await
    }

    /// A request of a user.
    pub(super) async fn send_as(&self, user: User, request: Request<Body>) -> (u16, Value) {
        let response = answer(Arc::clone(&self.server), user, request).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        // Actions of subresources have no answer but their code.
        let answer = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() };
        (code, answer)
    }

    pub(super) async fn ask(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(method, path, "application/json", body).await
    }

    pub(super) async fn patch(&self, path: &str, kind: &str, body: Value) -> (u16, Value) {
        self.send("PATCH", path, &format!("application/{kind}-patch+json"), body.to_string()).await
    }
}
