//! The alphabets of names, as Kubernetes has them.

const LONGEST_LABEL: usize = 63;

/// An RFC 1123 label: at most 63 of a-z, 0-9 and `-`, letters or digits at both ends.
pub(crate) fn is_dns_label(text: &str) -> bool {
    text.len() <= LONGEST_LABEL && is_label_of_any_length(text)
}

fn is_label_of_any_length(text: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

/// An RFC 1123 subdomain as Kubernetes validates it: labels joined by dots, at most 253 characters in all, whatever the
/// length of a label.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label_of_any_length)
}

/// Whether a subdomain can be written in a DNS message, in which a label has at most 63 bytes (RFC 1035, section 2.3.4).
pub(crate) fn fits_dns(subdomain: &str) -> bool {
    subdomain.split('.').all(|label| label.len() <= LONGEST_LABEL)
}

/// The name part of a label, or its value where that is not empty.
pub(crate) fn is_label_text(text: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// What is wrong with a label, in Kubernetes' words.
pub(crate) const RFC_1123_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters \
    or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for \
    validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
/// What is wrong with a subdomain, in Kubernetes' words.
pub(crate) const RFC_1123_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
    characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
    validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// What a DNS label is, for messages.
pub(crate) const DNS_LABEL: &str =
    "must be a DNS label: at most 63 of a-z, 0-9 and '-', beginning and ending with a letter or a digit";
/// What a DNS subdomain is, for messages.
pub(crate) const DNS_SUBDOMAIN: &str =
    "must be a DNS subdomain: labels of a-z, 0-9 and '-' joined by dots, at most 253 characters";

/// An absolute path that is not the root and is normalized: no empty, `.` or `..` part.
pub(crate) fn is_normal_absolute_path(text: &str) -> bool {
    text.len() <= 4096
        && !text.contains('\0')
        && text
            .strip_prefix('/')
            .is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")))
}

/// A path without the slash at its end, which KubeVirt tolerates.
pub(crate) fn without_trailing_slash(path: &str) -> &str {
    path.strip_suffix('/').unwrap_or(path)
}

/// What a path inside an image must be, for messages.
pub(crate) const ABSOLUTE_PATH: &str = "must be an absolute path to a file without relative components";

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
        let long = "x".repeat(64);
        assert!(is_dns_label(&long[1..]) && !is_dns_label(&long));
        assert!(is_dns_subdomain(&long) && !is_dns_subdomain(&"x".repeat(254)));
    }

    #[test]
    fn a_slash_at_the_end_of_a_path_is_dropped_once() {
        for (text, good) in [("/disk/a.img/", true), ("/disk/a.img//", false), ("/", false)] {
            assert_eq!(is_normal_absolute_path(without_trailing_slash(text)), good, "{text}");
        }
    }

    #[test]
    fn paths_are_normalized() {
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
