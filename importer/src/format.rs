//! Detects the format of an image by its first bytes, and whether an untrusted image is safe to convert.
//!
//! A qcow2 header can name other files (a backing image, a data file) that a converter would open with our
//! privileges; such an image is rejected before it is converted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A container disk's format.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Raw,
    Qcow2 {
        /// What the guest sees, in bytes.
        virtual_size: u64,
    },
}

/// Why an image is rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FormatError {
    /// Cannot be read.
    #[error("cannot read the disk image")]
    Read(#[source] io::Error),
    /// Nothing in it.
    #[error("the disk image is empty")]
    Empty,
    /// A format other monitors use.
    #[error("the disk image is {0}: convert it with `qemu-img convert -O qcow2`")]
    Foreign(&'static str),
    /// A qcow2 image that needs a file beside it.
    #[error("the qcow2 image {0}: a container disk must hold all of its content")]
    NotSelfContained(&'static str),
    /// A qcow2 image that is invalid or unsupported.
    #[error("the qcow2 image {0}")]
    Qcow2(&'static str),
    /// Larger than any disk here.
    #[error("the disk image is larger than the 16 TiB that a disk may have")]
    TooLarge,
}

const MAX_SIZE: u64 = 16 << 40;
const EXTERNAL_DATA_FILE: u64 = 1 << 2;
/// dirty, corrupt, external data, compression type, extended L2: what `qemu-img` knows.
const KNOWN_INCOMPATIBLE: u64 = 0x1f;
const CORRUPT: u64 = 1 << 1;

/// Other formats and the bytes at their start.
const FOREIGN: &[(&[u8], &str)] = &[
    (b"KDMV", "a VMDK image"),
    (b"# Disk DescriptorFile", "a VMDK descriptor"),
    (b"vhdxfile", "a VHDX image"),
    (b"conectix", "a VHD image"),
    (b"<<< ", "a VDI image"),
    (b"QED\0", "a QED image"),
    (b"LUKS\xba\xbe", "encrypted with LUKS"),
    (b"\x1f\x8b", "compressed with gzip"),
    (b"\xfd7zXZ\0", "compressed with xz"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
];

/// Looks at the start of an image.
pub(crate) fn probe(file: &File) -> Result<Format, FormatError> {
    let mut start = [0; 104];
    let mut filled = 0;
    while let Some(rest) = start.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, filled as u64).map_err(FormatError::Read)? {
            0 => break,
            read => filled += read,
        }
    }
    let length = file.metadata().map_err(FormatError::Read)?.len();
    classify(start.get(..filled).unwrap_or_default(), length)
}

fn classify(start: &[u8], length: u64) -> Result<Format, FormatError> {
    if start.is_empty() {
        return Err(FormatError::Empty);
    }
    if start.starts_with(b"QFI\xfb") {
        return qcow2(start);
    }
    if let Some((_, name)) = FOREIGN.iter().find(|(magic, _)| start.starts_with(magic)) {
        return Err(FormatError::Foreign(name));
    }
    if length > MAX_SIZE {
        return Err(FormatError::TooLarge);
    }
    Ok(Format::Raw)
}

fn qcow2(start: &[u8]) -> Result<Format, FormatError> {
    const SHORT: FormatError = FormatError::Qcow2("ends inside its header");
    let version = be32(start, 4).ok_or(SHORT)?;
    let backing_file_offset = be64(start, 8).ok_or(SHORT)?;
    let virtual_size = be64(start, 24).ok_or(SHORT)?;
    let crypt_method = be32(start, 32).ok_or(SHORT)?;
    let incompatible = match version {
        2 => 0,
        3 => be64(start, 72).ok_or(SHORT)?,
        _ => return Err(FormatError::Qcow2("has a version other than 2 or 3")),
    };
    if backing_file_offset != 0 {
        return Err(FormatError::NotSelfContained("has a backing file"));
    }
    if incompatible & EXTERNAL_DATA_FILE != 0 {
        return Err(FormatError::NotSelfContained("keeps its data in another file"));
    }
    if crypt_method != 0 {
        return Err(FormatError::Qcow2("is encrypted"));
    }
    if incompatible & CORRUPT != 0 {
        return Err(FormatError::Qcow2("is marked corrupt: repair it with `qemu-img check -r all`"));
    }
    if incompatible & !KNOWN_INCOMPATIBLE != 0 {
        return Err(FormatError::Qcow2("uses features that are not known here"));
    }
    if virtual_size == 0 {
        return Err(FormatError::Empty);
    }
    if virtual_size > MAX_SIZE {
        return Err(FormatError::TooLarge);
    }
    Ok(Format::Qcow2 { virtual_size })
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(change: impl Fn(&mut [u8])) -> Result<Format, FormatError> {
        let mut header = [0; 104];
        header[..4].copy_from_slice(b"QFI\xfb");
        header[7] = 3;
        header[24..32].copy_from_slice(&(1u64 << 30).to_be_bytes());
        change(&mut header);
        classify(&header, 200_000)
    }

    #[test]
    fn a_plain_qcow2_is_taken_and_each_trap_refused() {
        assert_eq!(header(|_| {}).unwrap(), Format::Qcow2 { virtual_size: 1 << 30 });
        type Change = fn(&mut [u8]);
        let refused: [(&str, Change); 7] = [
            ("backing file", |h| h[15] = 1),
            ("encrypted", |h| h[35] = 2),
            ("another file", |h| h[79] = 4),
            ("corrupt", |h| h[79] = 2),
            ("not known", |h| h[72] = 0x80),
            ("version", |h| h[7] = 9),
            ("16 TiB", |h| h[24] = 0x7f),
        ];
        for (word, change) in refused {
            let error = header(change).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn short_and_foreign_files_are_distinguished_from_raw() {
        assert!(matches!(classify(b"", 0), Err(FormatError::Empty)));
        assert!(matches!(classify(b"QFI\xfb\0\0\0\x03", 8), Err(FormatError::Qcow2(_))));
        assert!(matches!(classify(b"KDMV....", 512), Err(FormatError::Foreign("a VMDK image"))));
        assert_eq!(classify(&[0xfa; 104], 1 << 20).unwrap(), Format::Raw);
    }
}
