use std::io::{self, Read};

use super::format::{BadFormat, PixelFormat};
use crate::display::Area;

/// Limit of encodings; those beyond are ignored.
const MAX_ENCODINGS: usize = 128;
/// More text than a clipboard holds. There is no receiver, so it is skipped; a viewer that announces more is
/// not to be believed.
const MAX_TEXT: u32 = 16 << 20;

/// A message of a viewer (RFC 6143, section 7.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    SetPixelFormat(PixelFormat),
    SetEncodings(Vec<i32>),
    UpdateRequest {
        incremental: bool,
        area: Area,
    },
    Key {
        symbol: u32,
        down: bool,
    },
    /// QEMU's extended key event: with the scan code.
    PlacedKey {
        symbol: u32,
        code: u32,
        down: bool,
    },
    Pointer {
        x: u16,
        y: u16,
        buttons: u8,
    },
    SetDesktopSize {
        width: u16,
        height: u16,
    },
    /// A message without effect.
    Nothing,
}

/// Why a viewer cannot be listened to any longer.
#[derive(Debug, thiserror::Error)]
pub(super) enum MessageError {
    #[error("the connection failed")]
    Io(#[from] io::Error),
    #[error("it sent {0}")]
    Format(#[from] BadFormat),
    #[error("it sent a message of unknown type {0}")]
    Unknown(u8),
    #[error("it sent a message of unknown type 255/{0}")]
    UnknownQemu(u8),
    #[error("it announced a text of {0} bytes")]
    Text(u32),
}

/// Reads one message. Never takes more memory than [`MAX_ENCODINGS`] need, whatever is announced.
pub(super) fn read(from: &mut impl Read) -> Result<Message, MessageError> {
    let [kind] = bytes(from)?;
    Ok(match kind {
        0 => {
            let _padding: [u8; 3] = bytes(from)?;
            Message::SetPixelFormat(PixelFormat::parse(bytes(from)?)?)
        }
        2 => {
            let [_, high, low] = bytes(from)?;
            Message::SetEncodings(encodings(from, u16::from_be_bytes([high, low]))?)
        }
        3 => {
            let [incremental] = bytes(from)?;
            let [x, y, width, height] = [u16(from)?, u16(from)?, u16(from)?, u16(from)?];
            Message::UpdateRequest { incremental: incremental != 0, area: Area { x, y, width, height } }
        }
        4 => {
            let [down, _, _] = bytes(from)?;
            Message::Key { symbol: u32(from)?, down: down != 0 }
        }
        5 => {
            let [buttons] = bytes(from)?;
            Message::Pointer { x: u16(from)?, y: u16(from)?, buttons }
        }
        6 => {
            let _padding: [u8; 3] = bytes(from)?;
            let len = u32(from)?;
            if len > MAX_TEXT {
                return Err(MessageError::Text(len));
            }
            skip(from, len.into())?;
            Message::Nothing
        }
        251 => {
            let _padding: [u8; 1] = bytes(from)?;
            let (width, height) = (u16(from)?, u16(from)?);
            let [screens, _] = bytes(from)?;
            skip(from, u64::from(screens) * 16)?;
            Message::SetDesktopSize { width, height }
        }
        255 => match bytes(from)? {
            [0] => {
                let down = u16(from)? != 0;
                Message::PlacedKey { symbol: u32(from)?, code: u32(from)?, down }
            }
            [other] => return Err(MessageError::UnknownQemu(other)),
        },
        other => return Err(MessageError::Unknown(other)),
    })
}

fn encodings(from: &mut impl Read, count: u16) -> io::Result<Vec<i32>> {
    let count = usize::from(count);
    let mut known = Vec::with_capacity(count.min(MAX_ENCODINGS));
    for _ in 0..count.min(MAX_ENCODINGS) {
        known.push(i32::from_be_bytes(bytes(from)?));
    }
    let beyond = u64::try_from(count.saturating_sub(MAX_ENCODINGS)).unwrap_or(0);
    skip(from, beyond * 4)?;
    Ok(known)
}

fn bytes<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn u16(from: &mut impl Read) -> io::Result<u16> {
    Ok(u16::from_be_bytes(bytes(from)?))
}

fn u32(from: &mut impl Read) -> io::Result<u32> {
    Ok(u32::from_be_bytes(bytes(from)?))
}

fn skip(from: &mut impl Read, count: u64) -> io::Result<()> {
    let skipped = io::copy(&mut from.take(count), &mut io::sink())?;
    if skipped == count { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(mut bytes: &[u8]) -> (Message, usize) {
        let len = bytes.len();
        let message = read(&mut bytes).unwrap();
        (message, len - bytes.len())
    }

    #[test]
    fn each_message_is_read_whole() {
        let mut format = vec![0, 0, 0, 0];
        format.extend(PixelFormat::default().to_bytes());
        let area = Area { x: 1, y: 2, width: 3, height: 0x104 };
        for (bytes, message) in [
            (format, Message::SetPixelFormat(PixelFormat::default())),
            (
                [2, 0, 0, 2, 0, 0, 0, 16, 0xff, 0xff, 0xff, 0x21].to_vec(),
                Message::SetEncodings(vec![16, -223]),
            ),
            ([3, 1, 0, 1, 0, 2, 0, 3, 1, 4].to_vec(), Message::UpdateRequest { incremental: true, area }),
            ([4, 1, 0, 0, 0, 0, 0xff, 0x0d].to_vec(), Message::Key { symbol: 0xff0d, down: true }),
            ([5, 3, 1, 0, 0, 9].to_vec(), Message::Pointer { x: 256, y: 9, buttons: 3 }),
            ([6, 0, 0, 0, 0, 0, 0, 3, b'a', b'b', b'c'].to_vec(), Message::Nothing),
            (
                [&[251, 0, 4, 0, 3, 0, 1, 0][..], &[0; 16]].concat(),
                Message::SetDesktopSize { width: 1024, height: 768 },
            ),
            (
                [255, 0, 0, 1, 0, 0, 0, b'a', 0, 0, 0, 0x1e].to_vec(),
                Message::PlacedKey { symbol: b'a'.into(), code: 0x1e, down: true },
            ),
        ] {
            let len = bytes.len();
            let more = [bytes.as_slice(), &[0x55; 8]].concat();
            assert_eq!(one(&more), (message, len));
            for end in 0..len {
                assert!(matches!(read(&mut &bytes[..end]), Err(MessageError::Io(_))), "cut at {end}");
            }
        }
    }

    #[test]
    fn what_is_announced_is_not_believed() {
        assert!(matches!(read(&mut &[6, 0, 0, 0, 0xff, 0xff, 0xff, 0xff][..]), Err(MessageError::Text(_))));
        let mut many = vec![2, 0, 0xff, 0xff];
        many.extend([0; 0xffff * 4]);
        let (message, len) = one(&many);
        assert_eq!(len, many.len());
        assert_eq!(message, Message::SetEncodings(vec![0; MAX_ENCODINGS]));
        assert!(matches!(read(&mut &[255, 7][..]), Err(MessageError::UnknownQemu(7))));
        assert!(matches!(read(&mut &[99][..]), Err(MessageError::Unknown(99))));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_stand_still(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut left = bytes.as_slice();
            while !left.is_empty() {
                let before = left.len();
                if read(&mut left).is_err() {
                    break;
                }
                prop_assert!(left.len() < before);
            }
        }
    }
}
