//! The format of vhostmd's disks, in which the node agent keeps metrics for a guest: a header of four words, big-endian (a
//! signature, whether the document is being written, the sum of its bytes, its length), and the document.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// The size of the disk in bytes.
pub const DISK_SIZE: u64 = 256 << 10;
/// The longest document in bytes; vhostmd's.
pub const MAX_LEN: usize = (256 << 10) - 24;
/// A document without metrics, until there are some.
pub const EMPTY: &str =
    "<metrics><!-- host metrics not available --><!-- VM metrics not available --></metrics>\n";

const HEADER: usize = 16;
const SIGNATURE: [u8; 4] = *b"mvbd";

/// Writes a document. Readers look at the header before and after, so that they see whether it changes meanwhile.
///
/// # Errors
/// When it is too long, and those of the file.
pub fn write(file: &File, document: &str) -> io::Result<()> {
    let bytes = document.as_bytes();
    if bytes.len() > MAX_LEN {
        return Err(io::Error::other("the document is too long"));
    }
    file.write_all_at(&header(bytes, true), 0)?;
    file.write_all_at(bytes, HEADER as u64)?;
    file.write_all_at(&header(bytes, false), 0)
}

/// Reads the document; none while it is being written, or where there is none.
pub fn read(file: &File) -> Option<String> {
    let mut found = [0; HEADER];
    file.read_exact_at(&mut found, 0).ok()?;
    let length = found.last_chunk().map(|length| u32::from_be_bytes(*length))?;
    let length = usize::try_from(length).ok().filter(|length| *length <= MAX_LEN)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, HEADER as u64).ok()?;
    (header(&bytes, false) == found).then(|| String::from_utf8(bytes).ok())?
}

fn header(document: &[u8], is_locked: bool) -> [u8; HEADER] {
    let sum = document.iter().fold(0_u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
    let length = u32::try_from(document.len()).unwrap_or_default();
    let mut header = [0; HEADER];
    let words = [u32::from_be_bytes(SIGNATURE), u32::from(is_locked), sum, length];
    for (bytes, word) in header.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_read_as_it_was_written_and_only_whole() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(read(&file), None);
        write(&file, "ab").unwrap();
        let mut bytes = [0; 18];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, *b"mvbd\0\0\0\0\0\0\0\xc3\0\0\0\x02ab");
        assert_eq!(read(&file).as_deref(), Some("ab"));
        for (at, byte) in [(0, b'x'), (7, 1), (11, 0), (12, 0xff), (15, 3), (16, b'b')] {
            file.write_all_at(&[byte], at).unwrap();
            assert_eq!(read(&file), None, "byte {at}");
            write(&file, "ab").unwrap();
        }
        assert!(write(&file, &"x".repeat(MAX_LEN + 1)).is_err());
        write(&file, EMPTY).unwrap();
        assert_eq!(read(&file).as_deref(), Some(EMPTY));
    }
}
