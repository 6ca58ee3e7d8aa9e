//! Signed tokens: JSON web tokens of the one kind that this server makes, ES256 with its own key. The key can be replaced:
//! tokens that a former one signed are accepted until they end, or until the key does.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use vireo_certificates::pem;

use crate::files::{FileError, lock_directory, write_atomically};

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

/// What the file with the public halves of former keys is called, beside that of the key.
pub const FORMER_KEYS: &str = "sa-former.json";

/// Signs tokens, and knows its own again.
pub struct Signer {
    path: PathBuf,
    random: SystemRandom,
    keys: RwLock<Keys>,
}

struct Keys {
    key: EcdsaKeyPair,
    /// The key's name in tokens.
    name: String,
    former: Vec<FormerKey>,
}

/// A key that signs no longer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FormerKey {
    /// Its public half, in base64url.
    public: String,
    /// Until when its tokens are accepted, in seconds since 1970. Without, until they end.
    until: Option<i64>,
}

impl FormerKey {
    fn is_accepted(&self, now: i64) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Signer").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Signer {
    /// With the key in a file, which is made where it is absent.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn of(path: &Path) -> Result<Self, KeyError> {
        if !path.exists() {
            make(path)?;
        }
        let keys = RwLock::new(Keys::read(path)?);
        Ok(Self { path: path.to_owned(), random: SystemRandom::new(), keys })
    }

    /// Reads the files of the keys again. Returns whether another key signs from now on.
    ///
    /// # Errors
    /// When they cannot be read. The keys stay.
    pub fn reload(&self) -> Result<bool, KeyError> {
        let read = Keys::read(&self.path)?;
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = keys.name != read.name;
        *keys = read;
        Ok(is_new)
    }

    /// A signed token with these claims. None when the host has no random numbers.
    pub fn sign(&self, claims: &impl Serialize) -> Option<String> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let header = json!({"alg": "ES256", "kid": keys.name});
        let (header, claims) = (serde_json::to_vec(&header).ok()?, serde_json::to_vec(claims).ok()?);
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = keys.key.sign(&self.random, signed.as_bytes()).ok()?;
        Some(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// The claims of a token that this key signed, or a former one whose tokens are accepted. Their expiry is not checked.
    pub fn read<T: DeserializeOwned>(&self, token: &str) -> Option<T> {
        self.read_at(token, Timestamp::now().as_second())
    }

    fn read_at<T: DeserializeOwned>(&self, token: &str, now: i64) -> Option<T> {
        if token.len() > LONGEST {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let header: serde_json::Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
        if header.get("alg")? != "ES256" {
            return None;
        }
        let public = {
            let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
            keys.public(header.get("kid")?.as_str()?, now)?
        };
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, public);
        public.verify(signed.as_bytes(), &signature).ok()?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }
}

impl Keys {
    fn read(path: &Path) -> Result<Self, KeyError> {
        let key = read_key(path)?;
        let name = name(key.public_key().as_ref());
        Ok(Self { key, name, former: read_former(path)? })
    }

    /// The public half of the key with a name.
    fn public(&self, kid: &str, now: i64) -> Option<Vec<u8>> {
        if kid == self.name {
            return Some(self.key.public_key().as_ref().to_vec());
        }
        let accepted = self.former.iter().filter(|former| former.is_accepted(now));
        let mut publics = accepted.filter_map(|former| URL_SAFE_NO_PAD.decode(&former.public).ok());
        publics.find(|public| name(public) == kid)
    }
}

/// Replaces the key in a file, also of a server that runs. Tokens of the former one, and of those before it, are accepted
/// until they end, or for `overlap` at most.
///
/// # Errors
/// When the files cannot be read or written.
pub fn rotate_key(path: &Path, overlap: Option<Duration>, now: i64) -> Result<(), KeyError> {
    // Of two replacements at the same time, the second would forget the key of the first.
    let directory = path.parent().unwrap_or(Path::new("."));
    let _lock = lock_directory(directory).map_err(|error| KeyError::Read {
        path: directory.display().to_string(),
        why: format!("cannot be locked: {error}"),
    })?;
    let end = overlap.map(|overlap| now.saturating_add_unsigned(overlap.as_secs()));
    let public = URL_SAFE_NO_PAD.encode(read_key(path)?.public_key());
    let mut former = read_former(path)?;
    former.retain(|key| key.is_accepted(now) && key.public != public);
    former.push(FormerKey { public, until: None });
    if end.is_some() {
        for key in &mut former {
            key.until = key.until.min(end).or(end);
        }
    }
    let json = serde_json::to_vec(&former).map_err(|_| KeyError::Make)?;
    // First: without it, tokens would be refused where the rest fails.
    write_atomically(&path.with_file_name(FORMER_KEYS), &json)?;
    make(path)
}

