//! Kubernetes' escapes for field names that are not CEL identifiers.

/// Words that CEL keeps to itself.
const KEPT: [&str; 21] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "namespace",
    "null",
    "package",
    "return",
    "true",
    "var",
    "void",
    "while",
];

/// A field's name as rules write it. None for a name that no rule can write.
pub(super) fn escaped(name: &str) -> Option<String> {
    if KEPT.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "_.-/".contains(letter);
    if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) || !name.chars().all(fits) {
        return None;
    }
    let name = name.replace("__", "__underscores__");
    Some(name.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_kubernetes_does() {
        for (name, written) in [
            ("plain", Some("plain")),
            ("a_b", Some("a_b")),
            ("a-b", Some("a__dash__b")),
            ("a.b/c", Some("a__dot__b__slash__c")),
            ("a__b", Some("a__underscores__b")),
            ("in", Some("__in__")),
            ("namespace", Some("__namespace__")),
            ("int", Some("int")),
            ("1a", None),
            ("a b", None),
            ("", None),
        ] {
            assert_eq!(escaped(name).as_deref(), written, "{name}");
        }
    }
}
