//! The alphabets of names, as Kubernetes has them.

/// An RFC 1123 label: at most 63 of a-z, 0-9 and `-`, letters or digits at both ends.
pub(crate) fn is_dns_label(text: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

/// An RFC 1123 subdomain: labels joined by dots, at most 253 in all.
pub(crate) fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

/// What a DNS label is, for messages.
pub(crate) const DNS_LABEL: &str =
    "write at most 63 of a-z, 0-9 and '-', beginning and ending with a letter or a digit";
/// What a DNS subdomain is, for messages.
pub(crate) const DNS_SUBDOMAIN: &str =
    "write labels of a-z, 0-9 and '-' joined by dots, at most 253 characters";

/// An absolute path that is not the root and says what it means: no empty, `.` or `..` part.
pub(crate) fn is_normal_absolute_path(text: &str) -> bool {
    text.len() <= 4096
        && !text.contains('\0')
        && text
            .strip_prefix('/')
            .is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")))
}

/// A word that can stand in a hypervisor's option without a second meaning.
pub(crate) fn is_plain_word(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && !text.starts_with('-')
}

/// Text that firmware tables and command lines can carry: one line, no control characters.
pub(crate) fn is_one_line(text: &str, most: usize) -> bool {
    text.len() <= most && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_rfc_1123() {
        for (text, label, subdomain) in [
            ("a", true, true),
            ("vm-1", true, true),
            ("a.b-c.d", false, true),
            ("", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("A", false, false),
            ("a..b", false, false),
            ("a_b", false, false),
        ] {
            assert_eq!(is_dns_label(text), label, "{text}");
            assert_eq!(is_dns_subdomain(text), subdomain, "{text}");
        }
        assert!(is_dns_label(&"x".repeat(63)) && !is_dns_label(&"x".repeat(64)));
    }

    #[test]
    fn a_path_says_what_it_means() {
        for (text, good) in [
            ("/boot/vmlinuz", true),
            ("/a", true),
            ("/", false),
            ("", false),
            ("a/b", false),
            ("/a/../b", false),
            ("/a//b", false),
            ("/a/", false),
            ("/a\0", false),
        ] {
            assert_eq!(is_normal_absolute_path(text), good, "{text}");
        }
    }
}
