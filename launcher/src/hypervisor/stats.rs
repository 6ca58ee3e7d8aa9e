use tokio::sync::{mpsc, oneshot};
use vireo_proto::launcher::{BalloonStatistics, DiskStatistics};

/// Queued requests; further ones wait.
const WAITING: usize = 4;

/// What a hypervisor knows of what its VM has used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HypervisorStats {
    /// The process that is the VM.
    pub pid: i32,
    /// The threads that are its vCPUs: their numbers and thread ids.
    pub vcpus: Vec<(u32, i32)>,
    /// Of disks, by their index in the launch message; without names.
    pub disks: Vec<(usize, DiskStatistics)>,
    /// Of volumes that were attached while the VM runs, with their names.
    pub plugged: Vec<DiskStatistics>,
    /// What the balloon knows.
    pub balloon: Option<BalloonStatistics>,
}

/// The reply to a request.
pub type StatsReply = oneshot::Sender<HypervisorStats>;

/// The hypervisor's side: those who wait.
pub type StatsRequests = mpsc::Receiver<StatsReply>;

/// Requests the statistics of a VM. The hypervisor collects them on request only.
#[derive(Clone, Debug)]
pub struct StatsClient(mpsc::Sender<StatsReply>);

impl StatsClient {
    /// A meter, and the other side of it.
    pub(super) fn new() -> (Self, StatsRequests) {
        let (sender, stats_requests) = mpsc::channel(WAITING);
        (Self(sender), stats_requests)
    }

    /// Current statistics; `None` once the VM is gone. A hypervisor that hangs never answers: the caller has a
    /// deadline.
    pub async fn read(&self) -> Option<HypervisorStats> {
        let (reading, figures) = oneshot::channel();
        self.0.send(reading).await.ok()?;
        figures.await.ok()
    }
}
