//! Which kinds a cluster serves, of those that not every cluster does.

use std::time::Duration;

use kube::Client;
use tracing::{debug, info};
use vireo_client::Kind;

use crate::objects::{DISRUPTION_BUDGETS, MONITORING};

/// How often it is asked again.
const INTERVAL: Duration = Duration::from_secs(30);

/// What a cluster serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Served {
    /// PodDisruptionBudgets, in this version.
    pub(super) disruption_budgets: Kind,
    /// Whether it has Prometheus's operator.
    pub(super) monitoring: bool,
}

impl Served {
    /// Asks the API server.
    ///
    /// # Errors
    /// When it has no discovery.
    pub(super) async fn discover(client: &Client) -> Result<Self, kube::Error> {
        let groups = client.list_api_groups().await?.groups;
        let serves = |kind: &Kind| {
            let versions =
                groups.iter().filter(|group| group.name == kind.group).flat_map(|group| &group.versions);
            versions.into_iter().any(|version| version.version == kind.version)
        };
        let [newest, oldest] = DISRUPTION_BUDGETS;
        let disruption_budgets = if serves(&newest) { newest } else { oldest };
        let [service_monitor, _] = MONITORING;
        let monitoring = serves(&service_monitor) && {
            let known = client.list_api_group_resources(&service_monitor.api_version()).await?.resources;
            MONITORING.iter().all(|kind| known.iter().any(|resource| resource.name == kind.plural))
        };
        Ok(Self { disruption_budgets, monitoring })
    }

    /// Waits until the cluster serves something else.
    pub(super) async fn changed(self, client: &Client) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            match Self::discover(client).await {
                Ok(now) if now != self => {
                    info!(?now, "the cluster serves other kinds");
                    return;
                }
                Ok(_) => {}
                Err(error) => debug!(%error, "the cluster does not say what it serves"),
            }
        }
    }

    /// All of these kinds.
    pub(super) fn kinds(self) -> impl Iterator<Item = Kind> {
        [self.disruption_budgets].into_iter().chain(MONITORING.into_iter().filter(move |_| self.monitoring))
    }
}
