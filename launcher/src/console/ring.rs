use std::collections::VecDeque;

/// The last bytes of a stream, addressed by their offset in the whole stream.
#[derive(Debug)]
pub struct Ring {
    bytes: VecDeque<u8>,
    capacity: usize,
    /// Offset of the first byte that is still here; as many were dropped.
    start: u64,
}

/// What a reader got.
#[derive(Debug, PartialEq, Eq)]
pub struct Read {
    /// How many bytes.
    pub taken: usize,
    /// How many were dropped before this reader came to them.
    pub skipped: u64,
    /// Offset to continue at.
    pub next: u64,
}

impl Ring {
    /// Keeps the last `capacity` bytes; takes memory only as it fills.
    pub fn new(capacity: usize) -> Self {
        Self { bytes: VecDeque::new(), capacity, start: 0 }
    }

    /// Appends, dropping the oldest.
    pub fn push(&mut self, bytes: &[u8]) {
        let (lost, kept) = bytes.split_at(bytes.len().saturating_sub(self.capacity));
        let excess = (self.bytes.len() + kept.len()).saturating_sub(self.capacity);
        self.bytes.drain(..excess);
        self.bytes.extend(kept);
        // A usize fits a u64 on every target there is; at 1 GB/s the count lasts 500 years.
        self.start += (lost.len() + excess) as u64;
    }

    /// Copies what follows `from`, as much as fits `out`. A reader behind the ring continues with its oldest byte.
    pub fn read(&self, from: u64, out: &mut [u8]) -> Read {
        let skipped = self.start.saturating_sub(from);
        let at = usize::try_from(from.saturating_sub(self.start)).unwrap_or(usize::MAX);
        let taken = self.bytes.len().saturating_sub(at).min(out.len());
        for (to, byte) in out.iter_mut().zip(self.bytes.range(at.min(self.bytes.len())..)) {
            *to = *byte;
        }
        Read { taken, skipped, next: from + skipped + taken as u64 }
    }

    /// All bytes that are still here; [`Self::end`] is the offset to continue at.
    pub fn history(&self) -> Vec<u8> {
        self.bytes.iter().copied().collect()
    }

    /// Offset of the next byte.
    pub fn end(&self) -> u64 {
        // As many as were ever here fit a u64, see `push`.
        self.start + self.bytes.len() as u64
    }

    /// How many bytes were dropped so far.
    #[cfg(test)]
    pub fn dropped(&self) -> u64 {
        self.start
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_reader_that_was_overtaken_goes_on_with_the_oldest_byte() {
        let mut ring = Ring::new(4);
        ring.push(b"abcdef");
        let mut out = [0; 3];
        assert_eq!(ring.read(0, &mut out), Read { taken: 3, skipped: 2, next: 5 });
        assert_eq!(&out, b"cde");
        assert_eq!(ring.read(5, &mut out), Read { taken: 1, skipped: 0, next: 6 });
        assert_eq!(ring.read(6, &mut out), Read { taken: 0, skipped: 0, next: 6 });
    }

    fn size(count: u64) -> usize {
        count.try_into().unwrap()
    }

    proptest! {
        /// Against the whole stream kept in memory: every byte a reader gets is the one at its offset, and what it
        /// does not get is counted in `skipped`.
        #[test]
        fn readers_see_the_stream_with_counted_gaps(
            capacity in 0usize..64,
            steps in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..100), 0usize..80), 0..60),
        ) {
            let mut ring = Ring::new(capacity);
            let mut stream = Vec::new();
            let mut cursor = 0;
            for (write, bytes, room) in steps {
                if write {
                    ring.push(&bytes);
                    stream.extend_from_slice(&bytes);
                    prop_assert!(ring.bytes.len() <= capacity);
                    prop_assert_eq!(size(ring.dropped()) + ring.bytes.len(), stream.len());
                } else {
                    let mut out = vec![0; room];
                    let read = ring.read(cursor, &mut out);
                    let first = size(cursor + read.skipped);
                    prop_assert_eq!(&out[..read.taken], &stream[first..first + read.taken]);
                    prop_assert_eq!(size(read.next), first + read.taken);
                    prop_assert!(read.taken == room || size(read.next) == stream.len());
                    cursor = read.next;
                }
            }
        }
    }
}
