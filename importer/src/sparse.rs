//! Copies that keep holes: a zero block is not written, so a mostly empty disk image costs what it holds.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

/// The unit in which zeros become holes; a file system block or a multiple of one.
const BLOCK: usize = 64 * 1024;

/// How many bytes may still be written to the node's disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget(pub(crate) u64);

impl Budget {
    /// Takes some of them, or fails with [`io::ErrorKind::StorageFull`].
    pub(crate) fn spend(&mut self, bytes: u64) -> io::Result<()> {
        self.0 = self.0.checked_sub(bytes).ok_or(io::ErrorKind::StorageFull)?;
        Ok(())
    }
}

/// Copies `from` to the start of `to` and sets its length, leaving holes for zeros. Refuses more than `limit` bytes
/// with [`io::ErrorKind::FileTooLarge`], and more other bytes than zeros than the budget has. Returns how many bytes `from`
/// had.
pub(crate) fn copy(from: &mut impl Read, to: &mut File, limit: u64, budget: &mut Budget) -> io::Result<u64> {
    to.set_len(0)?;
    to.rewind()?;
    let mut block = vec![0; BLOCK];
    let mut total = 0;
    loop {
        let filled = fill(from, &mut block)?;
        let Some(data) = block.get(..filled).filter(|data| !data.is_empty()) else { break };
        total += data.len() as u64;
        if total > limit {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        if data.iter().all(|byte| *byte == 0) {
            to.seek(SeekFrom::Current(i64::try_from(data.len()).map_err(io::Error::other)?))?;
        } else {
            budget.spend(data.len() as u64)?;
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
            copy(&mut data.as_slice(), &mut file, u64::MAX, &mut Budget(1 << 20)).unwrap(),
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
        let mut budget = Budget(0);
        copy(&mut [0u8; 200_000].as_slice(), &mut file, 200_000, &mut budget).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 200_000);
        let error = copy(&mut [0u8; 200_001].as_slice(), &mut file, 200_000, &mut budget).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_budget_holds_for_what_is_not_zero() {
        let mut file = tempfile::tempfile().unwrap();
        let mut budget = Budget(100_000);
        copy(&mut [7u8; 60_000].as_slice(), &mut file, u64::MAX, &mut budget).unwrap();
        let error = copy(&mut [7u8; 60_000].as_slice(), &mut file, u64::MAX, &mut budget).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
