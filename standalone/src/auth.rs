//! Who is asking, and what they may do.

/// Who may do everything; Kubernetes' own name for that group.
pub const ADMINISTRATORS: &str = "system:masters";
/// Whoever has shown something.
const KNOWN: &str = "system:authenticated";
/// Paths that are read without credentials, as on a Kubernetes API server.
pub const PUBLIC: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

/// Somebody who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// What they are called.
    pub name: String,
    /// What they belong to.
    pub groups: Vec<String>,
}

/// Something that somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<'a> {
    /// To objects.
    Objects,
    /// To what stands at a path.
    Path {
        /// `get`, or another method in small letters.
        verb: &'a str,
        /// The path.
        path: &'a str,
    },
}

impl User {
    /// Who has a certificate of the server's authority, or the token beside it.
    pub fn administrator() -> Self {
        Self { name: "admin".to_owned(), groups: vec![ADMINISTRATORS.to_owned(), KNOWN.to_owned()] }
    }

    /// Who has shown nothing.
    pub fn anonymous() -> Self {
        Self { name: "system:anonymous".to_owned(), groups: vec!["system:unauthenticated".to_owned()] }
    }

    /// Whether nothing is denied to them.
    pub fn may_everything(&self) -> bool {
        self.groups.iter().any(|group| group == ADMINISTRATORS)
    }

    /// Whether they may do something. There are no roles: administrators may do everything, others look at what is
    /// public.
    pub fn may(&self, action: Action<'_>) -> bool {
        let public = matches!(action, Action::Path { verb: "get", path } if PUBLIC.contains(&path));
        public || self.may_everything()
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
    fn administrators_may_do_everything_and_others_look_at_what_is_public() {
        let (admin, nobody) = (User::administrator(), User::anonymous());
        for (action, public) in [
            (Action::Objects, false),
            (Action::Path { verb: "get", path: "/version" }, true),
            (Action::Path { verb: "post", path: "/version" }, false),
            (Action::Path { verb: "get", path: "/version/x" }, false),
            (Action::Path { verb: "get", path: "/api" }, false),
        ] {
            assert_eq!((admin.may(action), nobody.may(action)), (true, public), "{action:?}");
        }
    }

    #[test]
    fn a_token_is_somebodys_or_nobodys() {
        let tokens = Tokens::new("right".to_owned());
        assert_eq!(tokens.user_of("right"), Some(User::administrator()));
        for wrong in ["", "righ", "righT", "rights"] {
            assert_eq!(tokens.user_of(wrong), None, "{wrong}");
        }
    }
}
