//! Tokens of accounts.

use super::*;

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

impl World {
    async fn account(&self, name: &str) {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
        assert_eq!(self.ask("POST", ACCOUNTS, account).await.0, 201);
    }

    async fn token(&self, name: &str, spec: Value) -> (u16, Value) {
        self.ask("POST", &format!("{ACCOUNTS}/{name}/token"), json!({ "spec": spec })).await
    }

    async fn reviewed(&self, spec: Value) -> Value {
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        self.ask("POST", path, json!({ "spec": spec })).await.1["status"].clone()
    }
}

#[tokio::test]
async fn a_token_lets_its_account_in_until_it_is_gone() {
    let world = World::new();
    world.account("robot").await;
    let (code, made) = world.token("robot", json!({"expirationSeconds": 600})).await;
    assert_eq!((code, &made["kind"]), (201, &json!("TokenRequest")), "{made}");
    assert!(made["status"]["expirationTimestamp"].is_string());
    let token = made["status"]["token"].as_str().unwrap();
    let user = world.server.tokens.user_of(token).unwrap();
    assert_eq!(user.name, "system:serviceaccount:default:robot");
    let status = world.reviewed(json!({ "token": token })).await;
    assert_eq!((&status["authenticated"], &status["user"]["uid"]), (&json!(true), &json!(user.uid)));
    assert_eq!(
        status["user"]["groups"],
        json!(["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"])
    );
    world.ask("DELETE", &format!("{ACCOUNTS}/robot"), Value::Null).await;
    assert_eq!(world.server.tokens.user_of(token), None);
    world.account("robot").await;
    assert_eq!(world.server.tokens.user_of(token), None, "it is another account");
    assert!(world.reviewed(json!({ "token": token })).await.get("authenticated").is_none());
}

#[tokio::test]
async fn a_token_for_others_is_none_for_this_server() {
    let world = World::new();
    world.account("robot").await;
    let (_, made) = world.token("robot", json!({"audiences": ["vault", "other"]})).await;
    let token = made["status"]["token"].as_str().unwrap();
    assert_eq!(world.server.tokens.user_of(token), None);
    assert!(world.reviewed(json!({ "token": token })).await.get("authenticated").is_none());
    let status = world.reviewed(json!({"token": token, "audiences": ["vault", "third"]})).await;
    assert_eq!((&status["authenticated"], &status["audiences"]), (&json!(true), &json!(["vault"])));
}

#[tokio::test]
async fn a_bound_token_goes_with_its_secret() {
    let world = World::new();
    world.account("robot").await;
    let bound = |name: &str, uid: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": name, "uid": uid}});
    assert_eq!(world.token("robot", bound("s", "")).await.0, 404);
    let secrets = "/api/v1/namespaces/default/secrets";
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    assert_eq!(world.ask("POST", secrets, secret).await.0, 201);
    assert_eq!(world.token("robot", bound("s", "other")).await.0, 409);
    let (_, made) = world.token("robot", bound("s", "")).await;
    let token = made["status"]["token"].as_str().unwrap();
    assert!(world.server.tokens.user_of(token).is_some());
    world.ask("DELETE", &format!("{secrets}/s"), Value::Null).await;
    assert_eq!(world.server.tokens.user_of(token), None);
}

#[tokio::test]
async fn what_cannot_be_had_is_refused() {
    let world = World::new();
    world.account("robot").await;
    assert_eq!(world.token("absent", Value::Null).await.0, 404);
    let (code, status) = world.token("robot", json!({"expirationSeconds": 60})).await;
    let message = "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 60: may not specify a duration less than 10 minutes";
    assert_eq!((code, &status["message"]), (422, &json!(message)));
    let pod = json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p"}});
    assert_eq!(world.token("robot", pod).await.0, 422);
    let path = format!("{ACCOUNTS}/robot/token");
    assert_eq!(world.ask("GET", &path, Value::Null).await.0, 405);
    assert_eq!(world.ask("POST", &path, json!({"kind": "Secret"})).await.0, 400);
    let (_, found) = world.ask("GET", "/api/v1", Value::Null).await;
    assert!(found.to_string().contains("serviceaccounts/token"));
}
