//! Console output between the guest and whatever is slow: a bounded ring and one thread that writes it out.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vireo_vmm::serial::SerialOutput;

/// What is kept for a reader that does not read; older output is dropped.
const CAPACITY: usize = 64 << 10;
/// The guest writes a byte at a time: output is gathered for so long, or until there is so much of it.
const GATHER: Duration = Duration::from_millis(2);
const ENOUGH: usize = 4 << 10;
/// How long the end waits for a reader to take what is left.
const PATIENCE: Duration = Duration::from_secs(2);
const STACK: usize = 128 << 10;

/// Takes output without ever blocking.
#[derive(Clone)]
pub(crate) struct Spool {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    ring: Mutex<Ring>,
    /// There is something to write.
    filled: Condvar,
    /// Everything is written.
    drained: Condvar,
}

#[derive(Default)]
struct Ring {
    bytes: VecDeque<u8>,
    dropped: u64,
    writing: bool,
    closed: bool,
}

impl Shared {
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for output; `None` when there is none and will be none.
    fn next(&self) -> Option<Vec<u8>> {
        let mut ring = self.ring();
        ring.writing = false;
        if ring.bytes.is_empty() {
            self.drained.notify_all();
        }
        let ring = self
            .filled
            .wait_while(ring, |ring| ring.bytes.is_empty() && !ring.closed)
            .unwrap_or_else(PoisonError::into_inner);
        let gathering = |ring: &mut Ring| ring.bytes.len() < ENOUGH && !ring.closed;
        let (mut ring, _) =
            self.filled.wait_timeout_while(ring, GATHER, gathering).unwrap_or_else(PoisonError::into_inner);
        if ring.bytes.is_empty() {
            return None;
        }
        ring.writing = true;
        Some(ring.bytes.drain(..).collect())
    }
}

impl Spool {
    /// Starts the thread that hands output to `write`, in order. What it does with a reader that is gone is its own
    /// affair.
    pub(crate) fn start(mut write: impl FnMut(&[u8]) + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let writer = shared.clone();
        std::thread::Builder::new().name("console-out".into()).stack_size(STACK).spawn(move || {
            while let Some(bytes) = writer.next() {
                write(&bytes);
            }
        })?;
        Ok(Self { shared })
    }

    /// Starts a spool onto `file`. After an error, output is thrown away.
    pub(crate) fn onto(mut file: impl Write + Send + 'static) -> io::Result<Self> {
        let mut broken = false;
        Self::start(move |bytes| {
            if broken {
                return;
            }
            if let Err(error) = file.write_all(bytes).and_then(|()| file.flush()) {
                tracing::warn!(%error, "console output is lost from here on");
                broken = true;
            }
        })
    }

    /// Takes no more, and waits a moment for the rest to be written.
    pub(crate) fn close(&self) {
        let mut ring = self.shared.ring();
        ring.closed = true;
        self.shared.filled.notify_all();
        let unfinished = |ring: &mut Ring| ring.writing || !ring.bytes.is_empty();
        let (ring, _) = self
            .shared
            .drained
            .wait_timeout_while(ring, PATIENCE, unfinished)
            .unwrap_or_else(PoisonError::into_inner);
        if ring.dropped > 0 {
            tracing::warn!(bytes = ring.dropped, "console output was dropped: no reader");
        }
    }
}

impl SerialOutput for Spool {
    fn write(&mut self, bytes: &[u8]) {
        let mut ring = self.shared.ring();
        if ring.closed {
            return;
        }
        let was_empty = ring.bytes.is_empty();
        ring.bytes.extend(bytes);
        let surplus = ring.bytes.len().saturating_sub(CAPACITY);
        ring.bytes.drain(..surplus);
        ring.dropped = ring.dropped.saturating_add(u64::try_from(surplus).unwrap_or(u64::MAX));
        // Waking the writer costs a system call: twice for a batch is enough.
        if was_empty || ring.bytes.len() == ENOUGH {
            self.shared.filled.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn output_arrives_whole_and_in_order_before_close_returns() {
        let (sender, receiver) = mpsc::channel();
        let mut spool = Spool::start(move |bytes| sender.send(bytes.to_vec()).unwrap()).unwrap();
        let text: Vec<u8> = (0..=255).cycle().take(20_000).collect();
        text.iter().for_each(|byte| spool.write(&[*byte]));
        spool.close();
        assert_eq!(receiver.try_iter().flatten().collect::<Vec<u8>>(), text);
    }

    #[test]
    fn a_reader_that_hangs_costs_the_oldest_output_and_no_memory() {
        let (go, wait) = mpsc::channel::<()>();
        let (sender, receiver) = mpsc::channel();
        let mut first = true;
        let mut spool = Spool::start(move |bytes| {
            if std::mem::take(&mut first) {
                let _ = wait.recv();
            }
            sender.send(bytes.to_vec()).unwrap();
        })
        .unwrap();
        spool.write(b"x");
        while !spool.shared.ring().writing {
            std::thread::yield_now();
        }
        spool.write(&vec![b'a'; CAPACITY]);
        spool.write(b"end");
        assert_eq!(spool.shared.ring().bytes.len(), CAPACITY);
        assert_eq!(spool.shared.ring().dropped, 3);
        go.send(()).unwrap();
        spool.close();
        let got: Vec<u8> = receiver.try_iter().flatten().collect();
        assert_eq!(got.len(), CAPACITY + 1);
        assert!(got.ends_with(b"aend"));
    }
}
