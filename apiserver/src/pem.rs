//! Textual encoding of certificates and keys (RFC 7468).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Characters of base64 in a line of PEM.
const LINE: usize = 64;

/// Bytes as PEM.
pub(crate) fn pem(label: &str, bytes: &[u8]) -> String {
    let text = STANDARD.encode(bytes);
    let mut pem = format!("-----BEGIN {label}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(LINE));
        pem.push_str(line);
        pem.push('\n');
        rest = after;
    }
    pem.push_str(&format!("-----END {label}-----\n"));
    pem
}
