//! The election of a leader by a Lease (`coordination.k8s.io/v1`): of the replicas of a component, one at a time works.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::Client;
use kube_lease_manager::LeaseManagerBuilder;
use tracing::info;
use uuid::Uuid;
use vireo_client::program::{Failure, stop_signal};

/// Seconds until another replica leads after the leader died; those of Kubernetes' own controllers.
const DURATION: u64 = 15;
/// Seconds before its end at which the leader renews the Lease.
const GRACE: u64 = 5;

/// Whether this process leads its component.
#[derive(Debug, Clone, Default)]
pub struct Leadership(Arc<AtomicBool>);

impl Leadership {
    /// Whether it leads now.
    pub fn is_held(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Works while this process leads its component, until a signal stops it. The Lease has the name of the component.
///
/// # Errors
/// When the Lease cannot be kept, or the leadership is lost: what works may not know that, so the process is to end.
pub async fn run(
    client: &Client,
    (namespace, component): (&str, &'static str),
    leadership: &Leadership,
    work: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let stop = stop_signal()?;
    let lease = LeaseManagerBuilder::new(client.clone(), component)
        .with_namespace(namespace)
        .with_duration(DURATION)
        .with_grace(GRACE)
        .with_identity(identity())
        .build()
        .await?;
    let (mut leads, election) = lease.watch().await;
    info!(component, namespace, "waiting for the leadership");
    let lead = async {
        leads.wait_for(|leads| *leads).await?;
        info!(component, "leads");
        leadership.0.store(true, Ordering::Relaxed);
        let done = tokio::select! {
            () = work => Ok(()),
            _ = leads.wait_for(|leads| !*leads) => Err("another process leads now".into()),
        };
        leadership.0.store(false, Ordering::Relaxed);
        done
    };
    let done = tokio::select! {
        () = stop => Ok(()),
        done = lead => done,
    };
    // The next leader need not wait for the end of the Lease.
    drop(leads);
    election.await??;
    info!(component, "stops");
    done
}

/// Who leads, as Kubernetes' controllers say it: the Pod, and which process in it.
fn identity() -> String {
    let pod = std::env::var("HOSTNAME").unwrap_or_default();
    format!("{pod}_{}", Uuid::new_v4())
}
