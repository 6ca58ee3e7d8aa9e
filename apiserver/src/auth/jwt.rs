//! Signed tokens: JSON web tokens of the one kind that this server makes, ES256 with its own key.

use std::fmt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use vireo_certificates::pem;

use crate::files::{FileError, write_atomically};

/// Bytes of a token that is looked at.
const LONGEST: usize = 16 << 10;

/// Why no key can be read or made.
#[derive(Debug, Error)]
pub enum KeyError {
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] FileError),
    /// It cannot be read.
    #[error("cannot read the key {path}: {why}")]
    Read {
        /// Its file.
        path: String,
        /// Why.
        why: String,
    },
    /// None can be made.
    #[error("cannot make a key")]
    Make,
}

/// Signs tokens, and knows its own again.
pub struct Signer {
    key: EcdsaKeyPair,
    random: SystemRandom,
    /// The key's name in tokens.
    name: String,
}

impl fmt::Debug for Signer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Signer").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Signer {
    /// With the key in a file, which is made where it is absent.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn of(path: &Path) -> Result<Self, KeyError> {
        if !path.exists() {
            let fresh = rcgen::KeyPair::generate().map_err(|_| KeyError::Make)?;
            write_atomically(path, pem("PRIVATE KEY", &fresh.serialize_der()).as_bytes())?;
        }
        let failed = |why: String| KeyError::Read { path: path.display().to_string(), why };
        let der = PrivatePkcs8KeyDer::from_pem_file(path).map_err(|error| failed(error.to_string()))?;
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.secret_pkcs8_der(), &random);
        let key = key.map_err(|error| failed(error.to_string()))?;
        let name = URL_SAFE_NO_PAD.encode(Sha256::digest(key.public_key()));
        Ok(Self { key, random, name })
    }

    /// A signed token with these claims. None when the host has no random numbers.
    pub fn sign(&self, claims: &impl Serialize) -> Option<String> {
        let header = json!({"alg": "ES256", "kid": self.name});
        let (header, claims) = (serde_json::to_vec(&header).ok()?, serde_json::to_vec(claims).ok()?);
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = self.key.sign(&self.random, signed.as_bytes()).ok()?;
        Some(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// The claims of a token that this key signed. Their expiry is not checked.
    pub fn read<T: DeserializeOwned>(&self, token: &str) -> Option<T> {
        if token.len() > LONGEST {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let header: serde_json::Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
        if header.get("alg")? != "ES256" || *header.get("kid")? != *self.name {
            return None;
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key());
        public.verify(signed.as_bytes(), &signature).ok()?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_token_is_what_was_signed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sa.key");
        let signer = Signer::of(&path).unwrap();
        let token = signer.sign(&json!({"sub": "me"})).unwrap();
        assert_eq!(signer.read::<Value>(&token), Some(json!({"sub": "me"})));
        assert_eq!(Signer::of(&path).unwrap().read::<Value>(&token), Some(json!({"sub": "me"})), "it stays");
        let other = Signer::of(&dir.path().join("other.key")).unwrap();
        assert_eq!(other.read::<Value>(&token), None);
        let parts: Vec<&str> = token.split('.').collect();
        let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let (signed, mine) =
            (encode(json!({"sub": "root"})), encode(json!({"alg": "none", "kid": signer.name})));
        for wrong in [
            format!("{}.{signed}.{}", parts[0], parts[2]),
            format!("{mine}.{}.{}", parts[1], parts[2]),
            format!("{mine}.{}.", parts[1]),
            format!("{}.{}.{}", parts[0], parts[1], URL_SAFE_NO_PAD.encode([0; 64])),
            format!("{token}A"),
            format!("{}.{}", parts[0], parts[1]),
            "..".to_owned(),
            String::new(),
            "x".repeat(LONGEST + 1),
        ] {
            assert_eq!(signer.read::<Value>(&wrong), None, "{wrong}");
        }
        std::fs::write(&path, "nonsense").unwrap();
        assert!(matches!(Signer::of(&path), Err(KeyError::Read { .. })));
    }
}
