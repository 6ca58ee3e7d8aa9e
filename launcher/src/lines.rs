//! Lines that a guest writes to a port.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

/// What was read of a port.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// What comes before the end of a line.
    Text(Vec<u8>),
    /// A line has more bytes than may be read. Those are gone; what follows them is the next line.
    TooLong,
}

/// Reads a line of at most so many bytes.
pub(crate) async fn line(from: &mut (impl AsyncBufRead + Unpin), max: usize) -> io::Result<Line> {
    let mut line = Vec::new();
    loop {
        let bytes = from.fill_buf().await?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        let is_short = line.len() + part.len() <= max;
        if is_short {
            line.extend_from_slice(part);
        }
        let count = part.len() + usize::from(end.is_some());
        from.consume(count);
        if !is_short {
            return Ok(Line::TooLong);
        }
        if end.is_some() {
            return Ok(Line::Text(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_end_and_long_ones_are_cut() {
        let mut bytes = &b"a\n\n123456\n1234567\nb"[..];
        let text = |text: &[u8]| Line::Text(text.to_vec());
        for expected in [text(b"a"), text(b""), text(b"123456"), Line::TooLong] {
            assert_eq!(line(&mut bytes, 6).await.unwrap(), expected);
        }
        assert_eq!(line(&mut bytes, 6).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
