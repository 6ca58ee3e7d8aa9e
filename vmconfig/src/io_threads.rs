/// How many threads carry out the requests of the virtio disks without a dedicated one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoThreads {
    /// One thread.
    Shared,
    /// A pool of so many threads, each with its share of the disks.
    Pool(u16),
    /// A pool of so many threads, all of which serve the queues of each disk.
    Supplemental(u16),
}

impl IoThreads {
    /// The most threads of a pool.
    pub const MAX: u16 = 512;

    /// The number of threads.
    pub const fn count(self) -> u16 {
        match self {
            Self::Shared => 1,
            Self::Pool(count) | Self::Supplemental(count) => count,
        }
    }
}
