//! Who may hold connections: those who have shown who they are, many; the others, few, of which the oldest goes when
//! another one comes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tracing::debug;

/// Unauthenticated connections at the same time. Everybody is one until they have shown something, and after a restart of
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

/// The standing of one connection, as long as it lasts.
#[derive(Debug)]
pub(super) struct Standing {
    connections: Arc<Connections>,
    number: u64,
    place: OnceLock<OwnedSemaphorePermit>,
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
        connection: impl FnOnce(Standing) -> F,
    ) {
        let mut unauthenticated = self.unauthenticated();
        unauthenticated.count += 1;
        let number = unauthenticated.count;
        let standing = Standing { connections: Arc::clone(self), number, place: OnceLock::new() };
        let task = tokio::spawn(connection(standing));
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

impl Standing {
    /// They have shown who they are. Where all places are taken they stay what they were.
    pub(super) fn known(&self) {
        if self.place.get().is_none()
            && let Ok(place) = Arc::clone(&self.connections.known).try_acquire_owned()
            && self.place.set(place).is_ok()
        {
            self.leave();
        }
    }

    fn leave(&self) {
        self.connections.unauthenticated().tasks.remove(&self.number);
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn the_oldest_stranger_goes_and_whoever_is_known_stays() {
        let connections = Connections::new();
        let (gone, mut closed) = mpsc::unbounded_channel();
        let come = |known: bool, name: usize| {
            let gone = gone.clone();
            connections.spawn(move |standing| async move {
                struct Told(mpsc::UnboundedSender<usize>, usize);
                impl Drop for Told {
                    fn drop(&mut self) {
                        let _ = self.0.send(self.1);
                    }
                }
                let _told = Told(gone, name);
                if known {
                    standing.known();
                }
                std::future::pending::<()>().await;
                drop(standing);
            });
        };
        come(true, 0);
        tokio::task::yield_now().await;
        (1..=MAX_UNAUTHENTICATED).for_each(|name| come(false, name));
        tokio::task::yield_now().await;
        assert!(closed.try_recv().is_err(), "there is room for all");
        come(false, MAX_UNAUTHENTICATED + 1);
        assert_eq!(closed.recv().await, Some(1));
        assert_eq!(connections.unauthenticated().tasks.len(), MAX_UNAUTHENTICATED);
        assert_eq!(connections.known.available_permits(), MAX_AUTHENTICATED - 1);
    }

    #[tokio::test]
    async fn who_leaves_leaves_nothing() {
        let connections = Connections::new();
        let (done, ended) = tokio::sync::oneshot::channel();
        connections.spawn(|standing| async move {
            standing.known();
            standing.known();
            drop(standing);
            let _ = done.send(());
        });
        ended.await.unwrap();
        assert!(connections.unauthenticated().tasks.is_empty());
        assert_eq!(connections.known.available_permits(), MAX_AUTHENTICATED);
    }
}