fn make(path: &Path) -> Result<(), KeyError> {
    let fresh = rcgen::KeyPair::generate().map_err(|_| KeyError::Make)?;
    Ok(write_atomically(path, pem("PRIVATE KEY", &fresh.serialize_der()).as_bytes())?)
}

fn read_key(path: &Path) -> Result<EcdsaKeyPair, KeyError> {
    let failed = |why: String| KeyError::Read { path: path.display().to_string(), why };
    let der = PrivatePkcs8KeyDer::from_pem_file(path).map_err(|error| failed(error.to_string()))?;
    let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
    EcdsaKeyPair::from_pkcs8(algorithm, der.secret_pkcs8_der(), &random)
        .map_err(|error| failed(error.to_string()))
}

fn read_former(path: &Path) -> Result<Vec<FormerKey>, KeyError> {
    let path = path.with_file_name(FORMER_KEYS);
    let failed = |why: String| KeyError::Read { path: path.display().to_string(), why };
    match std::fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed(error.to_string())),
        Ok(json) => serde_json::from_slice(&json).map_err(|error| failed(error.to_string())),
    }
}

fn name(public: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(public))
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
        let (signed, mine) = (
            encode(json!({"sub": "root"})),
            encode(json!({"alg": "none", "kid": signer.keys.read().unwrap().name})),
        );
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
        assert!(matches!(signer.reload(), Err(KeyError::Read { .. })));
        assert_eq!(signer.read::<Value>(&token), Some(json!({"sub": "me"})), "the key stays");
    }

    #[test]
    fn tokens_of_a_former_key_are_accepted_as_long_as_it_is() {
        const NOW: i64 = 1000;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sa.key");
        let signer = Signer::of(&path).unwrap();
        let sign = || signer.sign(&json!({"sub": "me"})).unwrap();
        let accepted = |token: &str, now: i64| signer.read_at::<Value>(token, now).is_some();
        let first = sign();
        rotate_key(&path, None, NOW).unwrap();
        assert_eq!(sign().split('.').next(), first.split('.').next(), "it is not read yet");
        assert!(signer.reload().unwrap() && !signer.reload().unwrap());
        let second = sign();
        assert_ne!(second.split('.').next(), first.split('.').next());
        assert!(accepted(&first, i64::MAX) && accepted(&second, NOW));

        // Another end holds for those before as well.
        rotate_key(&path, Some(Duration::from_secs(60)), NOW).unwrap();
        signer.reload().unwrap();
        for token in [&first, &second] {
            assert!(accepted(token, NOW + 59) && !accepted(token, NOW + 60));
        }
        // A later end does not.
        rotate_key(&path, Some(Duration::from_secs(600)), NOW).unwrap();
        signer.reload().unwrap();
        assert!(accepted(&first, NOW + 59) && !accepted(&first, NOW + 60));
        // What has ended is forgotten.
        rotate_key(&path, Some(Duration::ZERO), NOW + 60).unwrap();
        let kept = std::fs::read_to_string(path.with_file_name(FORMER_KEYS)).unwrap();
        assert_eq!(serde_json::from_str::<Vec<FormerKey>>(&kept).unwrap().len(), 2, "{kept}");
        signer.reload().unwrap();
        assert!(!accepted(&first, NOW + 60) && accepted(&sign(), NOW + 60));
        let forged = first.replacen(first.split('.').next().unwrap(), sign().split('.').next().unwrap(), 1);
        assert!(!accepted(&forged, NOW));
    }
}
