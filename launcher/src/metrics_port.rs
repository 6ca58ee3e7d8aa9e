//! The port by which a guest reads metrics of its host and of itself: it asks with `GET /metrics/XML` and an empty line, and
//! gets the document that the node agent keeps in a file.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, split};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use vireo_proto::vhostmd;

use crate::lines::{Line, line};

/// The name by which guests find the port; vhostmd's.
pub(crate) const PORT: &str = "org.github.vhostmd.1";
/// The longest line of a request that is read.
const MAX_LINE: usize = 1024;
/// Empty lines before a request. More are a request that is not valid, and have a pause.
const EMPTY_LINES: usize = 16;
/// How long after an answer the next request is read.
const PAUSE: Duration = Duration::from_secs(1);
/// How often a document is read that is being written, and how soon again.
const ATTEMPTS: usize = 5;
const RETRY: Duration = Duration::from_millis(20);
const GET: &[u8] = b"GET /metrics/XML";
const INVALID: &str = "INVALID REQUEST\n\n";

/// Answers requests until the port is closed.
pub(crate) async fn serve(port: impl AsyncRead + AsyncWrite, metrics: File) {
    let metrics = Arc::new(metrics);
    let (from, mut to) = split(port);
    let mut from = BufReader::new(from);
    let mut first = None;
    loop {
        let Ok(is_valid) = request(&mut from, &mut first).await else { return };
        let answer = match is_valid {
            true => document(&metrics).await,
            false => INVALID.to_owned(),
        };
        if to.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        sleep(PAUSE).await;
    }
}

/// Reads a request; whether it is one for the document. `first` is its first line where that was read already: in place of the
/// empty line at the end of the request before. One without text is none.
async fn request(from: &mut (impl AsyncBufRead + Unpin), first: &mut Option<Line>) -> io::Result<bool> {
    let mut asks = match first.take() {
        Some(asks) => asks,
        None => line(from, MAX_LINE).await?,
    };
    for _ in 0..EMPTY_LINES {
        if !is(&asks, b"") {
            break;
        }
        asks = line(from, MAX_LINE).await?;
    }
    if is(&asks, b"") {
        return Ok(false);
    }
    let end = line(from, MAX_LINE).await?;
    let is_whole = is(&end, b"");
    if !is_whole {
        *first = Some(end);
    }
    Ok(is_whole && is(&asks, GET))
}

/// Whether a line has this text.
fn is(line: &Line, text: &[u8]) -> bool {
    matches!(line, Line::Text(line) if line.strip_suffix(b"\r").unwrap_or(line) == text)
}

/// The document, with the empty line that ends it.
async fn document(metrics: &Arc<File>) -> String {
    for _ in 0..ATTEMPTS {
        let file = metrics.clone();
        // The file system may take its time.
        if let Ok(Some(text)) = spawn_blocking(move || vhostmd::read(&file)).await {
            return format!("{}\n\n", text.trim_end());
        }
        sleep(RETRY).await;
    }
    format!("{}\n\n", vhostmd::EMPTY.trim_end())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, duplex};

    use super::*;

    async fn asked(metrics: File, requests: &str) -> String {
        let (ours, mut guest) = duplex(4096);
        let server = tokio::spawn(serve(ours, metrics));
        guest.write_all(requests.as_bytes()).await.unwrap();
        guest.shutdown().await.unwrap();
        let mut answer = String::new();
        guest.read_to_string(&mut answer).await.unwrap();
        server.await.unwrap();
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn the_document_is_answered_and_nothing_else() {
        const GET: &str = "GET /metrics/XML\r\n\r\n";
        let whole = || {
            let file = tempfile::tempfile().unwrap();
            vhostmd::write(&file, "ab").unwrap();
            file
        };
        assert_eq!(asked(whole(), &GET.repeat(2)).await, "ab\n\n".repeat(2));
        assert_eq!(asked(whole(), &format!("PUT /metrics/XML\n\n{GET}")).await, format!("{INVALID}ab\n\n"));
        // Requests are found again behind lines that are none.
        for lost in ["x\n", "GET /metrics/XML\n"] {
            assert_eq!(asked(whole(), &format!("{lost}{GET}")).await, format!("{INVALID}ab\n\n"));
        }
        assert_eq!(asked(whole(), &format!("\n\n\n{GET}")).await, "ab\n\n");
        assert_eq!(asked(whole(), &"\n".repeat(2 * EMPTY_LINES + 2)).await, INVALID.repeat(2));
        let long = asked(whole(), &format!("GET /{}\n{GET}", "x".repeat(5000))).await;
        let invalid = long.strip_suffix("ab\n\n").expect("the document");
        assert!(!invalid.is_empty() && invalid.replace(INVALID, "").is_empty(), "{invalid}");
        assert_eq!(asked(tempfile::tempfile().unwrap(), GET).await.trim(), vhostmd::EMPTY.trim());
    }
}
