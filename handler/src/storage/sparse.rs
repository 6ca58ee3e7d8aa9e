//! Copies that keep holes: a zero block is not written, so a mostly empty disk image costs what it holds.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::jobs::JobContext;

/// The unit in which zeros become holes; a file system block or a multiple of one.
const BLOCK: usize = 64 * 1024;

/// Copies `from` to the start of `to` and sets its length, leaving holes for zeros. Refuses more than `limit` bytes
/// with [`io::ErrorKind::FileTooLarge`]. Returns how many bytes `from` had.
pub(super) fn copy(from: &mut impl Read, to: &mut File, limit: u64, job: &JobContext) -> io::Result<u64> {
    let mut block = vec![0; BLOCK];
    let mut total = 0;
    loop {
        job.checkpoint()?;
        let filled = fill(from, &mut block)?;
        let Some(data) = block.get(..filled).filter(|data| !data.is_empty()) else { break };
        total += data.len() as u64;
        if total > limit {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        if data.iter().all(|byte| *byte == 0) {
            to.seek(SeekFrom::Current(i64::try_from(data.len()).map_err(io::Error::other)?))?;
        } else {
            to.write_all(data)?;
        }
    }
    to.set_len(total)?;
    Ok(total)
}

fn fill(from: &mut impl Read, block: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = block.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn zeros_become_holes_and_content_stays() {
        let mut data = vec![0u8; 4 << 20];
        data[3_000_000] = 7;
        data.push(9);
        let mut file = tempfile::tempfile().unwrap();
        assert_eq!(
            copy(&mut data.as_slice(), &mut file, u64::MAX, &JobContext::default()).unwrap(),
            data.len() as u64
        );
        file.rewind().unwrap();
        let mut back = Vec::new();
        file.read_to_end(&mut back).unwrap();
        assert!(back == data);
        assert!(file.metadata().unwrap().blocks() * 512 < 1 << 20);
    }

    #[test]
    fn a_trailing_hole_counts_and_a_limit_holds() {
        let mut file = tempfile::tempfile().unwrap();
        let job = JobContext::default();
        copy(&mut [0u8; 200_000].as_slice(), &mut file, 200_000, &job).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 200_000);
        let error = copy(&mut [0u8; 200_001].as_slice(), &mut file, 200_000, &job).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
