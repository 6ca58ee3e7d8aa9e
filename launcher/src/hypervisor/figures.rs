use tokio::sync::{mpsc, oneshot};
use vireo_proto::launcher::{BalloonStatistics, DiskStatistics};

/// How many may wait for figures at once; others wait until they may.
const WAITING: usize = 4;

/// What a hypervisor knows of what its machine has used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The process that is the machine.
    pub pid: i32,
    /// The threads that are its processors: their numbers and thread ids.
    pub vcpus: Vec<(u32, i32)>,
    /// Of disks, by their places in the launch message; without names.
    pub disks: Vec<(usize, DiskStatistics)>,
    /// What the balloon knows.
    pub balloon: Option<BalloonStatistics>,
}

/// Somebody who waits for figures.
pub type Reading = oneshot::Sender<Figures>;

/// The hypervisor's side: those who wait.
pub type Readings = mpsc::Receiver<Reading>;

/// Where to read what a machine has used. The hypervisor looks when it is asked, and not before.
#[derive(Clone, Debug)]
pub struct Meter(mpsc::Sender<Reading>);

impl Meter {
    /// A meter, and the other side of it.
    pub(super) fn new() -> (Self, Readings) {
        let (sender, readings) = mpsc::channel(WAITING);
        (Self(sender), readings)
    }

    /// What it says now; `None` once the machine is gone. A hypervisor that hangs never answers: the caller has a
    /// deadline.
    pub async fn read(&self) -> Option<Figures> {
        let (reading, figures) = oneshot::channel();
        self.0.send(reading).await.ok()?;
        figures.await.ok()
    }
}
