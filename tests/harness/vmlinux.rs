//! The kernel inside a bzImage: emulation takes several seconds to decompress what the test host does in one.

use std::io::{self, Read};

/// Offset of the number of setup sectors after the first (Linux boot protocol).
const SETUP_SECTORS: usize = 0x1f1;
/// Offsets of the payload's place behind the setup sectors and of its size.
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;

/// The ELF image in `bzimage`, where it is compressed in one of the ways Debian uses.
pub(crate) fn extract(bzimage: &[u8]) -> io::Result<Vec<u8>> {
    let broken = || io::Error::new(io::ErrorKind::InvalidData, "no bzImage with an xz or zstd payload");
    let word = |at: usize| -> Option<usize> {
        let bytes = bzimage.get(at..at + 4)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    let setup = match bzimage.get(SETUP_SECTORS).ok_or_else(broken)? {
        0 => 4,
        sectors => usize::from(*sectors),
    };
    let start = (setup + 1) * 512 + word(PAYLOAD_OFFSET).ok_or_else(broken)?;
    let end = start.checked_add(word(PAYLOAD_LENGTH).ok_or_else(broken)?).ok_or_else(broken)?;
    let payload = bzimage.get(start..end).ok_or_else(broken)?;
    let mut elf = Vec::new();
    match payload {
        [0xfd, b'7', b'z', b'X', b'Z', ..] => liblzma::read::XzDecoder::new(payload).read_to_end(&mut elf)?,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            zstd::Decoder::with_buffer(payload)?.single_frame().read_to_end(&mut elf)?
        }
        _ => return Err(broken()),
    };
    Ok(elf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_found_behind_the_setup_sectors() {
        let packed = zstd::encode_all(b"an ELF image".as_slice(), 1).unwrap();
        let mut image = vec![0; 3 * 512 + 7];
        image[SETUP_SECTORS] = 2;
        image[PAYLOAD_OFFSET] = 7;
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4]
            .copy_from_slice(&u32::try_from(packed.len() + 4).unwrap().to_le_bytes());
        image.extend(&packed);
        image.extend(12_u32.to_le_bytes());
        assert_eq!(extract(&image).unwrap(), b"an ELF image");
        assert!(extract(&image[..image.len() - 5]).is_err());
        assert!(extract(b"MZ").is_err());
    }
}
