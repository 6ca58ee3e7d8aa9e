use std::str::FromStr;

use vireo_vmconfig::NATIVE_MEMORY;

const PAGE: u64 = 4096;

/// Guest RAM in bytes: a multiple of 4 KiB, from 16 MiB to 64 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemorySize(u64);

/// Why a size of guest RAM is rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MemorySizeError {
    /// Less than 16 MiB or more than 64 GiB.
    #[error("{0} bytes of memory are outside 16 MiB to 64 GiB")]
    OutOfRange(u64),
    /// Not whole pages.
    #[error("{0} bytes of memory are not a multiple of 4 KiB")]
    NotPages(u64),
    /// Not a number with an optional K, M or G.
    #[error("invalid size {0:?}: expected a number of MiB, or a number with the suffix K, M or G")]
    Syntax(String),
}

impl MemorySize {
    /// Checks a number of bytes.
    pub fn from_bytes(bytes: u64) -> Result<Self, MemorySizeError> {
        if !NATIVE_MEMORY.contains(&bytes) {
            return Err(MemorySizeError::OutOfRange(bytes));
        }
        if !bytes.is_multiple_of(PAGE) {
            return Err(MemorySizeError::NotPages(bytes));
        }
        Ok(Self(bytes))
    }

    /// In bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

/// As on a command line: `256M`, `4G`, `262144K`; a bare number counts MiB.
impl FromStr for MemorySize {
    type Err = MemorySizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let syntax = || MemorySizeError::Syntax(text.to_owned());
        let (digits, shift) = match text.trim_end_matches(['i', 'B']).char_indices().last() {
            Some((at, 'k' | 'K')) => (&text[..at], 10),
            Some((at, 'm' | 'M')) => (&text[..at], 20),
            Some((at, 'g' | 'G')) => (&text[..at], 30),
            Some((_, '0'..='9')) => (text, 20),
            _ => return Err(syntax()),
        };
        let count: u64 = digits.parse().map_err(|_| syntax())?;
        Self::from_bytes(count.checked_mul(1 << shift).ok_or(MemorySizeError::OutOfRange(u64::MAX))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, mib) in
            [("128", 128), ("128M", 128), ("1G", 1024), ("131072K", 128), ("2Gi", 2048), ("64MiB", 64)]
        {
            assert_eq!(text.parse(), MemorySize::from_bytes(mib << 20), "{text}");
        }
    }

    #[test]
    fn what_no_guest_can_have_is_refused() {
        for text in [
            "",
            "M",
            "12X",
            "-1",
            "8M",
            "65G",
            "99999999999999999999G",
            "18446744073709551615G",
            "16385K",
            "1é",
        ] {
            assert!(text.parse::<MemorySize>().is_err(), "{text}");
        }
        assert_eq!(MemorySize::from_bytes((64 << 20) + 1), Err(MemorySizeError::NotPages((64 << 20) + 1)));
    }
}
