//! The jobs that a guest is given.

use std::fmt;

use serde::{Deserialize, Serialize};
use vireo_tests::io_load::{Job, Limit, Mode};

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// 4 KiB at random, one at a time.
    RandomRead1,
    /// 4 KiB at random, 32 at once.
    RandomRead32,
    /// 128 KiB after each other, 8 at once.
    Sequential8,
    /// 4 KiB at random, read and written and synchronized, 8 at once.
    Mixed8,
}

impl Workload {
    /// In the order in which a guest carries them out: the one that writes is last.
    pub(crate) const ALL: [Self; 4] =
        [Self::RandomRead1, Self::RandomRead32, Self::Sequential8, Self::Mixed8];

    /// The job that is measured for that time, after a tenth of it for nothing, by as many threads.
    pub(crate) fn job(self, seconds: f64, threads: u32) -> Job {
        let (mode, block, depth) = match self {
            Self::RandomRead1 => (Mode::RandomRead, 4 << 10, 1),
            Self::RandomRead32 => (Mode::RandomRead, 4 << 10, 32),
            Self::Sequential8 => (Mode::SequentialRead, 128 << 10, 8),
            Self::Mixed8 => (Mode::Mixed, 4 << 10, 8),
        };
        Job { mode, block, depth, limit: Limit::Seconds(seconds), ramp: seconds / 10.0, threads }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::RandomRead1 => "read 4k, 1",
            Self::RandomRead32 => "read 4k, 32",
            Self::Sequential8 => "sequential 128k, 8",
            Self::Mixed8 => "mixed 4k, 8",
        })
    }
}
