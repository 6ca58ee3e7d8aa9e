//! Limits on connections: many authenticated ones; of the few unauthenticated ones the oldest is closed when
//! another one is accepted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tracing::debug;

/// Unauthenticated connections at the same time. Every client starts as one, and after a restart of
/// the server hundreds of watchers come back at once.
const MAX_UNAUTHENTICATED: usize = 1024;
/// Connections of all others.
const MAX_AUTHENTICATED: usize = 4096;

/// All connections.
#[derive(Debug)]
pub(super) struct Connections {
    unauthenticated: Mutex<Unauthenticated>,
    known: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Unauthenticated {
    /// How many there ever were.
    count: u64,
    tasks: BTreeMap<u64, AbortHandle>,
}

/// The slot of one connection, held until it is closed.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    connections: Arc<Connections>,
    number: u64,
    permit: OnceLock<OwnedSemaphorePermit>,
}

impl Connections {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            unauthenticated: Mutex::default(),
            known: Arc::new(Semaphore::new(MAX_AUTHENTICATED)),
        })
    }

    fn unauthenticated(&self) -> MutexGuard<'_, Unauthenticated> {
        self.unauthenticated.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spawns an unauthenticated connection.
    pub(super) fn spawn<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        connection: impl FnOnce(ConnectionSlot) -> F,
    ) {
        let mut unauthenticated = self.unauthenticated();
        unauthenticated.count += 1;
        let number = unauthenticated.count;
        let slot = ConnectionSlot { connections: Arc::clone(self), number, permit: OnceLock::new() };
        let task = tokio::spawn(connection(slot));
        unauthenticated.tasks.insert(number, task.abort_handle());
        let too_many = unauthenticated.tasks.len() > MAX_UNAUTHENTICATED;
        let oldest = too_many.then(|| unauthenticated.tasks.pop_first()).flatten();
        drop(unauthenticated);
        if let Some((number, task)) = oldest {
            debug!(number, "an unauthenticated connection is closed for another one");
            task.abort();
        }
    }
}

impl ConnectionSlot {
    /// The client has authenticated. Without a free permit the connection stays unauthenticated.
    pub(super) fn known(&self) {
        if self.permit.get().is_none()
            && let Ok(permit) = Arc::clone(&self.connections.known).try_acquire_owned()
            && self.permit.set(permit).is_ok()
        {
            self.remove_unauthenticated();
        }
    }

    fn remove_unauthenticated(&self) {
        self.connections.unauthenticated().tasks.remove(&self.number);
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.remove_unauthenticated();
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn the_oldest_unauthenticated_connection_is_closed() {
        let connections = Connections::new();
        let (gone, mut closed) = mpsc::unbounded_channel();
        let come = |known: bool, name: usize| {
            let gone = gone.clone();
            connections.spawn(move |slot| async move {
                struct Closed(mpsc::UnboundedSender<usize>, usize);
                impl Drop for Closed {
                    fn drop(&mut self) {
                        let _ = self.0.send(self.1);
                    }
                }
                let _closed = Closed(gone, name);
                if known {
                    slot.known();
                }
                std::future::pending::<()>().await;
                drop(slot);
            });
        };
        come(true, 0);
        tokio::task::yield_now().await;
        (1..=MAX_UNAUTHENTICATED).for_each(|name| come(false, name));
        tokio::task::yield_now().await;
        assert!(closed.try_recv().is_err(), "none is over the limit");
        come(false, MAX_UNAUTHENTICATED + 1);
        assert_eq!(closed.recv().await, Some(1));
        assert_eq!(connections.unauthenticated().tasks.len(), MAX_UNAUTHENTICATED);
        assert_eq!(connections.known.available_permits(), MAX_AUTHENTICATED - 1);
    }

    #[tokio::test]
    async fn closed_connections_are_forgotten() {
        let connections = Connections::new();
        let (done, ended) = tokio::sync::oneshot::channel();
        connections.spawn(|slot| async move {
            slot.known();
            slot.known();
            drop(slot);
            let _ = done.send(());
        });
        ended.await.unwrap();
        assert!(connections.unauthenticated().tasks.is_empty());
        assert_eq!(connections.known.available_permits(), MAX_AUTHENTICATED);
    }
}
