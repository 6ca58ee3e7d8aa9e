use std::sync::Arc;

use kube::Client;
use kube::runtime::watcher::Config;
use serde_json::Value;
use vireo_client::ObjectKey;
use vireo_client::informer::{Cached, Change, Informer, whole};

use super::{Choice, Scope};

/// The caches of instance types and preferences.
#[derive(Debug)]
pub struct Informers([(Choice, Scope, Arc<Informer<Value>>); 4]);

impl Informers {
    /// Empty caches.
    pub fn new(client: &Client) -> Arc<Self> {
        use Choice::{Instancetype, Preference};
        use Scope::{Cluster, Namespaced};
        let all = [
            (Instancetype, Namespaced),
            (Instancetype, Cluster),
            (Preference, Namespaced),
            (Preference, Cluster),
        ];
        Arc::new(Self(all.map(|(choice, scope)| {
            let objects = choice.resource(scope).all(client);
            (choice, scope, Informer::new(objects, Config::default(), whole))
        })))
    }

    /// Keeps the caches until it is dropped.
    pub async fn run(&self) {
        let [a, b, c, d] = self.0.each_ref().map(|(_, _, informer)| informer);
        tokio::join!(a.run(), b.run(), c.run(), d.run());
    }

    /// Waits for the first lists.
    pub async fn synced(&self) {
        for (_, _, informer) in &self.0 {
            informer.synced().await;
        }
    }

    /// One object. The namespace of cluster-wide objects is empty.
    pub fn get(
        &self,
        choice: Choice,
        scope: Scope,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<Cached<Value>>> {
        let (_, _, informer) = self.0.iter().find(|(of, at, _)| (*of, *at) == (choice, scope))?;
        informer.get(&ObjectKey::new(namespace, name))
    }

    /// Has a function called for each change, as [`Informer::on_change`].
    pub fn on_change(&self, handler: impl Fn(Choice, Scope, &Change<Value>) + Clone + Send + Sync + 'static) {
        for &(choice, scope, ref informer) in &self.0 {
            let handler = handler.clone();
            informer.on_change(move |change| handler(choice, scope, change));
        }
    }
}
