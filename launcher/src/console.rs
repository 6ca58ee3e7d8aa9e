//! The guest's serial console: a bounded history, any number of readers, one gate for keys.
//!
//! The guest's bytes go into a [`Ring`] that drops its oldest and counts what it dropped. A client is a cursor into
//! that ring: it starts at its end and follows; a client that reads too slowly is overtaken by the ring and continues
//! with the oldest byte left; nothing waits for it. A client that asks for history is first sent the ring's content, made
//! plain text by a filter, and then what follows it. Keys of all clients go
//! through one short queue which the hypervisor empties only while the UART takes bytes; when the guest does not
//! read, clients block and nothing grows. A client that closes its writing side keeps reading.

mod history;
mod ring;
mod serve;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, mpsc};

#[cfg(any(test, fuzzing))]
pub(crate) use history::plain_text;
pub use ring::{Read, Ring};
pub use serve::{Greeting, serve};

/// How many bytes of output a late client still gets.
const HISTORY: usize = 256 << 10;
/// Chunks of keys on their way to the guest, each at most as long as one read of a client.
const KEYS: usize = 4;

/// A guest's console. Clones are the same console.
#[derive(Clone)]
pub struct Console {
    shared: Arc<Shared>,
    keys: mpsc::Sender<Vec<u8>>,
}

/// The guest's end of the console.
pub struct Port {
    /// Where the guest's bytes go.
    pub output: Output,
    /// Input for the guest; to be received only while the guest has room for it.
    pub input: mpsc::Receiver<Vec<u8>>,
}

/// Sink for the guest's output. Clones share it.
#[derive(Clone)]
pub struct Output(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    ring: Ring,
    ended: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, and bytes stay bytes if something did.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Console {
    /// A console without output, and the guest's end of it.
    pub fn new() -> (Self, Port) {
        let shared = Arc::new(Shared {
            state: Mutex::new(State { ring: Ring::new(HISTORY), ended: false }),
            changed: Notify::new(),
        });
        let (keys, input) = mpsc::channel(KEYS);
        (Self { shared: Arc::clone(&shared), keys }, Port { output: Output(shared), input })
    }

    /// The guest is gone: clients get what is left and then the end.
    pub fn end(&self) {
        self.shared.state().ended = true;
        self.shared.changed.notify_waiters();
    }
}

impl Output {
    /// Appends output of the guest. Waits at most for a client that is copying a chunk out.
    pub fn write(&self, bytes: &[u8]) {
        self.0.state().ring.push(bytes);
        self.0.changed.notify_waiters();
    }
}
