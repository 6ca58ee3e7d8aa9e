//! Users under RBAC.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::api::rbac::v1::RoleBinding;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, PostParams};
use kube::client::Body;
use kube::{Api, Client};
use serde_json::json;
use vireo_apiserver::auth::User;

use crate::test_server::{TestServer, map, maps, refused};

fn controller() -> User {
    User::service_account("kubevirt", "virt-controller")
}

/// Binds `edit` to a user in a namespace.
async fn bind(admin: &Client, namespace: &str, user: &str) {
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "edits"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
    }))
    .unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(admin.clone(), namespace);
    bindings.create(&PostParams::default(), &binding).await.unwrap();
}

async fn who(client: &Client) -> (String, Vec<String>) {
    let review = SelfSubjectReview::default();
    let made = Api::all(client.clone()).create(&PostParams::default(), &review).await.unwrap();
    let user = made.status.unwrap().user_info.unwrap();
    (user.username.unwrap(), user.groups.unwrap())
}

#[tokio::test]
async fn a_service_account_may_do_what_its_roles_allow() {
    let server = TestServer::start();
    let client = server.client(controller());
    let groups = ["system:serviceaccounts", "system:serviceaccounts:kubevirt", "system:authenticated"];
    let name = "system:serviceaccount:kubevirt:virt-controller";
    assert_eq!(who(&client).await, (name.to_owned(), groups.map(str::to_owned).to_vec()));

    let denied = refused(maps(&client).list(&ListParams::default()).await);
    let message = format!(
        "configmaps is forbidden: User \"{name}\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"default\""
    );
    assert_eq!(
        (denied.code, denied.reason.as_str(), denied.message.as_str()),
        (403, "Forbidden", message.as_str())
    );
    assert_eq!(refused(maps(&client).create(&PostParams::default(), &map("a")).await).code, 403);
    bind(&server.admin(), "default", name).await;
    maps(&client).create(&PostParams::default(), &map("a")).await.unwrap();
    assert_eq!(maps(&client).list(&ListParams::default()).await.unwrap().items.len(), 1);
    let elsewhere: Api<ConfigMap> = Api::namespaced(client, "kube-system");
    assert_eq!(refused(elsewhere.list(&ListParams::default()).await).code, 403);
}

#[tokio::test]
async fn headers_do_not_change_the_user() {
    let server = TestServer::start();
    let list = async |client: Client, (name, value): (&str, &str)| {
        let request = axum::http::Request::get("/api/v1/namespaces/default/configmaps").header(name, value);
        client.send(request.body(Body::empty()).unwrap()).await.unwrap().status().as_u16()
    };
    assert_eq!(list(server.client(controller()), ("Authorization", "Bearer token")).await, 403);
    assert_eq!(list(server.client(controller()), ("Impersonate-User", "admin")).await, 403);
    assert_eq!(list(server.admin(), ("Impersonate-User", "other")).await, 403);
    assert_eq!(list(server.admin(), ("Accept", "application/json")).await, 200);
}

#[tokio::test]
async fn clients_of_several_users_do_not_mix() {
    const USERS: usize = 8;
    let server = TestServer::start();
    let admin = server.admin();
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    for index in 0..USERS {
        let metadata = ObjectMeta { name: Some(format!("team-{index}")), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        bind(&admin, &format!("team-{index}"), &format!("user-{index}")).await;
    }
    let clients: Vec<Client> = (0..USERS)
        .map(|index| server.client(User::named(&format!("user-{index}"), &["system:authenticated"])))
        .collect();
    let work = clients.iter().enumerate().flat_map(|(index, client)| {
        (0..USERS).map(move |team| async move {
            assert_eq!(who(client).await.0, format!("user-{index}"));
            let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &format!("team-{team}"));
            let mut made = map(&format!("by-{index}"));
            made.data = Some(BTreeMap::from([("who".to_owned(), index.to_string())]));
            let made = maps.create(&PostParams::default(), &made).await;
            if team == index {
                made.unwrap();
            } else {
                assert_eq!(refused(made).code, 403);
            }
        })
    });
    join_all(work).await;
    let all: Api<ConfigMap> = Api::all(admin);
    assert_eq!(all.list(&ListParams::default()).await.unwrap().items.len(), USERS);
}
