//! Tokens for uploads: JSON Web Tokens of this server, each for one claim and a short while.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use vireo_apiserver::auth::Signer;

/// As long as CDI's.
const LIFE: SignedDuration = SignedDuration::from_mins(5);

/// Which claim a token is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// Of the claim.
    pub namespace: String,
    /// Of the claim.
    pub name: String,
    /// Of the claim: another of its name is not meant.
    pub uid: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Payload {
    aud: String,
    exp: i64,
    #[serde(rename = "sub")]
    subject: Subject,
}

const AUDIENCE: &str = "cdi-upload";

/// A token for a claim, from now on. None where the host gives no random numbers.
pub fn sign(signer: &Signer, subject: &Subject, now: Timestamp) -> Option<String> {
    let exp = now.as_second().saturating_add(LIFE.as_secs());
    signer.sign(&Payload { aud: AUDIENCE.to_owned(), exp, subject: subject.clone() })
}

/// Which claim a token is for, if it is one of ours and not too old. The claims of a ServiceAccount's token have another shape,
/// and reject these.
pub fn read(signer: &Signer, token: &str, now: Timestamp) -> Option<Subject> {
    let payload: Payload = signer.read(token)?;
    (payload.aud == AUDIENCE && now.as_second() < payload.exp).then_some(payload.subject)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_apiserver::store::Store;

    use super::*;

    #[test]
    fn a_token_is_for_one_claim_and_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let signer = Signer::of(&dir.path().join("one.key")).unwrap();
        let subject = Subject { namespace: "a".into(), name: "data".into(), uid: "1".into() };
        let then: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let token = sign(&signer, &subject, then).unwrap();
        let late = then.checked_add(LIFE).unwrap();
        assert_eq!(read(&signer, &token, then), Some(subject.clone()));
        assert_eq!(read(&signer, &token, late), None, "it is too old");
        let other = Signer::of(&dir.path().join("other.key")).unwrap();
        assert_eq!(read(&other, &token, then), None, "another server's");
        let account =
            json!({"aud": ["cdi-upload"], "exp": 99_999_999_999_i64, "sub": "system:serviceaccount:a:b"});
        let elsewhere = json!({"aud": "elsewhere", "exp": 99_999_999_999_i64, "sub": subject});
        for claims in [account, elsewhere] {
            assert_eq!(read(&signer, &signer.sign(&claims).unwrap(), then), None, "{claims}");
        }
    }

    #[test]
    fn it_is_invalid_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let store = std::sync::Arc::new(Store::open(&dir.path().join("store")).unwrap());
        let tokens = crate::tests::tokens(dir.path(), &store);
        let subject = Subject { namespace: "a".into(), name: "data".into(), uid: "1".into() };
        let token = sign(tokens.signer(), &subject, Timestamp::now()).unwrap();
        assert_eq!(tokens.bearer(&token), None);
    }
}
