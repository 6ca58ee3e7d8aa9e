//! Limits of the requests in flight, in the manner of Kubernetes' API priority and fairness.
//!
//! Every request is of one priority level, and of one user within it. Those that end soon take a seat, wait in a short queue
//! for one, or get 429; those that go on for long (watches, logs, connections, uploads) are counted apart. [`level`] decides.
//! A seat is taken when the body has been read, and given back when the response begins, so that clients that are slow have
//! none. What a client does not read of a large answer is counted by its bytes: [`unread`].
//!
//! Requests that parts of the server make for another one ([`crate::client::InProcess::part_of`]) are exempt: the other one
//! has a seat, and would wait for itself.

mod level;
mod unread;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use tokio::sync::oneshot;

use crate::auth::User;
use level::{Arrival, Level, Limits, Ticket};
use unread::Unread;

/// Priority levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PriorityLevel {
    /// The components in this process, and administrators.
    System,
    /// All other users that are authenticated.
    Users,
    /// The others, who may read public paths.
    Unauthenticated,
}

impl PriorityLevel {
    const ALL: [Self; 3] = [Self::System, Self::Users, Self::Unauthenticated];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Users => "users",
            Self::Unauthenticated => "unauthenticated",
        }
    }

    /// That of the requests of a user.
    pub fn of(user: &User, origin: Origin) -> Self {
        if origin != Origin::Remote || user.may_everything() {
            Self::System
        } else if *user == User::anonymous() {
            Self::Unauthenticated
        } else {
            Self::Users
        }
    }

    fn limits(self) -> Limits {
        match self {
            // Components make no more requests than they have tasks, and cannot do without an answer.
            Self::System => Limits {
                seats: 256,
                queue_per_flow: 4096,
                queue: 8192,
                long_running: 4096,
                long_running_per_flow: 2048,
            },
            Self::Users => Limits {
                seats: 64,
                queue_per_flow: 64,
                queue: 256,
                long_running: 1024,
                long_running_per_flow: 256,
            },
            Self::Unauthenticated => {
                Limits { seats: 16, queue_per_flow: 32, queue: 32, long_running: 0, long_running_per_flow: 0 }
            }
        }
    }

    /// How long a request may wait for a seat.
    fn max_wait(self) -> Duration {
        match self {
            Self::System => Duration::from_secs(60),
            Self::Users => Duration::from_secs(15),
            Self::Unauthenticated => Duration::from_secs(2),
        }
    }
}

/// Where a request comes from; an extension of requests of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Origin {
    /// Through the listener.
    #[default]
    Remote,
    /// A component in this process.
    Component,
    /// A part of the server that answers another request.
    Part,
}

/// All levels. Clones are the same.
#[derive(Debug, Clone)]
pub struct FlowControl(Arc<[Mutex<Requests>; 3]>, Unread);

#[derive(Debug)]
struct Requests {
    level: Level,
    /// Notified when a request is executed; dropped when it is rejected.
    waiting: BTreeMap<Ticket, oneshot::Sender<Seat>>,
    rejected: u64,
}

/// Too many requests of the level, or of the user, are in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejected;

/// A level at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Which.
    pub level: PriorityLevel,
    /// Requests that are executed.
    pub executing: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Requests that go on for long.
    pub long_running: usize,
    /// Requests that were rejected since the start.
    pub rejected: u64,
}

impl Default for FlowControl {
    fn default() -> Self {
        Self::with(PriorityLevel::limits)
    }
}

impl FlowControl {
    fn with(limits: impl Fn(PriorityLevel) -> Limits) -> Self {
        let requests =
            |level| Requests { level: Level::new(limits(level)), waiting: BTreeMap::new(), rejected: 0 };
        Self(Arc::new(PriorityLevel::ALL.map(|level| Mutex::new(requests(level)))), Unread::default())
    }

    fn requests(&self, level: PriorityLevel) -> MutexGuard<'_, Requests> {
        let [system, users, unauthenticated] = &*self.0;
        let requests = match level {
            PriorityLevel::System => system,
            PriorityLevel::Users => users,
            PriorityLevel::Unauthenticated => unauthenticated,
        };
        requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What goes on now.
    pub fn load(&self) -> [Load; 3] {
        PriorityLevel::ALL.map(|level| {
            let requests = self.requests(level);
            let [executing, waiting, long_running] = requests.level.counts();
            Load { level, executing, waiting, long_running, rejected: requests.rejected }
        })
    }

