//! Tokens for uploads: JSON Web Tokens of this server, each for one claim and a short while.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use ring::hmac;
use ring::rand::SystemRandom;
use serde::{Deserialize, Serialize};

/// As long as CDI's.
const LIFE: SignedDuration = SignedDuration::from_mins(5);
/// No token is longer.
const LONGEST: usize = 4096;
const HEAD: &str = r#"{"alg":"HS256","typ":"JWT"}"#;

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

/// Makes and reads tokens. Its key is as old as the process: who was given a token before asks for another one.
#[derive(Debug)]
pub struct Passes {
    key: hmac::Key,
}

/// The machine gives no random numbers.
#[derive(Debug, thiserror::Error)]
#[error("there are no random numbers for a key")]
pub struct NoKey;

impl Passes {
    /// With a new key.
    ///
    /// # Errors
    /// When there are no random numbers.
    pub fn new() -> Result<Self, NoKey> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map_err(|_| NoKey)?;
        Ok(Self { key })
    }

    /// A token for a claim, from now on.
    pub fn sign(&self, subject: &Subject, now: Timestamp) -> String {
        let exp = now.as_second().saturating_add(LIFE.as_secs());
        let payload = Payload { aud: AUDIENCE.to_owned(), exp, subject: subject.clone() };
        // Texts and a number are always JSON.
        let payload = serde_json::to_string(&payload).unwrap_or_default();
        let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(HEAD), URL_SAFE_NO_PAD.encode(payload));
        let signature = hmac::sign(&self.key, text.as_bytes());
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }

    /// Which claim a token is for, if it is one of ours and not too old.
    pub fn read(&self, token: &str, now: Timestamp) -> Option<Subject> {
        if token.len() > LONGEST {
            return None;
        }
        let (text, signature) = token.rsplit_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        hmac::verify(&self.key, text.as_bytes(), &signature).ok()?;
        let (head, payload) = text.split_once('.')?;
        let payload: Payload = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
        let ours = head == URL_SAFE_NO_PAD.encode(HEAD) && payload.aud == AUDIENCE;
        (ours && now.as_second() < payload.exp).then_some(payload.subject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_for_one_claim_and_a_while() {
        let (signer, other) = (Passes::new().unwrap(), Passes::new().unwrap());
        let subject = Subject { namespace: "a".into(), name: "data".into(), uid: "1".into() };
        let then: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let token = signer.sign(&subject, then);
        let late = then.checked_add(LIFE).unwrap();
        assert_eq!(signer.read(&token, then), Some(subject.clone()));
        assert_eq!(signer.read(&token, late), None, "it is too old");
        assert_eq!(other.read(&token, then), None, "another server's");
        let mut parts: Vec<String> = token.split('.').map(str::to_owned).collect();
        parts[1] = URL_SAFE_NO_PAD.encode(
            r#"{"aud":"cdi-upload","exp":99999999999,"sub":{"namespace":"a","name":"other","uid":"2"}}"#,
        );
        let none = format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#), parts[1]);
        for forged in
            [parts.join("."), none, String::new(), "..".to_owned(), "a.b.c".to_owned(), "x".repeat(9000)]
        {
            assert_eq!(signer.read(&forged, then), None, "{forged}");
        }
    }
}
