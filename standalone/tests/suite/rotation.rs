//! Certificates and tokens that are replaced while a server runs.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Error};

use crate::server::Server;

/// How long a change may take to count.
const SOON: Duration = Duration::from_secs(60);
/// Of a new authority: long enough for what is done meanwhile.
const OVERLAP: &str = "10";

fn file(server: &Server, name: &str) -> PathBuf {
    server.state().join("api").join(name)
}

fn read(server: &Server, name: &str) -> String {
    std::fs::read_to_string(file(server, name)).unwrap()
}

fn vireo(server: &Server, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vireo"));
    let done = command.args(arguments).arg("--state-dir").arg(server.state()).output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8(said).unwrap())
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(tokio::time::timeout(SOON, waiting).await.is_ok(), "{what}");
}

async fn client_of(kubeconfig: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

async fn list(client: &Client) -> Result<(), Error> {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    maps.list(&ListParams::default()).await.map(drop)
}

fn is_unauthorized(result: &Result<(), Error>) -> bool {
    matches!(result, Err(Error::Api(status)) if status.code == 401)
}

#[tokio::test]
async fn a_new_token_counts_at_once_and_the_former_one_no_longer() {
    let server = Server::start();
    let token = || serde_json::from_str::<String>(&read(&server, "token.json")).unwrap();
    let first = token();
    let old = server.client_with_token(&first).await;
    list(&old).await.unwrap();
    let (done, said) = vireo(&server, &["token", "rotate"]);
    assert!(done && said.contains("token.json") && !said.contains(&token()), "{said}");
    assert_ne!(token(), first);
    until("the former token is refused", async || is_unauthorized(&list(&old).await)).await;
    list(&server.client_with_token(&token()).await).await.unwrap();
}

/// Asks for a token of the ServiceAccount `robot`.
async fn account_token(server: &Server) -> String {
    let request = TokenRequest { spec: TokenRequestSpec::default(), ..TokenRequest::default() };
    let accounts: Api<ServiceAccount> = Api::default_namespaced(server.client().await);
    let made = accounts.create_token_request("robot", &PostParams::default(), &request).await.unwrap();
    made.status.unwrap().token
}

#[tokio::test]
async fn tokens_of_a_former_key_are_accepted_until_its_end() {
    let server = Server::start();
    let robot = ServiceAccount {
        metadata: ObjectMeta { name: Some("robot".to_owned()), ..ObjectMeta::default() },
        ..ServiceAccount::default()
    };
    let accounts: Api<ServiceAccount> = Api::default_namespaced(server.client().await);
    accounts.create(&PostParams::default(), &robot).await.unwrap();
    // It may list nothing, but is known.
    let is_known =
        |result: Result<(), Error>| matches!(&result, Err(Error::Api(status)) if status.code == 403);
    let first = account_token(&server).await;
    let old = server.client_with_token(&first).await;
    assert!(is_known(list(&old).await));
    let (done, said) = vireo(&server, &["token", "rotate-key"]);
    assert!(done && said.contains("until they end"), "{said}");
    let signed_by = |token: &str| token.split('.').next().map(str::to_owned);
    until("another key signs", async || signed_by(&account_token(&server).await) != signed_by(&first)).await;
    assert!(is_known(list(&old).await), "the former key counts");
    let second = server.client_with_token(&account_token(&server).await).await;
    assert!(is_known(list(&second).await));

    let (done, said) = vireo(&server, &["token", "rotate-key", "--overlap", "0"]);
    assert!(done, "{said}");
    until("former keys are refused", async || {
        is_unauthorized(&list(&old).await) && is_unauthorized(&list(&second).await)
    })
    .await;
    assert!(is_known(list(&server.client_with_token(&account_token(&server).await).await).await));
}

#[tokio::test]
async fn new_certificates_are_served_without_a_restart() {
    let server = Server::start();
    let (first, served) = (read(&server, "kubeconfig"), read(&server, "server.pem"));
    let (done, said) = vireo(&server, &["certificate", "rotate"]);
    assert!(done, "{said}");
    until("there is another kubeconfig", async || read(&server, "kubeconfig") != first).await;
    assert_ne!(read(&server, "server.pem"), served);
    for kubeconfig in [first, read(&server, "kubeconfig")] {
        list(&client_of(&kubeconfig).await).await.unwrap();
    }
    let (done, said) = vireo(&server, &["certificate", "check"]);
    assert!(done && said.lines().filter(|line| line.contains("ends")).count() == 3, "{said}");
}

#[tokio::test]
async fn a_new_authority_overlaps_with_the_former_one() {
    let server = Server::start();
    let trusted = || read(&server, "ca.crt");
    let count = || trusted().matches("BEGIN CERTIFICATE").count();
    let (first, original) = (trusted(), read(&server, "kubeconfig"));
    // One who watches all the while.
    let watching = client_of(&original).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(watching.clone());
    let mut events = Box::pin(maps.watch(&WatchParams::default(), "0").await.unwrap());

    let (done, said) = vireo(&server, &["certificate", "rotate-ca", "--overlap", OVERLAP]);
    assert!(done, "{said}");
    let (again, said) = vireo(&server, &["certificate", "rotate-ca"]);
    assert!(!again && said.contains("is being replaced"), "{said}");
    until("clients learn of the next authority", async || read(&server, "kubeconfig") != original).await;
    let announced = read(&server, "kubeconfig");
    for kubeconfig in [&original, &announced] {
        list(&client_of(kubeconfig).await).await.unwrap();
    }

    until("the next authority issues", async || !trusted().starts_with(&first)).await;
    until("there is a kubeconfig of it", async || read(&server, "kubeconfig") != announced).await;
    let issued = read(&server, "kubeconfig");
    for kubeconfig in [&announced, &issued] {
        list(&client_of(kubeconfig).await).await.unwrap();
    }
    assert_eq!(count(), 2, "the former one is still trusted");

    until("the former authority is forgotten", async || count() == 1).await;
    until("its certificates are refused", async || list(&client_of(&announced).await).await.is_err()).await;
    let client = client_of(&issued).await;
    let metadata = ObjectMeta { name: Some("after".to_owned()), ..ObjectMeta::default() };
    let map = ConfigMap { metadata, ..ConfigMap::default() };
    Api::<ConfigMap>::default_namespaced(client).create(&PostParams::default(), &map).await.unwrap();
    // Connections outlive the certificates with which they began.
    let event = tokio::time::timeout(SOON, async {
        loop {
            match events.next().await.expect("the watch goes on").unwrap() {
                WatchEvent::Added(map) if map.metadata.name.as_deref() == Some("after") => return,
                _ => {}
            }
        }
    });
    event.await.expect("an event in time");
}