    /// A seat for a request of `user`, as soon as there is one.
    ///
    /// # Errors
    /// When too many wait, or when it has waited for too long.
    pub async fn seat(&self, level: PriorityLevel, user: &str) -> Result<Seat, Rejected> {
        let seat = || Seat(Held { control: self.clone(), level, user: user.to_owned() });
        let (ticket, given) = {
            let mut requests = self.requests(level);
            match requests.level.arrive(user) {
                Arrival::Executes => {
                    drop(requests);
                    return Ok(seat());
                }
                Arrival::Rejected => {
                    requests.rejected += 1;
                    return Err(Rejected);
                }
                Arrival::Waits { ticket, instead_of } => {
                    let (give, given) = oneshot::channel();
                    requests.waiting.insert(ticket, give);
                    if let Some(dropped) = instead_of {
                        requests.waiting.remove(&dropped);
                    }
                    (ticket, given)
                }
            }
        };
        let waiting = Waiting { control: self, level, user, ticket };
        let given = tokio::time::timeout(level.max_wait(), given).await;
        drop(waiting);
        given.ok().and_then(Result::ok).ok_or_else(|| {
            self.requests(level).rejected += 1;
            Rejected
        })
    }

    /// A permit for a request of `user` that goes on for as long as its client wants.
    ///
    /// # Errors
    /// When there are too many.
    pub fn long_running(&self, level: PriorityLevel, user: &str) -> Result<LongRunning, Rejected> {
        let mut requests = self.requests(level);
        if !requests.level.begin_long(user) {
            requests.rejected += 1;
            return Err(Rejected);
        }
        drop(requests);
        Ok(LongRunning(Held { control: self.clone(), level, user: user.to_owned() }))
    }

    /// Admits a request of a client of the listener that changes something.
    ///
    /// # Errors
    /// When too many bytes wait for its user.
    pub fn admit_change(&self, (level, user): (PriorityLevel, &str)) -> Result<(), Rejected> {
        self.1.admit((level, user)).inspect_err(|Rejected| self.requests(level).rejected += 1)
    }

    /// Counts an answer for a client of the listener, until it has taken it. `is_read` for requests that change nothing.
    ///
    /// # Errors
    /// When too many bytes wait for their clients.
    pub fn answer(
        &self,
        (level, user): (PriorityLevel, &str),
        is_read: bool,
        response: Response,
    ) -> Result<Response, Rejected> {
        self.1
            .count((level, user), is_read, response)
            .inspect_err(|Rejected| self.requests(level).rejected += 1)
    }

    /// Gives free seats to those who wait.
    fn dispatch(&self, level: PriorityLevel) {
        let mut given = Vec::new();
        let mut requests = self.requests(level);
        while let Some((ticket, user)) = requests.level.next() {
            let seat = Seat(Held { control: self.clone(), level, user });
            given.push((requests.waiting.remove(&ticket), seat));
        }
        drop(requests);
        for (give, seat) in given {
            // A seat that is not taken is given back when it is dropped.
            let _taken = give.map(|give| give.send(seat));
        }
    }
}

#[derive(Debug)]
struct Held {
    control: FlowControl,
    level: PriorityLevel,
    user: String,
}

/// The seat of a request, given back when this is dropped.
#[derive(Debug)]
pub struct Seat(Held);

impl Drop for Seat {
    fn drop(&mut self) {
        let Held { control, level, user } = &self.0;
        control.requests(*level).level.leave(user);
        control.dispatch(*level);
    }
}

/// The permit of a request that goes on for long, given back when this is dropped.
#[derive(Debug)]
pub struct LongRunning(Held);

impl Drop for LongRunning {
    fn drop(&mut self) {
        let Held { control, level, user } = &self.0;
        control.requests(*level).level.end_long(user);
    }
}

/// A request that waits, until this is dropped.
struct Waiting<'a> {
    control: &'a FlowControl,
    level: PriorityLevel,
    user: &'a str,
    ticket: Ticket,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut requests = self.control.requests(self.level);
        requests.level.give_up(self.user, self.ticket);
        let unused = requests.waiting.remove(&self.ticket);
        drop(requests);
        drop(unused);
        // Its queue may have kept others from a seat.
        self.control.dispatch(self.level);
    }
}

/// What a connection keeps for requests that take it over (WebSockets), until it is closed.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Option<LongRunning>>);

/// Keeps a permit as long as a response goes on: until its body ends, or until its connection does, where the request took
/// that over.
pub(crate) fn keep(permit: LongRunning, connection: Option<&Weak<Kept>>, response: Response) -> Response {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        if let Some(kept) = connection.and_then(Weak::upgrade) {
            *kept.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(permit);
        }
        return response;
    }
    response.map(|body| Body::new(KeptBody { body, _permit: permit }))
}

/// The body of a request that goes on for long.
struct KeptBody {
    body: Body,
    _permit: LongRunning,
}

impl HttpBody for KeptBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
