//! Who is asking. What they may do, [`crate::rbac`] knows.

pub mod account;
mod certificate;
mod jwt;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use axum::http::HeaderValue;
use jiff::Timestamp;

use account::{Claims, ISSUER};
pub use certificate::user_of as user_of_certificate;
pub use jwt::{FORMER_KEYS, KeyError, Signer, rotate_key};

use crate::store::Store;

/// Who may do everything; Kubernetes' own name for that group.
pub const ADMINISTRATORS: &str = "system:masters";
/// The group of all authenticated users.
pub const KNOWN: &str = "system:authenticated";
/// Prefix of the user names of ServiceAccounts.
pub const ACCOUNT: &str = "system:serviceaccount:";
/// All ServiceAccounts; with a namespace behind a colon, those of the namespace.
const ACCOUNTS: &str = "system:serviceaccounts";
/// Paths that are read without credentials, as on a Kubernetes API server.
pub const PUBLIC: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

/// The user who makes a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// What they are called.
    pub name: String,
    /// Their groups.
    pub groups: Vec<String>,
    /// Who they are though another had the name before; may be empty.
    pub uid: String,
    /// What else is known of them.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A user of whom only the name and the groups are known.
    pub fn named(name: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Self { name: name.to_owned(), groups, ..Self::default() }
    }

    /// A ServiceAccount, with its groups.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        let all = format!("{ACCOUNTS}:{namespace}");
        Self::named(&format!("{ACCOUNT}{namespace}:{name}"), &[ACCOUNTS, &all, KNOWN])
    }

    /// Who has the administrator's certificate or token.
    pub fn administrator() -> Self {
        Self::named("admin", &[ADMINISTRATORS, KNOWN])
    }

    /// Who has shown nothing.
    pub fn anonymous() -> Self {
        Self::named("system:anonymous", &["system:unauthenticated"])
    }

    /// Whether nothing is denied to them.
    pub fn may_everything(&self) -> bool {
        self.groups.iter().any(|group| group == ADMINISTRATORS)
    }
}

/// Authenticates users by their tokens.
#[derive(Debug)]
pub struct Tokens {
    administrator: RwLock<String>,
    signer: Signer,
    store: Arc<Store>,
}

/// A user who is authenticated by a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearer {
    /// Who.
    pub user: User,
    /// The audiences of the token.
    pub audiences: Vec<String>,
}

impl Tokens {
    /// With the administrator's, and those that are signed for the accounts of a store.
    pub fn new(administrator: String, signer: Signer, store: Arc<Store>) -> Self {
        Self { administrator: RwLock::new(administrator), signer, store }
    }

    /// Replaces the administrator's; whether it is another one.
    pub fn set_administrator(&self, token: String) -> bool {
        let mut administrator = self.administrator.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = *administrator != token;
        *administrator = token;
        is_new
    }

    fn is_administrator(&self, token: &str) -> bool {
        let administrator = self.administrator.read().unwrap_or_else(PoisonError::into_inner);
        same(token.as_bytes(), administrator.as_bytes())
    }

    /// Whose token it is, for whomever.
    pub fn bearer(&self, token: &str) -> Option<Bearer> {
        if self.is_administrator(token) {
            return Some(Bearer { user: User::administrator(), audiences: vec![ISSUER.to_owned()] });
        }
        let claims: Claims = self.signer.read(token)?;
        let user = claims.user(&self.store, Timestamp::now().as_second())?;
        claims.is_kept(&self.store, token).then_some(())?;
        Some(Bearer { user, audiences: claims.aud })
    }

    /// Whose token it is, among those that are for this server.
    pub fn user_of(&self, token: &str) -> Option<User> {
        let bearer = self.bearer(token)?;
        bearer.audiences.iter().any(|audience| audience == ISSUER).then_some(bearer.user)
    }

    /// Who signs them, for tokens of other kinds.
    pub fn signer(&self) -> &Signer {
        &self.signer
    }

    /// A signed token with these claims. None when the host has no random numbers.
    pub fn sign(&self, claims: &Claims) -> Option<String> {
        self.signer.sign(claims)
    }

    /// For tests: on a directory, with `right` as the administrator's.
    #[cfg(test)]
    pub(crate) fn of_a_test(directory: &std::path::Path, store: Arc<Store>) -> Self {
        Self::new("right".to_owned(), Signer::of(&directory.join("sa.key")).unwrap(), store)
    }
}

/// The token of an `Authorization` header. The scheme is read in any case (RFC 9110, section 11.1).
pub fn bearer(header: &HeaderValue) -> Option<&str> {
    let (scheme, token) = header.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// Compares in constant time.
fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_authenticate_or_fail() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&dir.path().join("store")).unwrap());
        let tokens = Tokens::of_a_test(dir.path(), store);
        assert_eq!(tokens.user_of("right"), Some(User::administrator()));
        for wrong in ["", "righ", "righT", "rights"] {
            assert_eq!(tokens.user_of(wrong), None, "{wrong}");
        }
        assert!(
            tokens.set_administrator("rights".to_owned()) && !tokens.set_administrator("rights".to_owned())
        );
        assert_eq!(tokens.user_of("right"), None);
        assert_eq!(tokens.user_of("rights"), Some(User::administrator()));
    }
}
