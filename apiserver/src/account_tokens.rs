//! Secrets that hold a ServiceAccount's token: each is filled, and goes with its account.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::auth::Tokens;
use crate::auth::account::{Account, Claims, ISSUER, Named};
use crate::controller::{self, Controller};
use crate::resource::{ACCOUNT_NAME, ACCOUNT_TOKEN, SECRETS, SERVICE_ACCOUNTS};
use crate::store::{Changes, DiskError, Key, Object, Store, WatchCursor};
use crate::{meta, objects};

/// The annotation with the UID of the ServiceAccount; the server adds it.
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

/// Fills them until the store is gone. `authority` is the certificate that clients know the server by, as PEM.
pub async fn run(store: Arc<Store>, tokens: Arc<Tokens>, authority: String) {
    let authority = STANDARD.encode(authority);
    controller::run_controller(store, || Filler {
        tokens: Arc::clone(&tokens),
        authority: authority.clone(),
        cursor: WatchCursor::default(),
    })
    .await;
}

/// The account of a Secret that is to hold its token.
fn account_of(secret: &Value) -> Option<&str> {
    (secret.get("type")? == ACCOUNT_TOKEN).then(|| meta::annotation(secret, ACCOUNT_NAME)).flatten()
}

/// What to do about such a Secret.
#[derive(Debug, PartialEq, Eq)]
enum Task {
    Nothing,
    /// Its ServiceAccount does not exist.
    Remove,
    /// Complete it; with a token, where it has none.
    Fill {
        token: bool,
    },
}

/// Decides it, by the UID of the account of the name, if there is one.
fn decide(secret: &Value, account: Option<&str>, authority: &str) -> Task {
    let noted = meta::annotation(secret, ACCOUNT_UID);
    let Some(uid) = account.filter(|uid| noted.is_none_or(|noted| noted == *uid)) else {
        return Task::Remove;
    };
    let has = |field: &str| {
        let data = secret.get("data").and_then(|data| data.get(field));
        data.and_then(Value::as_str).unwrap_or_default()
    };
    let token = has("token").is_empty();
    let namespace = STANDARD.encode(meta::text(secret, "namespace"));
    let fits = noted == Some(uid) && has("ca.crt") == authority && has("namespace") == namespace;
    if token || !fits { Task::Fill { token } } else { Task::Nothing }
}

/// Completes it.
fn fill(secret: &mut Value, uid: &str, authority: &str, token: Option<&str>) {
    let namespace = STANDARD.encode(meta::text(secret, "namespace"));
    // It names its account there.
    secret["metadata"]["annotations"][ACCOUNT_UID] = json!(uid);
    if !secret["data"].is_object() {
        secret["data"] = json!({});
    }
    secret["data"]["ca.crt"] = json!(authority);
    secret["data"]["namespace"] = json!(namespace);
    if let Some(token) = token {
        secret["data"]["token"] = json!(STANDARD.encode(token));
    }
}

/// Who fills them.
#[derive(Debug)]
struct Filler {
    tokens: Arc<Tokens>,
    /// As a Secret has it.
    authority: String,
    cursor: WatchCursor,
}

impl Filler {
    /// A token that ends with its Secret and its account, and with no time.
    fn token(&self, secret: &Object, account: Named, now: Timestamp) -> Option<String> {
        let named =
            Named { name: secret.key.name.clone(), uid: meta::text(&secret.value(), "uid").to_owned() };
        let holder = Account { namespace: secret.key.namespace.clone(), account, secret: Some(named) };
        self.tokens.sign(&Claims::new(holder, vec![ISSUER.to_owned()], now.as_second(), None))
    }
}

impl Controller for Filler {
    const NAME: &'static str = "Secrets of ServiceAccounts";

    fn changed(&mut self, store: &Store) -> BTreeSet<Key> {
        let (secrets, accounts) = (SECRETS.name(), SERVICE_ACCOUNTS.name());
        let all = |namespace: Option<&str>| -> BTreeSet<Key> {
            let objects = store.list(&secrets, namespace).objects;
            let ours = objects.iter().filter(|object| account_of(&object.value()).is_some());
            ours.map(|object| object.key.clone()).collect()
        };
        let changed = |key: &Key| match &key.resource {
            resource if *resource == secrets => BTreeSet::from([key.clone()]),
            resource if *resource == accounts => all(Some(&key.namespace)),
            _ => BTreeSet::new(),
        };
        match self.cursor.look(store) {
            Changes::Relist => all(None),
            Changes::Delta(events) => events.iter().flat_map(|event| changed(&event.key)).collect(),
        }
    }

