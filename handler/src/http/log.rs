//! The log of a launcher Pod: what its guest wrote to its serial console.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path as Segments, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{self, StreamExt as _};
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;

use super::error::ApiError;
use super::find;
use crate::console_log::{self, ConsoleLog};
use crate::node::Node;

/// How much of what the guest writes is sent at once.
const CHUNK: usize = 4096;

/// Kubernetes' options of a log, as `kubectl logs` sends them.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LogOptions {
    /// Whether the response goes on while the guest runs.
    follow: bool,
    /// Only so many lines of what is there already.
    tail_lines: Option<usize>,
    /// No more bytes than these.
    limit_bytes: Option<usize>,
    /// The log before a restart; launchers never restart.
    previous: bool,
    timestamps: bool,
    since_seconds: Option<i64>,
    since_time: Option<String>,
}

impl LogOptions {
    fn validate(&self, name: &str) -> Result<(), ApiError> {
        if self.previous {
            let message = format!("previous terminated container \"compute\" of \"{name}\" not found");
            return Err(ApiError::bad_request(message));
        }
        if self.timestamps || self.since_seconds.is_some() || self.since_time.is_some() {
            let message = "the log is the guest's serial console, which has no times: leave out \
                           --timestamps, --since and --since-time";
            return Err(ApiError::bad_request(message));
        }
        Ok(())
    }

    /// The part that was asked for of what is there already.
    fn part<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        let tail = self.tail_lines.map_or(text, |lines| tail(text, lines));
        tail.get(..self.limit_bytes.unwrap_or(tail.len())).unwrap_or(tail)
    }
}

/// The last lines of a text.
fn tail(text: &[u8], lines: usize) -> &[u8] {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let Some(lines) = lines.checked_sub(1) else { return &[] };
    let mut ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    ends.nth(lines).and_then(|(end, _)| text.get(end + 1..)).unwrap_or(text)
}

/// Sends the log.
pub(super) async fn serve(
    State(node): State<Arc<Node>>,
    Segments((namespace, name)): Segments<(String, String)>,
    Query(options): Query<LogOptions>,
) -> Result<Response, ApiError> {
    options.validate(&name)?;
    let vmi = find(&node, namespace, name)?;
    let uid = vmi.metadata.uid.parse().map_err(|_| ApiError::internal("the VMI has no UID"))?;
    let log = console_log::read(&node.state.vmi_dir(uid))
        .await
        .map_err(|error| ApiError::internal(format!("cannot read the guest's console: {error}")))?;
    let Some(ConsoleLog { text, rest }) = log else {
        let name = &vmi.metadata.name;
        let message = format!("container \"compute\" of \"{name}\" is waiting to start: ContainerCreating");
        return Err(ApiError::bad_request(message));
    };
    let part = options.part(&text).to_vec();
    let left = options.limit_bytes.map_or(usize::MAX, |limit| limit.saturating_sub(part.len()));
    let begin = stream::iter([Ok(Bytes::from(part))]);
    let body = match rest.filter(|_| options.follow && left > 0) {
        Some(console) => Body::from_stream(begin.chain(follow(console, left))),
        None => Body::from_stream(begin),
    };
    Ok(([(CONTENT_TYPE, "text/plain")], body).into_response())
}

/// What the guest writes from now on, but no more than so many bytes.
fn follow(console: UnixStream, left: usize) -> impl stream::Stream<Item = std::io::Result<Bytes>> {
    stream::unfold((console, left), |(mut console, left)| async move {
        let mut chunk = vec![0; CHUNK.min(left)];
        match console.read(&mut chunk).await {
            Ok(0) => None,
            Ok(length) => {
                chunk.truncate(length);
                Some((Ok(Bytes::from(chunk)), (console, left - length)))
            }
            Err(error) => Some((Err(error), (console, 0))),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_the_last_lines() {
        let text = b"one\ntwo\nthree\n";
        for (lines, expected) in
            [(0, ""), (1, "three\n"), (2, "two\nthree\n"), (3, "one\ntwo\nthree\n"), (9, "one\ntwo\nthree\n")]
        {
            assert_eq!(tail(text, lines), expected.as_bytes(), "{lines}");
        }
        assert_eq!(tail(b"one\nlogin: ", 1), b"login: ");
        let options = LogOptions { tail_lines: Some(1), limit_bytes: Some(3), ..LogOptions::default() };
        assert_eq!(options.part(text), b"thr");
        assert!(options.validate("x").is_ok());
    }

    #[test]
    fn what_a_console_cannot_answer_is_refused() {
        for options in [
            LogOptions { previous: true, ..LogOptions::default() },
            LogOptions { timestamps: true, ..LogOptions::default() },
            LogOptions { since_seconds: Some(5), ..LogOptions::default() },
            LogOptions { since_time: Some(String::new()), ..LogOptions::default() },
        ] {
            assert!(options.validate("x").is_err(), "{options:?}");
        }
    }
}
