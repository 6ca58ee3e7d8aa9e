//! Answers that wait for their clients, by their bytes: a seat is given back when an answer begins, and clients may read none
//! of it. Those that a client reads at once are counted for a moment.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

use super::{PriorityLevel, Rejected};

/// An answer of fewer bytes is not counted: connections are limited.
const SMALL: u64 = 64 << 10;
/// How much of an answer is handed over at once. The connection asks for more when that is sent.
const CHUNK: usize = 64 << 10;

/// The answers of all levels. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Unread(Arc<Mutex<BTreeMap<&'static str, UserBytes>>>);

/// The bytes that wait for each user of a level.
type UserBytes = BTreeMap<String, u64>;

/// How many bytes of a level, and of one user of it, may wait.
fn limits(level: PriorityLevel) -> (u64, u64) {
    match level {
        PriorityLevel::System => (512 << 20, 128 << 20),
        PriorityLevel::Users => (256 << 20, 64 << 20),
        PriorityLevel::Unauthenticated => (16 << 20, 16 << 20),
    }
}

impl Unread {
    /// Admits a request that changes something: its answer is never rejected, as the client would repeat the change.
    ///
    /// # Errors
    /// When as much waits for the user as may.
    pub(super) fn admit(&self, (level, user): (PriorityLevel, &str)) -> Result<(), Rejected> {
        let levels = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_user = levels.get(level.name()).and_then(|users| users.get(user)).copied().unwrap_or(0);
        if of_user < limits(level).1 { Ok(()) } else { Err(Rejected) }
    }

    /// Counts an answer until its client has taken it. Streams have no length, and are counted as requests. Answers to changes
    /// are counted and never rejected: see [`Self::admit`]. In the level, one user counts for that user's part at most.
    ///
    /// # Errors
    /// When too much waits. A user of whom nothing waits gets any answer that the level has space for.
    pub(super) fn count(
        &self,
        (level, user): (PriorityLevel, &str),
        is_read: bool,
        response: Response,
    ) -> Result<Response, Rejected> {
        let bytes = response.body().size_hint().exact().unwrap_or(0);
        if bytes < SMALL {
            return Ok(response);
        }
        let (most, most_of_user) = limits(level);
        let mut levels = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let users = levels.entry(level.name()).or_default();
        let all = users.values().fold(0_u64, |all, bytes| all.saturating_add((*bytes).min(most_of_user)));
        let of_user = users.get(user).copied().unwrap_or(0);
        let fits = |before: u64, most: u64| before == 0 || before.saturating_add(bytes) <= most;
        if is_read && !(fits(all, most) && fits(of_user, most_of_user)) {
            return Err(Rejected);
        }
        users.insert(user.to_owned(), of_user.saturating_add(bytes));
        drop(levels);
        let held = Held { unread: self.clone(), level, user: user.to_owned(), bytes };
        Ok(response.map(|body| Body::new(Answer { body, rest: Bytes::new(), _held: held })))
    }

    /// The bytes of a level that wait.
    #[cfg(test)]
    fn of(&self, level: PriorityLevel) -> u64 {
        self.0.lock().unwrap().get(level.name()).map_or(0, |users| users.values().sum())
    }
}

/// The bytes of an answer, until this is dropped.
struct Held {
    unread: Unread,
    level: PriorityLevel,
    user: String,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut levels = self.unread.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(users) = levels.get_mut(self.level.name()) else { return };
        if let Some(of_user) = users.get_mut(&self.user) {
            *of_user = of_user.saturating_sub(self.bytes);
            if *of_user == 0 {
                users.remove(&self.user);
            }
        }
    }
}

/// The body of an answer, in chunks.
struct Answer {
    body: Body,
    rest: Bytes,
    _held: Held,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                end => return Poll::Ready(end),
            }
        }
        let chunk = self.rest.len().min(CHUNK);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(chunk)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let inner = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(rest));
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    const USERS: PriorityLevel = PriorityLevel::Users;

    fn answer(bytes: usize) -> Response {
        Response::new(Body::from(vec![7; bytes]))
    }

    #[tokio::test]
    async fn answers_count_until_they_are_taken() {
        let unread = Unread::default();
        let small = unread.count((USERS, "a"), true, answer(1000)).unwrap();
        assert_eq!((unread.of(USERS), small.body().size_hint().exact()), (0, Some(1000)));
        let mut large = unread.count((USERS, "a"), true, answer(100_000)).unwrap();
        assert_eq!((unread.of(USERS), large.body().size_hint().exact()), (100_000, Some(100_000)));
        let first = large.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!((first.len(), large.body().size_hint().exact()), (65_536, Some(34_464)));
        assert_eq!(unread.of(USERS), 100_000);
        let rest = large.into_body().collect().await.unwrap().to_bytes();
        assert_eq!((rest.len(), unread.of(USERS)), (34_464, 0));
    }

    #[test]
    fn one_user_cannot_have_all_that_may_wait() {
        const PART: usize = 20 << 20;
        let unread = Unread::default();
        let mut kept: Vec<_> =
            (0..3).map(|_| unread.count((USERS, "a"), true, answer(PART)).unwrap()).collect();
        assert!(unread.count((USERS, "a"), true, answer(PART)).is_err());
        unread.count((USERS, "a"), true, answer(1000)).unwrap();
        // Others are not affected, nor are other levels.
        kept.push(unread.count((USERS, "b"), true, answer(PART)).unwrap());
        kept.push(unread.count((PriorityLevel::System, "a"), true, answer(PART)).unwrap());
        kept.remove(0);
        kept.push(unread.count((USERS, "a"), true, answer(PART)).unwrap());
        drop(kept);
        assert_eq!(unread.of(USERS), 0);
        // An answer to a change is never rejected, but the next change is, and other users have their part.
        unread.admit((USERS, "a")).unwrap();
        let changes: Vec<_> =
            (0..15).map(|_| unread.count((USERS, "a"), false, answer(PART)).unwrap()).collect();
        assert!(unread.of(USERS) > limits(USERS).0);
        assert!(unread.admit((USERS, "a")).is_err());
        unread.admit((USERS, "b")).unwrap();
        drop(unread.count((USERS, "b"), true, answer(PART)).unwrap());
        drop(changes);
        unread.admit((USERS, "a")).unwrap();
        // One that is larger than a user's part is answered alone.
        let larger = unread.count((USERS, "a"), true, answer(65 << 20)).unwrap();
        assert!(unread.count((USERS, "a"), true, answer(PART)).is_err());
        drop(larger);
        unread.count((USERS, "a"), true, answer(PART)).unwrap();
    }
}
