//! Which request comes next. Deterministic.

use vireo_tests::io_load::{Job, Mode};

/// Writes between two `fdatasync`s.
const SYNC_EVERY: u32 = 16;
/// Reads of ten requests.
const READS_OF_TEN: u32 = 7;

/// One request, with its offset in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read(u64),
    Write(u64),
    Sync,
}

/// The requests of a job.
#[derive(Debug)]
pub(crate) struct Pattern {
    mode: Mode,
    block: u64,
    blocks: u64,
    random: fastrand::Rng,
    next_block: u64,
    unsynced: u32,
}

impl Pattern {
    /// Those of one of the job's threads, for a device that has at least one block.
    pub(crate) fn new(job: &Job, thread: u32, device_bytes: u64) -> Self {
        let block = u64::from(job.block.max(1));
        let blocks = (device_bytes / block).max(1);
        Self {
            mode: job.mode,
            block,
            blocks,
            random: fastrand::Rng::with_seed(u64::from(thread) << 32 | u64::from(job.depth)),
            // Each begins at a part of its own.
            next_block: blocks / u64::from(job.threads.max(1)) * u64::from(thread),
            unsynced: 0,
        }
    }

    pub(crate) fn next(&mut self) -> Operation {
        match self.mode {
            Mode::RandomRead => Operation::Read(self.anywhere()),
            Mode::RandomWrite => Operation::Write(self.anywhere()),
            Mode::SequentialRead => {
                let block = self.next_block;
                self.next_block = (block + 1) % self.blocks;
                Operation::Read(block * self.block)
            }
            Mode::Mixed if self.unsynced == SYNC_EVERY => {
                self.unsynced = 0;
                Operation::Sync
            }
            Mode::Mixed if self.random.u32(0..10) < READS_OF_TEN => Operation::Read(self.anywhere()),
            Mode::Mixed => {
                self.unsynced += 1;
                Operation::Write(self.anywhere())
            }
        }
    }

    fn anywhere(&mut self) -> u64 {
        self.random.u64(0..self.blocks) * self.block
    }
}

#[cfg(test)]
mod tests {
    use vireo_tests::io_load::Limit;

    use super::*;

    fn operations(mode: Mode, device_bytes: u64, count: usize) -> Vec<Operation> {
        let job = Job { mode, block: 4096, depth: 1, limit: Limit::Requests(1), ramp: 0.0, threads: 1 };
        let mut pattern = Pattern::new(&job, 0, device_bytes);
        std::iter::repeat_with(|| pattern.next()).take(count).collect()
    }

    #[test]
    fn sequential_reads_start_over_at_the_end() {
        // The last block is not whole.
        let read = operations(Mode::SequentialRead, 2 * 4096 + 512, 3);
        assert_eq!(read, [Operation::Read(0), Operation::Read(4096), Operation::Read(0)]);
    }

    #[test]
    fn random_requests_reach_all_blocks() {
        let mut offsets: Vec<u64> = operations(Mode::RandomWrite, 16 * 4096, 1000)
            .into_iter()
            .map(|operation| match operation {
                Operation::Write(offset) => offset,
                other => panic!("{other:?}"),
            })
            .collect();
        offsets.sort_unstable();
        offsets.dedup();
        assert_eq!(offsets, (0..16).map(|block| block * 4096).collect::<Vec<_>>());
        assert!(operations(Mode::RandomRead, 4096, 9).iter().all(|read| *read == Operation::Read(0)));
    }

    #[test]
    fn a_third_of_mixed_requests_writes_and_sixteen_of_these_are_synchronized() {
        let all = operations(Mode::Mixed, 1 << 20, 10_000);
        let writes = all.iter().filter(|operation| matches!(operation, Operation::Write(_))).count();
        let syncs = all.iter().filter(|operation| **operation == Operation::Sync).count();
        assert!((2700..3200).contains(&writes), "{writes}");
        assert_eq!(syncs, writes / 16);
        let first = all.iter().position(|operation| *operation == Operation::Sync).unwrap();
        let before = all[..first].iter().filter(|operation| matches!(operation, Operation::Write(_)));
        assert_eq!(before.count(), 16);
    }
}
