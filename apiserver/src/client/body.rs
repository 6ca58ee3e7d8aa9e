//! Response bodies, as the task that made the request polls them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::task::coop;
use tower::BoxError;

/// A body whose panics are errors, and which yields to other tasks: no socket makes its reader wait.
#[derive(Debug)]
pub(super) struct Guarded {
    /// None after a panic.
    body: Option<Body>,
}

impl Guarded {
    pub(super) fn new(body: Body) -> Self {
        Self { body: Some(body) }
    }
}

impl HttpBody for Guarded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let budget = ready!(coop::poll_proceed(context));
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        // A body that has panicked is not polled again.
        match catch_unwind(AssertUnwindSafe(|| Pin::new(body).poll_frame(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(frame)) => {
                budget.made_progress();
                Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)))
            }
            Err(_) => {
                self.body = None;
                Poll::Ready(Some(Err("the API server panicked while it sent the response".into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(HttpBody::size_hint).unwrap_or_default()
    }
}
