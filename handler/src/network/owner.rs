//! Whose a network is. The names of its parts follow from the UID of its VMI, and each part has a mark with the UID as the
//! alias of an interface. A part that exists without the mark is another program's: it is neither used nor removed.

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::NetworkError;
use super::link::Links;

/// What the names of the host's ends of wires begin with.
pub(super) const LINK_PREFIX: &str = "vv";
/// Linux has interface names of at most 15 bytes (`IFNAMSIZ`): 65 bits of a digest fit, five in each character.
const DIGITS: usize = 13;

/// The namespace of a VMI.
pub(super) fn namespace(uid: Uuid) -> String {
    format!("vireo-{uid}")
}

/// The host's end of a VMI's wire.
pub(super) fn host_link(uid: Uuid) -> String {
    let digest: [u8; 32] = Sha256::digest(uid.as_bytes()).into();
    let number = digest.iter().take(16).fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
    let digit = |at: usize| match u8::try_from(number >> (5 * at) & 31).unwrap_or_default() {
        letter @ 0..26 => char::from(b'a' + letter),
        rest => char::from(b'2' + (rest - 26)),
    };
    let digits: String = (0..DIGITS).map(digit).collect();
    format!("{LINK_PREFIX}{digits}")
}

/// The mark of what belongs to a VMI.
pub(super) fn mark(uid: Uuid) -> String {
    format!("vireo VMI {uid}")
}

/// Fails unless an interface has a mark.
///
/// # Errors
/// When it is missing, and when it has another alias: `what` is then another program's.
pub(super) async fn verify(links: &Links, name: &str, mark: &str, what: &str) -> Result<(), NetworkError> {
    match links.alias(name).await? {
        Some(alias) if alias == mark => Ok(()),
        alias => Err(NetworkError::Foreign { what: what.to_owned(), alias: alias.unwrap_or_default() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_the_whole_uid_and_fit() {
        let one: Uuid = "8c3d1e55-0000-4000-8000-000000000001".parse().unwrap();
        let two: Uuid = "8c3d1e55-0000-4000-8000-000000000002".parse().unwrap();
        assert_eq!(namespace(one), "vireo-8c3d1e55-0000-4000-8000-000000000001");
        assert_eq!(host_link(one), host_link(one));
        assert_ne!(host_link(one), host_link(two));
        assert_eq!(host_link(one).len(), 15, "IFNAMSIZ with its NUL is 16");
        assert!(host_link(one).bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()));
    }
}
