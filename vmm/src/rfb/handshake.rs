use std::io::{self, Read, Write};

use super::format::PixelFormat;

/// The highest version that the server supports.
const VERSION: &[u8; 12] = b"RFB 003.008\n";
const NAME: &[u8] = b"Vireo";
/// Security type (RFC 6143, section 7.1.2).
const NONE: u8 = 1;

/// Why a viewer never got as far as seeing something.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("the connection failed")]
    Io(#[from] io::Error),
    #[error("the client does not send an RFB version")]
    NoRfb,
    #[error("the client requests security type {0}, which was not offered")]
    Security(u8),
}

/// The protocol version of a viewer. Unknown versions mean the next older one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Version {
    V3_3,
    V3_7,
    V3_8,
}

fn version(text: [u8; 12]) -> Option<Version> {
    let number = |digits: &[u8]| {
        let text =
            str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
        text.parse::<u16>().ok()
    };
    let [b'R', b'F', b'B', b' ', major @ .., b'\n'] = &text else { return None };
    let (major, minor) = (number(major.get(..3)?)?, number(major.get(4..)?)?);
    if text.get(7) != Some(&b'.') {
        return None;
    }
    Some(match (major, minor) {
        (3, ..7) => Version::V3_3,
        (3, 7) => Version::V3_7,
        (0..3, _) => return None,
        _ => Version::V3_8,
    })
}

/// Protocol version, security and `ClientInit` (RFC 6143, sections 7.1 and 7.3.1).
///
/// The viewer's shared flag is ignored: a second session never ends the first.
pub(super) fn greet(stream: &mut (impl Read + Write)) -> Result<(), HandshakeError> {
    stream.write_all(VERSION)?;
    let mut text = [0; 12];
    stream.read_exact(&mut text)?;
    let version = version(text).ok_or(HandshakeError::NoRfb)?;
    if version == Version::V3_3 {
        stream.write_all(&u32::from(NONE).to_be_bytes())?;
    } else {
        stream.write_all(&[1, NONE])?;
        let mut chosen = [0];
        stream.read_exact(&mut chosen)?;
        if chosen != [NONE] {
            return Err(HandshakeError::Security(chosen[0]));
        }
        if version == Version::V3_8 {
            stream.write_all(&0_u32.to_be_bytes())?;
        }
    }
    stream.read_exact(&mut [0])?;
    Ok(())
}

/// `ServerInit` (RFC 6143, section 7.3.2).
pub(super) fn server_init(size: (u16, u16)) -> Vec<u8> {
    let mut init = Vec::with_capacity(32);
    init.extend(size.0.to_be_bytes());
    init.extend(size.1.to_be_bytes());
    init.extend(PixelFormat::default().to_bytes());
    init.extend(u32::try_from(NAME.len()).unwrap_or(0).to_be_bytes());
    init.extend(NAME);
    init
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// What a client sends, and the replies to it.
    struct Client(Cursor<Vec<u8>>, Vec<u8>);

    impl Read for Client {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Client {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn with(says: &[u8]) -> (Result<(), HandshakeError>, Vec<u8>) {
        let mut client = Client(Cursor::new(says.to_vec()), Vec::new());
        let outcome = greet(&mut client);
        (outcome, client.1.split_off(12))
    }

    #[test]
    fn each_version_has_its_own_way() {
        for (says, expected) in [
            (&b"RFB 003.003\n\x01"[..], &[0, 0, 0, 1][..]),
            (b"RFB 003.005\n\x00", &[0, 0, 0, 1]),
            (b"RFB 003.007\n\x01\x01", &[1, 1]),
            (b"RFB 003.008\n\x01\x00", &[1, 1, 0, 0, 0, 0]),
            (b"RFB 003.889\n\x01\x00", &[1, 1, 0, 0, 0, 0]),
            (b"RFB 004.001\n\x01\x00", &[1, 1, 0, 0, 0, 0]),
        ] {
            let (outcome, answer) = with(says);
            assert!(outcome.is_ok(), "{says:?}: {outcome:?}");
            assert_eq!(answer, expected, "{says:?}");
        }
    }

    #[test]
    fn other_protocols_are_rejected() {
        for says in
            [&b"GET / HTTP/1"[..], b"RFB 003-008\n", b"RFB 00x.008\n", b"RFB +03.008\n", b"RFB 002.000\n"]
        {
            assert!(matches!(with(says).0, Err(HandshakeError::NoRfb)), "{says:?}");
        }
        assert!(matches!(with(b"RFB 003.008\n\x02\x01").0, Err(HandshakeError::Security(2))));
        assert!(matches!(with(b"RFB 003.008\n").0, Err(HandshakeError::Io(_))));
    }
}
