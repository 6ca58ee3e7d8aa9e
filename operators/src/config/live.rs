//! The configuration of a cluster as it is now.

use std::sync::Arc;

use kube::Client;
use kube::runtime::watcher;
use serde_json::Value;
use tokio::sync::Notify;
use vireo_api::decode;
use vireo_api::names::NAMESPACE;
use vireo_api::v1::KubeVirt;
use vireo_client::Kind;
use vireo_client::informer::{Cached, Informer};

use super::ClusterConfig;

/// Knows the configuration, which may change at any time. The default is that of a cluster that sets nothing.
#[derive(Debug, Clone)]
pub struct LiveConfig(Source);

#[derive(Debug, Clone)]
enum Source {
    Fixed(Arc<ClusterConfig>),
    Watched(Arc<Informer<Configured>>),
}

/// A KubeVirt object.
#[derive(Debug)]
struct Configured {
    created: Option<String>,
    config: Arc<ClusterConfig>,
}

impl Default for LiveConfig {
    fn default() -> Self {
        Self::fixed(ClusterConfig::default())
    }
}

/// What of a KubeVirt object can be read. Its status is of no use here.
#[expect(clippy::unnecessary_wraps, reason = "an informer reads objects that may not be readable")]
fn read(mut object: Value) -> Result<Configured, serde_json::Error> {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    let KubeVirt { metadata, spec, .. } = decode::object::<KubeVirt>(object).object;
    let config = Arc::new(ClusterConfig::read(&spec.configuration).0);
    Ok(Configured { created: metadata.creation_timestamp, config })
}

impl LiveConfig {
    /// One that does not change.
    pub fn fixed(config: ClusterConfig) -> Self {
        Self(Source::Fixed(Arc::new(config)))
    }

    /// That of the KubeVirt object of a cluster, which [`run`](Self::run) watches.
    pub fn watched(client: &Client) -> Self {
        Self(Source::Watched(Informer::new(Kind::KUBEVIRT.all(client), watcher::Config::default(), read)))
    }

    /// Watches until it is dropped. It returns at once where there is nothing to watch.
    pub async fn run(&self) {
        if let Source::Watched(installations) = &self.0 {
            installations.run().await;
        }
    }

    /// Watches like [`run`](Self::run), and calls a function with the configuration, now and after each change of it.
    pub async fn follow(&self, apply: impl Fn(&ClusterConfig) + Send + Sync + 'static) {
        let Source::Watched(installations) = &self.0 else {
            apply(&self.current());
            return std::future::pending().await;
        };
        let changed = Arc::new(Notify::new());
        let wake = Arc::clone(&changed);
        installations.on_change(move |_| wake.notify_one());
        let apply = async {
            self.synced().await;
            apply_changes(|| self.current(), &changed, apply).await;
        };
        tokio::select! {
            () = self.run() => {}
            () = apply => {}
        }
    }

    /// Waits until it is known.
    pub async fn synced(&self) {
        if let Source::Watched(installations) = &self.0 {
            installations.synced().await;
        }
    }

    /// The configuration now. Settings that are not valid are as if they were not set; virt-operator names them.
    pub fn current(&self) -> Arc<ClusterConfig> {
        let installations = match &self.0 {
            Source::Fixed(config) => return Arc::clone(config),
            Source::Watched(installations) => installations,
        };
        oldest(installations, |one| one.created.as_ref())
            .map(|one| Arc::clone(&one.config))
            .unwrap_or_default()
    }
}

/// Calls a function with the current configuration, and after each notification with one that differs from the last: most
/// changes of a KubeVirt object are of its status.
async fn apply_changes(
    current: impl Fn() -> Arc<ClusterConfig>,
    changed: &Notify,
    apply: impl Fn(&ClusterConfig),
) {
    let mut applied = None;
    loop {
        let config = current();
        if applied.as_ref() != Some(&config) {
            apply(&config);
            applied = Some(config);
        }
        changed.notified().await;
    }
}

/// The KubeVirt object of a cluster: the oldest in the namespace of the components.
pub(crate) fn oldest<T: Send + Sync + 'static>(
    installations: &Informer<T>,
    created: impl Fn(&T) -> Option<&String>,
) -> Option<Arc<Cached<T>>> {
    let all = installations.namespace(NAMESPACE).into_iter();
    all.min_by_key(|one| (created(one).cloned(), one.key.clone()))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::pin::pin;

    use super::*;

    #[tokio::test]
    async fn settings_are_applied_when_they_change() {
        let config =
            |ratio| Arc::new(ClusterConfig { cpu_allocation_ratio: ratio, ..ClusterConfig::default() });
        let (current, applied) = (RefCell::new(config(1)), RefCell::new(Vec::new()));
        let changed = Notify::new();
        let apply = |config: &ClusterConfig| applied.borrow_mut().push(config.cpu_allocation_ratio);
        let mut run = pin!(apply_changes(|| Arc::clone(&current.borrow()), &changed, apply));
        // The first is the initial configuration, the second an event that changes nothing.
        for (ratio, expected) in [(1, vec![1]), (1, vec![1]), (2, vec![1, 2]), (1, vec![1, 2, 1])] {
            *current.borrow_mut() = config(ratio);
            changed.notify_one();
            assert!(futures_util::poll!(&mut run).is_pending());
            assert_eq!(*applied.borrow(), expected);
        }
    }
}
