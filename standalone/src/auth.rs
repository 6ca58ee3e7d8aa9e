//! Who is asking. What they may do, [`crate::rbac`] knows.

mod certificate;

use std::collections::BTreeMap;

pub use certificate::user_of as user_of_certificate;

/// Who may do everything; Kubernetes' own name for that group.
pub const ADMINISTRATORS: &str = "system:masters";
/// Whoever has shown something.
pub const KNOWN: &str = "system:authenticated";
/// Paths that are read without credentials, as on a Kubernetes API server.
pub const PUBLIC: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

/// Somebody who asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// What they are called.
    pub name: String,
    /// What they belong to.
    pub groups: Vec<String>,
    /// Who they are though another had the name before; may be empty.
    pub uid: String,
    /// What else is known of them.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Somebody of whom no more is known than the name and the groups.
    pub fn named(name: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Self { name: name.to_owned(), groups, ..Self::default() }
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

/// What whoever shows a token is let in by.
#[derive(Debug)]
pub struct Tokens {
    administrator: String,
}

impl Tokens {
    /// With the administrator's.
    pub fn new(administrator: String) -> Self {
        Self { administrator }
    }

    /// Whose token it is.
    pub fn user_of(&self, token: &str) -> Option<User> {
        same(token.as_bytes(), self.administrator.as_bytes()).then(User::administrator)
    }
}

/// Compares in a time that does not tell how much fits.
fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_somebodys_or_nobodys() {
        let tokens = Tokens::new("right".to_owned());
        assert_eq!(tokens.user_of("right"), Some(User::administrator()));
        for wrong in ["", "righ", "righT", "rights"] {
            assert_eq!(tokens.user_of(wrong), None, "{wrong}");
        }
    }
}