    fn reconcile(
        &mut self,
        store: &Store,
        secret: &Arc<Object>,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, DiskError> {
        let value = secret.value();
        let Some(name) = account_of(&value).filter(|_| !meta::is_being_deleted(&value)) else {
            return Ok(None);
        };
        let account = SERVICE_ACCOUNTS.key(&secret.key.namespace, name);
        if store.is_unreadable(&account) {
            return Ok(None);
        }
        let account = store.get(&account).map(|account| account.value());
        let uid = account.as_ref().map(|account| meta::text(account, "uid"));
        let token = match decide(&value, uid, &self.authority) {
            Task::Nothing => return Ok(None),
            Task::Remove => return objects::remove(store, secret).map(|()| None),
            Task::Fill { token } => token,
        };
        let uid = uid.unwrap_or_default();
        let made = token.then(|| {
            let account = Named { name: name.to_owned(), uid: uid.to_owned() };
            self.token(secret, account, now)
        });
        let Some(token) = made.map_or(Some(None), |made| made.map(Some)) else {
            tracing::warn!(secret = secret.key.name, "no token can be signed; it is tried again");
            return Ok(Some(controller::retry_at(now)));
        };
        objects::change(store, secret, |value| {
            // Unless it was made another's meanwhile, of which we shall hear.
            if account_of(value) == Some(name) {
                fill(value, uid, &self.authority, token.as_deref());
            }
            true
        })?;
        Ok(None)
    }

    fn forget(&mut self, _: &Key) {}
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::controller::Reconciler;
    use crate::store::Change;

    struct World {
        dir: tempfile::TempDir,
        store: Arc<Store>,
    }

    impl World {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let store = Arc::new(Store::open(&dir.path().join("store")).unwrap());
            objects::prepare(&store).unwrap();
            Self { dir, store }
        }

        fn filler(&self) -> Reconciler<Filler> {
            let tokens = Tokens::of_a_test(self.dir.path(), Arc::clone(&self.store));
            let filler =
                Filler { tokens: Arc::new(tokens), authority: "Q0E=".into(), cursor: WatchCursor::default() };
            Reconciler::new(filler)
        }

        fn put(&self, key: &Key, mut value: Value) {
            meta::create(&mut value, "default", &key.name);
            self.store.write(key, |_, _| Ok::<_, Infallible>(Change::Put(value))).unwrap();
        }

        fn account(&self) {
            self.put(&SERVICE_ACCOUNTS.key("default", "robot"), json!({}));
        }

        fn secret(&self) -> Option<Value> {
            self.store.get(&SECRETS.key("default", "s")).map(|secret| secret.to_value())
        }

        fn token(&self) -> String {
            let token = self.secret().unwrap()["data"]["token"].as_str().unwrap_or_default().to_owned();
            String::from_utf8(STANDARD.decode(token).unwrap()).unwrap()
        }
    }

    fn of(name: &str) -> Value {
        json!({"type": ACCOUNT_TOKEN, "metadata": {"annotations": {ACCOUNT_NAME: name}}})
    }

    #[test]
    fn a_secret_holds_its_accounts_token_and_goes_with_it() {
        let world = World::new();
        world.account();
        let key = SECRETS.key("default", "s");
        world.put(&key, of("robot"));
        let mut filler = world.filler();
        filler.run_until_idle(&world.store);
        let secret = world.secret().unwrap();
        let account = world.store.get(&SERVICE_ACCOUNTS.key("default", "robot")).unwrap();
        assert_eq!(meta::annotation(&secret, ACCOUNT_UID), Some(meta::text(&account.value(), "uid")));
        assert_eq!(
            (&secret["data"]["namespace"], &secret["data"]["ca.crt"]),
            (&json!("ZGVmYXVsdA=="), &json!("Q0E="))
        );

        let tokens = Tokens::of_a_test(world.dir.path(), Arc::clone(&world.store));
        let first = world.token();
        let user = tokens.user_of(&first).unwrap();
        assert_eq!(user.name, "system:serviceaccount:default:robot");
        let revision = world.store.revision();
        world.filler().run_until_idle(&world.store);
        assert_eq!(world.store.revision(), revision, "there is nothing more to do");

        // Who takes the token out of the Secret gets another, and the first is worth nothing.
        let stored = world.store.get(&key).unwrap();
        objects::change(&world.store, &stored, |value| {
            value["data"].as_object_mut().unwrap().remove("token").is_some()
        })
        .unwrap();
        assert_eq!(tokens.user_of(&first), None);
        filler.run_until_idle(&world.store);
        let second = world.token();
        assert!(second != first && tokens.user_of(&second).is_some());
        assert_eq!(tokens.user_of(&first), None);

        objects::remove(&world.store, &account).unwrap();
        assert_eq!(tokens.user_of(&second), None);
        world.account();
        filler.run_until_idle(&world.store);
        assert_eq!(world.secret(), None, "another account of the name is not its own");
    }

    #[test]
    fn only_secrets_that_are_for_tokens_are_touched() {
        let secret = |uid: &str, data: Value| {
            json!({"type": ACCOUNT_TOKEN, "data": data, "metadata": {"namespace": "n",
                "annotations": {ACCOUNT_NAME: "robot", ACCOUNT_UID: uid}}})
        };
        let full = json!({"token": "dA==", "ca.crt": "ca", "namespace": "bg=="});
        let other = json!({"token": "dA==", "ca.crt": "old", "namespace": "bg=="});
        for (secret, account, wanted) in [
            (secret("u", full.clone()), Some("u"), Task::Nothing),
            (secret("u", other), Some("u"), Task::Fill { token: false }),
            (secret("", full.clone()), Some("u"), Task::Fill { token: false }),
            (secret("u", Value::Null), Some("u"), Task::Fill { token: true }),
            (secret("u", json!({"token": ""})), Some("u"), Task::Fill { token: true }),
            (secret("old", full.clone()), Some("u"), Task::Remove),
            (secret("u", full), None, Task::Remove),
        ] {
            assert_eq!(decide(&secret, account, "ca"), wanted, "{secret}");
        }
        assert_eq!(account_of(&of("robot")), Some("robot"));
        assert_eq!(account_of(&of("")), None);
        assert_eq!(account_of(&json!({"type": "Opaque", "metadata": of("robot")["metadata"]})), None);
    }

    #[test]
    fn secrets_of_absent_accounts_are_removed() {
        let world = World::new();
        world.put(&SECRETS.key("default", "s"), of("absent"));
        world.filler().run_until_idle(&world.store);
        assert_eq!(world.secret(), None);
    }
}
