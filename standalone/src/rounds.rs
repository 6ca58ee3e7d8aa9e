//! What controllers have in common: they look again when something was written, and when it is time.

use std::sync::Arc;
use std::time::Duration;

use crate::store::Store;

/// How soon a round that broke off is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// Goes round until the store is gone. A round may block; it says how long nothing is to be done if nothing changes, and
/// remembers what it likes from one to the next.
pub(crate) async fn go<R: Default + Send + 'static>(
    store: Arc<Store>,
    whose: &'static str,
    round: fn(&Store, &mut R) -> Option<Duration>,
) {
    let mut news = store.news();
    let mut memory = R::default();
    loop {
        news.borrow_and_update();
        let there = Arc::clone(&store);
        let mut taken = std::mem::take(&mut memory);
        let done = tokio::task::spawn_blocking(move || (round(&there, &mut taken), taken)).await;
        let wait = match done {
            Ok((again, taken)) => {
                memory = taken;
                again
            }
            Err(error) => {
                tracing::error!(%error, "the controller of {whose} broke off; it is tried again");
                Some(RETRY)
            }
        };
        let clock = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = news.changed() => if changed.is_err() { return },
            () = clock => {}
        }
    }
}
