//! kube-rs against the server, as controllers use it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::RoleBinding;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::finalizer::{Event, finalizer};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Error, ResourceExt as _};
use kube_lease_manager::{LeaseCreateMode, LeaseManager, LeaseManagerBuilder};
use serde_json::json;

use crate::place::in_a_place;
use crate::server::Server;

const FINALIZER: &str = "example.com/cleanup";
const SOON: Duration = Duration::from_secs(60);

fn map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([("word".to_owned(), name.to_owned())])),
        ..ConfigMap::default()
    }
}

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::default_namespaced(client.clone())
}

/// Follows the ConfigMaps into a store; every change is notified.
fn reflect(client: &Client) -> (Store<ConfigMap>, tokio::sync::watch::Receiver<u64>) {
    let (store, writer) = reflector::store();
    let (reported, changes) = tokio::sync::watch::channel(0);
    let events = watcher(maps(client), watcher::Config::default()).default_backoff();
    let mut events = Box::pin(reflector::reflector(writer, events));
    tokio::spawn(async move {
        while events.next().await.is_some() {
            reported.send_modify(|count| *count += 1);
        }
    });
    (store, changes)
}

/// Waits until the store has what the server has, by name and version.
async fn settles(
    store: &Store<ConfigMap>,
    changes: &mut tokio::sync::watch::Receiver<u64>,
    wanted: &BTreeMap<String, Option<String>>,
) {
    let same = async {
        while seen(store) != *wanted {
            changes.changed().await.expect("the reflector goes on");
        }
    };
    let waited = tokio::time::timeout(SOON, same).await;
    assert!(waited.is_ok(), "the store has {:?}, the server {wanted:?}", seen(store));
}

fn seen(store: &Store<ConfigMap>) -> BTreeMap<String, Option<String>> {
    store.state().iter().map(|map| (map.name_any(), map.resource_version())).collect()
}

async fn there(client: &Client) -> BTreeMap<String, Option<String>> {
    let list = maps(client).list(&kube::api::ListParams::default()).await.unwrap();
    list.into_iter().map(|map| (map.name_any(), map.resource_version())).collect()
}

