//! Secrets before they are stored.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::Cause;
use super::admit::{base64, data_keys, decoded_bytes_of, immutable, too_long};
use crate::meta;

/// The type of Secrets that hold a token of a ServiceAccount.
pub const ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";
/// The annotation of such a Secret that names the ServiceAccount.
pub const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";

/// What a Secret of a type must have.
const OF_TYPE: [(&str, &[&str]); 4] = [
    ("kubernetes.io/dockerconfigjson", &[".dockerconfigjson"]),
    ("kubernetes.io/dockercfg", &[".dockercfg"]),
    ("kubernetes.io/ssh-auth", &["ssh-privatekey"]),
    ("kubernetes.io/tls", &["tls.crt", "tls.key"]),
];

/// What a Secret of its type lacks.
fn lacks(secret: &Value) -> Vec<Cause> {
    let has = |key: &str| secret["data"].get(key).is_some();
    let required = |key: &str| Cause::required(format!("data[{key}]"), "Required value");
    let kind = secret.get("type").and_then(Value::as_str).unwrap_or_default();
    if kind == "kubernetes.io/basic-auth" {
        let either = ["username", "password"];
        return if either.iter().any(|key| has(key)) {
            Vec::new()
        } else {
            either.into_iter().map(required).collect()
        };
    }
    if kind == ACCOUNT_TOKEN && meta::annotation(secret, ACCOUNT_NAME).is_none() {
        let field = format!("metadata.annotations[{}]", ACCOUNT_NAME);
        return vec![Cause::required(field, "Required value")];
    }
    let keys = OF_TYPE.iter().filter(|(of, _)| *of == kind).flat_map(|(_, keys)| *keys);
    keys.filter(|key| !has(key)).map(|key| required(key)).collect()
}

pub(super) fn secret(new: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = data_keys(new, "stringData");
    let texts = new.as_object_mut().and_then(|fields| fields.remove("stringData"));
    if let Some(Value::Object(texts)) = texts {
        if !new["data"].is_object() {
            new["data"] = json!({});
        }
        for (key, text) in texts {
            new["data"][key] = json!(STANDARD.encode(text.as_str().unwrap_or_default()));
        }
    }
    if new.get("type").and_then(Value::as_str).unwrap_or_default().is_empty() {
        new["type"] = json!("Opaque");
    }
    causes.extend(data_keys(new, "data"));
    causes.extend(base64(new, "data"));
    causes.extend(too_long(decoded_bytes_of(new, "data")));
    causes.extend(lacks(new));
    causes.extend(immutable(new, old, &["data", "immutable"]));
    if old.is_some_and(|old| old.get("type") != new.get("type")) {
        causes.push(Cause::invalid("type", "Invalid value: field is immutable"));
    }
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    #[test]
    fn texts_become_base64_and_what_is_not_is_refused() {
        let mut new = json!({"metadata": {}, "stringData": {"a": "hello"}, "data": {"b": "!!"}});
        let causes = secret(&mut new, None);
        assert_eq!((&new["data"]["a"], &new["type"]), (&json!("aGVsbG8="), &json!("Opaque")));
        assert!(new.get("stringData").is_none());
        assert_eq!(causes.iter().map(|cause| cause.field.as_str()).collect::<Vec<_>>(), ["data[b]"]);
    }

    #[test]
    fn a_secret_has_at_most_a_mebibyte() {
        for (bytes, fits) in [(1 << 20, true), ((1 << 20) + 1, false)] {
            let mut new = json!({"metadata": {}, "stringData": {"a": "x".repeat(bytes)}});
            let causes = secret(&mut new, None);
            assert_eq!(causes.is_empty(), fits, "{causes:?}");
            assert!(causes.iter().all(|cause| cause.field == "data" && cause.reason == "FieldValueTooLong"));
        }
    }

    #[test]
    fn secrets_have_the_keys_of_their_type() {
        for (kind, keys, lacking) in [
            ("kubernetes.io/tls", vec!["tls.crt"], vec!["data[tls.key]"]),
            ("kubernetes.io/tls", vec!["tls.crt", "tls.key"], vec![]),
            ("kubernetes.io/dockerconfigjson", vec![], vec!["data[.dockerconfigjson]"]),
            ("kubernetes.io/ssh-auth", vec!["other"], vec!["data[ssh-privatekey]"]),
            ("kubernetes.io/basic-auth", vec![], vec!["data[username]", "data[password]"]),
            ("kubernetes.io/basic-auth", vec!["password"], vec![]),
            (ACCOUNT_TOKEN, vec![], vec!["metadata.annotations[kubernetes.io/service-account.name]"]),
            ("example.com/own", vec![], vec![]),
        ] {
            let data: Map<String, Value> =
                keys.iter().map(|key| ((*key).to_owned(), json!("eA=="))).collect();
            let mut new = json!({"metadata": {}, "type": kind, "data": data});
            let causes = secret(&mut new, None);
            assert_eq!(
                causes.iter().map(|cause| cause.field.as_str()).collect::<Vec<_>>(),
                lacking,
                "{kind}"
            );
        }
    }
}
