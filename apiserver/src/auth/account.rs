//! Tokens of ServiceAccounts: their claims as Kubernetes writes them, and whether they still hold.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::ACCOUNT;
use super::User;
use crate::meta;
use crate::resource::{Resource, SECRETS, SERVICE_ACCOUNTS};
use crate::store::Store;

/// The issuer of tokens, and their default audience.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// Where a user's token is named.
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// The claims of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Its audiences.
    pub aud: Vec<String>,
    /// When it ends, in seconds since 1970. Without, it holds as long as its secret has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exp: Option<i64>,
    iat: i64,
    iss: String,
    jti: String,
    #[serde(rename = "kubernetes.io")]
    holder: Holder,
    nbf: i64,
    sub: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<Named>,
    serviceaccount: Named,
}

/// An object that must still be there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// That it is still the same.
    pub uid: String,
}

/// An account that gets a token.
#[derive(Debug, Clone)]
pub struct Account {
    /// Where it is.
    pub namespace: String,
    /// It.
    pub account: Named,
    /// A secret without which the token is worth nothing.
    pub secret: Option<Named>,
}

impl Claims {
    /// The claims of a new token, which expires after these seconds or with its Secret.
    pub fn new(account: Account, audiences: Vec<String>, now: i64, seconds: Option<i64>) -> Self {
        let Account { namespace, account, secret } = account;
        Self {
            aud: audiences,
            exp: seconds.map(|seconds| now.saturating_add(seconds)),
            iat: now,
            iss: ISSUER.to_owned(),
            jti: Uuid::new_v4().to_string(),
            nbf: now,
            sub: format!("{ACCOUNT}{namespace}:{}", account.name),
            holder: Holder { namespace, secret, serviceaccount: account },
        }
    }

    /// Whether this is the token of its Secret, which alone limits its lifetime.
    pub fn is_kept(&self, store: &Store, token: &str) -> bool {
        let kept = || {
            let Holder { namespace, secret, .. } = &self.holder;
            let secret = store.get(&SECRETS.key(namespace, &secret.as_ref()?.name))?;
            let kept = STANDARD.decode(secret.value().get("data")?.get("token")?.as_str()?).ok()?;
            Some(kept == token.as_bytes())
        };
        self.exp.is_some() || kept() == Some(true)
    }

    /// Who shows it, if it holds at this moment.
    pub fn user(&self, store: &Store, now: i64) -> Option<User> {
        let Holder { namespace, secret, serviceaccount: account } = &self.holder;
        let in_time = self.nbf <= now && self.exp.is_none_or(|end| now < end) && self.iss == ISSUER;
        let there = |resource: &Resource, wanted: &Named| {
            let found = store.get(&resource.key(namespace, &wanted.name));
            found.is_some_and(|found| meta::text(&found.value(), "uid") == wanted.uid)
        };
        let holds = in_time
            && there(&SERVICE_ACCOUNTS, account)
            && secret.as_ref().is_none_or(|secret| there(&SECRETS, secret));
        holds.then(|| User {
            uid: account.uid.clone(),
            extra: BTreeMap::from([(CREDENTIAL.to_owned(), vec![format!("JTI={}", self.jti)])]),
            ..User::service_account(namespace, &account.name)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use serde_json::{Value, json};

    use super::*;
    use crate::auth::KNOWN;
    use crate::objects;
    use crate::store::Change;

    fn put(store: &Store, resource: &Resource, name: &str) -> Named {
        let key = resource.key("n", name);
        let mut value = json!({});
        meta::create(&mut value, "n", name);
        let object = store.write(&key, |_, _| Ok::<_, Infallible>(Change::Put(value))).unwrap().unwrap();
        Named { name: name.to_owned(), uid: meta::text(&object.value(), "uid").to_owned() }
    }

    #[test]
    fn claims_are_those_of_kubernetes() {
        let named = |name: &str| Named { name: name.to_owned(), uid: format!("{name}-uid") };
        let account = Account { namespace: "n".to_owned(), account: named("x"), secret: None };
        let mut claims_json: Value =
            serde_json::to_value(Claims::new(account, vec!["a".to_owned()], 1000, Some(600))).unwrap();
        assert!(claims_json["jti"].take().as_str().is_some_and(|jti| jti.len() == 36));
        assert_eq!(
            claims_json,
            json!({"aud": ["a"], "exp": 1600, "iat": 1000, "nbf": 1000, "iss": ISSUER, "jti": null,
                "sub": "system:serviceaccount:n:x",
                "kubernetes.io": {"namespace": "n", "serviceaccount": {"name": "x", "uid": "x-uid"}}})
        );
    }

    #[test]
    fn it_holds_as_long_as_its_time_and_what_it_names() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        let (account, secret) = (put(&store, &SERVICE_ACCOUNTS, "x"), put(&store, &SECRETS, "s"));
        let bound = |secret: Option<Named>| {
            let account = Account { namespace: "n".to_owned(), account: account.clone(), secret };
            Claims::new(account, Vec::new(), 1000, Some(600))
        };
        let claims = bound(None);
        for (now, holds) in [(999, false), (1000, true), (1599, true), (1600, false)] {
            assert_eq!(claims.user(&store, now).is_some(), holds, "{now}");
        }
        let user = claims.user(&store, 1000).unwrap();
        assert_eq!(
            (user.name.as_str(), user.uid.as_str()),
            ("system:serviceaccount:n:x", account.uid.as_str())
        );
        assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:n", KNOWN]);
        assert!(user.extra[CREDENTIAL][0].starts_with("JTI="));
        let foreign = Claims { iss: "other".to_owned(), ..claims.clone() };
        assert_eq!(foreign.user(&store, 1000), None);

        let with_secret = bound(Some(secret));
        assert!(with_secret.user(&store, 1000).is_some());
        let key = SECRETS.key("n", "s");
        objects::remove(&store, &store.get(&key).unwrap()).unwrap();
        assert_eq!(with_secret.user(&store, 1000), None);
        put(&store, &SECRETS, "s");
        assert_eq!(with_secret.user(&store, 1000), None, "it is another one");
        put(&store, &SERVICE_ACCOUNTS, "x");
        assert_eq!(claims.user(&store, 1000), None, "and so is the account");
    }
}