/// Makes twenty, changes one and removes another.
async fn write(client: &Client) {
    for number in 0..20 {
        maps(client).create(&PostParams::default(), &map(&format!("map-{number}"))).await.unwrap();
    }
    let patch = Patch::Merge(json!({ "data": { "word": "changed" } }));
    maps(client).patch("map-3", &PatchParams::default(), &patch).await.unwrap();
    maps(client).delete("map-4", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn any_server_is_followed_by_a_reflector() {
    in_a_place(async |client| {
        maps(client).create(&PostParams::default(), &map("before")).await.unwrap();
        let (store, mut changes) = reflect(client);
        write(client).await;
        settles(&store, &mut changes, &there(client).await).await;
        assert!(store.state().iter().any(|map| map.name_any() == "map-3"));
    })
    .await;
}

#[tokio::test]
async fn a_reflector_follows_the_server_over_its_death() {
    let mut server = Server::start();
    let client = server.client().await;
    maps(&client).create(&PostParams::default(), &map("before")).await.unwrap();
    let (store, mut changes) = reflect(&client);
    write(&client).await;
    let wanted = there(&client).await;
    assert_eq!(wanted.len(), 20, "{wanted:?}");
    settles(&store, &mut changes, &wanted).await;

    server.kill();
    server.again();
    maps(&client).delete("map-5", &DeleteParams::default()).await.unwrap();
    maps(&client).create(&PostParams::default(), &map("after")).await.unwrap();
    settles(&store, &mut changes, &there(&client).await).await;
}

/// What a controller's finalizer was asked to do with an object.
async fn reconcile(maps: &Api<ConfigMap>, name: &str) -> &'static str {
    let object = Arc::new(maps.get(name).await.unwrap());
    let asked = std::sync::Mutex::new("nothing");
    let answer = |event| {
        *asked.lock().unwrap() = match event {
            Event::Apply(_) => "apply",
            Event::Cleanup(_) => "clean up",
        };
        async { Ok::<_, Infallible>(Action::await_change()) }
    };
    finalizer(maps, FINALIZER, object, answer).await.unwrap();
    *asked.lock().unwrap()
}

#[tokio::test]
async fn any_server_keeps_an_object_until_its_finalizer_has_run() {
    in_a_place(async |client| {
        let maps = maps(client);
        maps.create(&PostParams::default(), &map("held")).await.unwrap();
        // The first call adds the finalizer, the next find it.
        assert_eq!(reconcile(&maps, "held").await, "nothing");
        assert_eq!(reconcile(&maps, "held").await, "apply");
        assert!(maps.delete("held", &DeleteParams::default()).await.unwrap().is_left());
        assert!(maps.get("held").await.unwrap().metadata.deletion_timestamp.is_some());
        assert_eq!(reconcile(&maps, "held").await, "clean up");
        assert!(maps.get_opt("held").await.unwrap().is_none());
    })
    .await;
}

/// A candidate for leadership, by the crate that controllers use for it.
async fn candidate(client: &Client, identity: &str) -> LeaseManager {
    let builder = LeaseManagerBuilder::new(client.clone(), "leader")
        .with_namespace(client.default_namespace())
        .with_identity(identity)
        .with_create_mode(LeaseCreateMode::AutoCreate)
        .with_duration(3)
        .with_grace(1);
    builder.build().await.unwrap()
}

#[tokio::test]
async fn any_server_gives_a_lease_to_one_however_many_ask() {
    in_a_place(async |client| {
        let leases: Api<Lease> = Api::default_namespaced(client.clone());
        let mut candidates = Vec::new();
        for identity in ["ada", "bob", "eve"] {
            candidates.push((identity, candidate(client, identity).await.watch().await));
        }
        let mut terms = None;
        while !candidates.is_empty() {
            let changes =
                candidates.iter_mut().map(|(_, (leads, _))| Box::pin(leads.wait_for(|leads| *leads)));
            let waited = tokio::time::timeout(SOON, futures_util::future::select_all(changes)).await;
            let (elected, _, _) = waited.expect("a candidate leads");
            drop(elected.unwrap());
            let leaders: Vec<_> =
                candidates.iter().filter(|(_, (leads, _))| *leads.borrow()).map(|(name, _)| *name).collect();
            let spec = leases.get("leader").await.unwrap().spec.unwrap();
            assert_eq!(
                Some(&leaders[..]),
                spec.holder_identity.as_deref().as_ref().map(std::slice::from_ref)
            );
            assert!(spec.lease_transitions > terms, "{spec:?}");
            terms = spec.lease_transitions;
            // Who leads leaves; the next may lead.
            let left = candidates.iter().position(|(_, (leads, _))| *leads.borrow()).unwrap();
            let (_, (leads, task)) = candidates.remove(left);
            drop(leads);
            task.await.unwrap().unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_certificate_authenticates_its_user() {
    let server = Server::start();
    let ada = server.client_with_certificate("ada", "dev").await;
    let me = SelfSubjectReview::default();
    let reported = Api::all(ada.clone()).create(&PostParams::default(), &me).await.unwrap();
    let user = reported.status.and_then(|status| status.user_info).expect("who it is");
    assert_eq!(user.username.as_deref(), Some("ada"));
    assert_eq!(user.groups, Some(vec!["dev".to_owned(), "system:authenticated".to_owned()]));
    let refused = maps(&ada).list(&ListParams::default()).await.unwrap_err();
    let Error::Api(status) = &refused else { panic!("the server answers, and not: {refused}") };
    let message = "configmaps is forbidden: User \"ada\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"default\"";
    assert_eq!((status.code, status.message.as_str()), (403, message));
    let binding: RoleBinding = serde_json::from_value(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "dev"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "dev"}]
    }))
    .unwrap();
    let bindings = Api::default_namespaced(server.client().await);
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    maps(&ada).create(&PostParams::default(), &map("mine")).await.unwrap();
    assert_eq!(maps(&ada).list(&ListParams::default()).await.unwrap().items.len(), 1);
}
