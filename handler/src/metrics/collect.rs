//! Queries the launchers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;
use uuid::Uuid;
use vireo_api::v1::VirtualMachineInstance;
use vireo_proto::launcher::{AgentQuestion, AskAgentResponse, GuestFilesystem, GuestLoad, Statistics};

use crate::launcher::link;
use crate::reconcile::status::ConditionType;
use crate::state::StateDir;

/// The timeout of one launcher.
const EACH: Duration = Duration::from_secs(5);
/// The timeout of all launchers together.
const ALL: Duration = Duration::from_secs(10);
/// How many launchers are queried at once.
const AT_ONCE: usize = 64;

/// A VMI and the resource usage of its VM.
#[derive(Debug, Clone)]
pub(super) struct VmiSample {
    pub(super) vmi: Arc<VirtualMachineInstance>,
    /// `None` when it does not run or its launcher did not respond.
    pub(super) statistics: Option<Statistics>,
    /// Empty without a guest agent.
    pub(super) filesystems: Vec<GuestFilesystem>,
    /// `None` where the guest agent does not know it.
    pub(super) load: Option<GuestLoad>,
}

/// All VMIs, and the number of running VMIs without a response.
pub(super) async fn everything(
    vmis: Vec<Arc<VirtualMachineInstance>>,
    state: &StateDir,
) -> (Vec<VmiSample>, usize) {
    let asking = vmis.iter().enumerate().filter(|(_, vmi)| vmi.status.phase == "Running");
    let asking: Vec<_> = asking.map(|(at, vmi)| (at, socket(state, vmi), has_agent(vmi))).collect();
    let asked = asking.len();
    let mut answers = stream::iter(asking)
        .map(|(at, socket, agent)| async move { (at, one(socket, agent).await) })
        .buffer_unordered(AT_ONCE);
    let deadline = Instant::now() + ALL;
    let mut known = BTreeMap::new();
    while let Ok(Some((at, answer))) = timeout_at(deadline, answers.next()).await {
        if let Some(answer) = answer {
            known.insert(at, answer);
        }
    }
    let missing = asked - known.len();
    let samples = vmis.into_iter().enumerate().map(|(at, vmi)| {
        let (statistics, usage) = known.remove(&at).unzip();
        let AskAgentResponse { filesystems, load, .. } = usage.unwrap_or_default();
        VmiSample { vmi, statistics, filesystems, load }
    });
    (samples.collect(), missing)
}

fn socket(state: &StateDir, vmi: &VirtualMachineInstance) -> Option<PathBuf> {
    let uid: Uuid = vmi.metadata.uid.parse().ok()?;
    Some(state.vmi_dir(uid).launcher_socket())
}

fn has_agent(vmi: &VirtualMachineInstance) -> bool {
    ConditionType::AgentConnected.holds(&vmi.status)
}

async fn one(socket: Option<PathBuf>, agent: bool) -> Option<(Statistics, AskAgentResponse)> {
    let socket = socket?;
    let usage = async {
        if !agent {
            return AskAgentResponse::default();
        }
        let response = timeout(EACH, link::ask_agent(&socket, AgentQuestion::Filesystems)).await;
        response.ok().and_then(Result::ok).unwrap_or_default()
    };
    let (statistics, usage) = tokio::join!(timeout(EACH, link::statistics(&socket)), usage);
    match statistics {
        Ok(Ok(statistics)) => Some((statistics, usage)),
        Ok(Err(error)) => {
            debug!(socket = %socket.display(), error = link::chain(&error), "no statistics");
            None
        }
        Err(_) => {
            debug!(socket = %socket.display(), "no statistics in time");
            None
        }
    }
}
