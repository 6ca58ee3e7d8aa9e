//! The port by which a guest reads metrics of its host and of itself: it asks with `GET /metrics/XML` and an empty line, and
//! gets the document that the node agent keeps in a file in the format of vhostmd's disks.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, split,
};
use tokio::time::sleep;

/// The name by which guests find the port; vhostmd's.
pub const PORT: &str = "org.github.vhostmd.1";
/// The longest line of a request that is read.
const MAX_LINE: usize = 1024;
/// How long after an answer the next request is read.
const PAUSE: Duration = Duration::from_secs(1);
/// How often a document is read that is being written, and how soon again.
const ATTEMPTS: usize = 5;
const RETRY: Duration = Duration::from_millis(20);
const SIGNATURE: &[u8] = b"mvbd";
const LONGEST: u32 = (256 << 10) - 24;
const INVALID: &str = "INVALID REQUEST\n\n";
const EMPTY: &str =
    "<metrics><!-- host metrics not available --><!-- VM metrics not available --></metrics>\n\n";

/// Answers requests until the port is closed.
pub async fn serve(port: impl AsyncRead + AsyncWrite, metrics: File) {
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

/// Reads a request; whether it is one for the document. `first` is its first line where that was read already: the line that
/// was to be empty at the end of the request before.
async fn request(
    from: &mut (impl AsyncBufRead + Unpin),
    first: &mut Option<Option<String>>,
) -> io::Result<bool> {
    let mut asks = first.take();
    while asks.is_none() || asks == Some(Some(String::new())) {
        asks = Some(line(from).await?);
    }
    let is_known = asks.flatten().as_deref() == Some("GET /metrics/XML");
    let end = line(from).await?;
    let is_whole = end.as_deref() == Some("");
    if !is_whole {
        *first = Some(end);
    }
    Ok(is_known && is_whole)
}

/// Reads a line without its end; none where it is too long.
async fn line(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    let mut is_short = true;
    loop {
        let bytes = from.fill_buf().await?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        is_short &= line.len() + part.len() <= MAX_LINE;
        if is_short {
            line.extend_from_slice(part);
        }
        let count = part.len() + usize::from(end.is_some());
        from.consume(count);
        if !is_short && end.is_none() {
            // A guest that writes without an end does not keep this thread busy.
            sleep(PAUSE).await;
        }
        if end.is_some() {
            let text = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
            return Ok(is_short.then_some(text));
        }
    }
}

/// The document, with the empty line that ends it.
async fn document(metrics: &File) -> String {
    for _ in 0..ATTEMPTS {
        if let Some(text) = read(metrics) {
            return format!("{}\n\n", text.trim_end());
        }
        sleep(RETRY).await;
    }
    EMPTY.to_owned()
}

/// The document, unless it is being written.
fn read(metrics: &File) -> Option<String> {
    let mut header = [0; 16];
    metrics.read_exact_at(&mut header, 0).ok()?;
    let word = |at: usize| Some(u32::from_be_bytes(*header.get(at..)?.first_chunk()?));
    if header.get(..4)? != SIGNATURE || word(4)? != 0 || word(12)? > LONGEST {
        return None;
    }
    let mut text = vec![0; usize::try_from(word(12)?).ok()?];
    metrics.read_exact_at(&mut text, 16).ok()?;
    let sum = text.iter().fold(0_u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
    (sum == word(8)?).then(|| String::from_utf8(text).ok())?
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, duplex};

    use super::*;

    fn file(header: [u32; 3], text: &str) -> File {
        let file = tempfile::tempfile().unwrap();
        let words = header.iter().flat_map(|word| word.to_be_bytes());
        let bytes: Vec<u8> = SIGNATURE.iter().copied().chain(words).chain(text.bytes()).collect();
        file.write_all_at(&bytes, 0).unwrap();
        file
    }

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
        let whole = || file([0, 195, 2], "ab");
        assert_eq!(asked(whole(), &GET.repeat(2)).await, "ab\n\n".repeat(2));
        let odd = format!("PUT /metrics/XML\n\nGET /{}\n\n", "x".repeat(5000));
        assert_eq!(asked(whole(), &format!("{odd}{GET}")).await, format!("{}ab\n\n", INVALID.repeat(2)));
        // Requests are found again behind lines that are none.
        for lost in ["x\n", "GET /metrics/XML\n"] {
            assert_eq!(asked(whole(), &format!("{lost}{GET}")).await, format!("{INVALID}ab\n\n"));
        }
        assert_eq!(asked(whole(), &format!("\n\n\n{GET}")).await, "ab\n\n");
        for torn in [[1, 195, 2], [0, 194, 2], [0, 195, 3], [0, 0, u32::MAX]] {
            assert_eq!(asked(file(torn, "ab"), GET).await, EMPTY, "{torn:?}");
        }
        assert_eq!(asked(tempfile::tempfile().unwrap(), GET).await, EMPTY);
    }
}
