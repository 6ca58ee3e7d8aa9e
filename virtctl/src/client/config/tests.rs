use clap::Parser as _;

use super::*;
use crate::cli::Cli;

const KUBECONFIG: &str = "
current-context: one
contexts:
- {name: one, context: {cluster: c, user: u, namespace: prod}}
- {name: two, context: {cluster: lax, user: absent}}
- {name: three, context: {cluster: gone}}
- {name: four, context: {cluster: behind}}
clusters:
- {name: c, cluster: {server: 'https://10.0.0.1:6443', certificate-authority: ca.crt}}
- {name: lax, cluster: {server: 'https://10.0.0.2', insecure-skip-tls-verify: true}}
- {name: behind, cluster: {server: 'https://10.0.0.3', proxy-url: 'socks5://10.0.0.9:1080'}}
users:
- {name: u, user: {token: t, as: eve}}
- {name: file, user: {token: old, tokenFile: token}}
- {name: lines, user: {token: old, tokenFile: lines}}
- {name: asks, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/false}}}
";

const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----\nYXV0aG9yaXR5\n-----END CERTIFICATE-----\n";

struct World {
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config"), KUBECONFIG).unwrap();
        std::fs::write(dir.path().join("ca.crt"), AUTHORITY).unwrap();
        Self { dir }
    }

    async fn config(&self, flags: &str) -> Result<Config, String> {
        self.config_of(Some("config"), flags).await
    }

    async fn config_of(&self, file: Option<&str>, flags: &str) -> Result<Config, String> {
        let flags = flags.replace("DIR", &self.dir.path().to_string_lossy());
        let words = ["virtctl"].into_iter().chain(flags.split_whitespace()).chain(["start", "vm"]);
        let flags = Cli::try_parse_from(words).unwrap().server;
        let file = file.map(|file| self.dir.path().join(file).into_os_string());
        config(file.as_deref(), &flags).await.map_err(|error| error.to_string())
    }
}

/// The user of a configuration, secrets included.
fn user(config: &Config) -> serde_json::Value {
    serde_json::to_value(&config.auth_info).unwrap()
}

#[tokio::test]
async fn a_context_leads_to_a_server() {
    let world = World::new();
    let one = world.config("").await.unwrap();
    assert_eq!(one.cluster_url.to_string(), "https://10.0.0.1:6443/");
    assert_eq!((one.default_namespace.as_str(), one.accept_invalid_certs), ("prod", false));
    assert_eq!(one.root_cert, Some(vec![b"authority".to_vec()]), "beside the kubeconfig");
    assert_eq!(user(&one), serde_json::json!({"token": "t", "as": "eve"}));
    let four = world.config("--context four").await.unwrap();
    assert_eq!(four.proxy_url.map(|url| url.to_string()).as_deref(), Some("socks5://10.0.0.9:1080/"));
    let lax = world.config("--cluster lax").await.unwrap();
    assert_eq!((lax.cluster_url.host(), lax.accept_invalid_certs), (Some("10.0.0.2"), true));
    assert_eq!(user(&lax)["token"], "t", "the user stays that of the context");
}

#[tokio::test]
async fn flags_stand_before_the_kubeconfig() {
    let world = World::new();
    let line = "--token other --as adam --as-group g --as-group h --as-uid 7 --tls-server-name name";
    let config = world.config(line).await.unwrap();
    let expected =
        serde_json::json!({"token": "other", "as": "adam", "as-groups": ["g", "h"], "as-uid": "7"});
    assert_eq!((user(&config), config.tls_server_name.as_deref()), (expected, Some("name")));
    let asks = world.config("--user asks --token other").await.unwrap();
    assert!(asks.auth_info.exec.is_none(), "known credentials are not asked for");
    assert!(world.config("--user asks").await.unwrap().auth_info.exec.is_some());
    let lax = world.config("--insecure-skip-tls-verify").await.unwrap();
    assert_eq!((lax.accept_invalid_certs, lax.root_cert), (true, Some(Vec::new())));
    let strict = world.config("--cluster lax --insecure-skip-tls-verify=false").await.unwrap();
    assert!(!strict.accept_invalid_certs);
    let line = "--cluster lax --insecure-skip-tls-verify=false --certificate-authority DIR/ca.crt";
    let known = world.config(line).await.unwrap();
    assert_eq!(known.root_cert, Some(vec![b"authority".to_vec()]));
    let line = "--client-certificate DIR/ca.crt --client-key DIR/key";
    let with_key = world.config(line).await.unwrap();
    assert!(with_key.auth_info.client_key.unwrap().ends_with("/key"));
}

#[tokio::test]
async fn token_files_are_preferred_and_trimmed() {
    let world = World::new();
    std::fs::write(world.dir.path().join("token"), "new").unwrap();
    std::fs::write(world.dir.path().join("lines"), "new\n").unwrap();
    let file = world.config("--user file").await.unwrap().auth_info;
    assert!(file.token.is_none() && file.token_file.is_some(), "kube reads it again from time to time");
    assert_eq!(user(&world.config("--user lines").await.unwrap())["token"], "new");
    std::fs::write(world.dir.path().join("lines"), "a\nb").unwrap();
    assert!(world.config("--user lines").await.unwrap_err().contains("no header may have"));
    assert_eq!(user(&world.config("--user lines --token mine").await.unwrap())["token"], "mine");
}

#[tokio::test]
async fn flags_stand_before_the_account_of_a_pod() {
    let world = World::new();
    std::fs::write(world.dir.path().join("token"), "new").unwrap();
    let mut pod = Config::new("https://10.0.0.1".parse().unwrap());
    pod.root_cert_file = Some(world.dir.path().join("ca.crt"));
    pod.auth_info.token_file = Some(world.dir.path().join("token").to_str().unwrap().to_owned());
    pod.default_namespace = "prod".to_owned();
    let flags = Server { impersonate: Some("eve".to_owned()), ..Server::default() };
    let config = of_account(pod, &flags).await.unwrap();
    assert_eq!(user(&config)["as"], "eve");
    assert!(config.auth_info.token_file.is_some_and(|path| path.ends_with("/token")));
    assert_eq!((config.cluster_url.host(), config.default_namespace.as_str()), (Some("10.0.0.1"), "prod"));
    assert_eq!(config.root_cert, Some(vec![b"authority".to_vec()]));
}

#[tokio::test]
async fn flags_alone_are_enough() {
    let world = World::new();
    for file in [None, Some("empty")] {
        std::fs::write(world.dir.path().join("empty"), "current-context: ''\n").unwrap();
        let config = world.config_of(file, "--server http://127.0.0.1:8080 --token t").await.unwrap();
        assert_eq!(config.cluster_url.to_string(), "http://127.0.0.1:8080/");
        assert_eq!((config.default_namespace.as_str(), &user(&config)["token"]), ("default", &"t".into()));
    }
}

#[tokio::test]
async fn dangling_references_are_named() {
    let world = World::new();
    for (flags, expected) in [
        ("--context five", "context \"five\" does not exist"),
        ("--context three", "cluster \"gone\" does not exist"),
        ("--context two", "user \"absent\" does not exist"),
        ("--user absent", "user \"absent\" does not exist"),
        ("--certificate-authority DIR/none", "none"),
        ("--server 10.0.0.1:6443", "is not a URL such as https://host:6443"),
        ("--user file", "cannot read the token file"),
    ] {
        let error = world.config(flags).await.unwrap_err();
        assert!(error.contains(expected), "{flags}: {error}");
    }
    let error = world.config_of(Some("none"), "").await.unwrap_err();
    assert!(error.contains("not found"), "{error}");
    std::fs::write(world.dir.path().join("odd"), "users:\n- {name: u, user: {token: [secret]}}\n").unwrap();
    let error = world.config_of(Some("odd"), "").await.unwrap_err();
    assert!(error.contains("cannot use the kubeconfig") && error.contains("odd"), "{error}");
    assert!(!error.contains("secret"), "{error}");
    let error = world.config_of(None, "").await.unwrap_err();
    assert!(error.contains("--context"), "{error}");
}

#[tokio::test]
async fn files_of_a_list_add_to_each_other() {
    let world = World::new();
    let more = "contexts:\n- {name: one, context: {cluster: other}}\n- {name: five, context: {cluster: c, user: u}}\n";
    std::fs::write(world.dir.path().join("more"), more).unwrap();
    let paths = ["gone", "config", "more"].map(|name| world.dir.path().join(name));
    let list = std::env::join_paths(paths).unwrap();
    for (context, namespace) in [("one", "prod"), ("five", "default")] {
        let flags = Server { context: Some(context.to_owned()), ..Server::default() };
        let config = config(Some(&list), &flags).await.unwrap();
        assert_eq!(
            (config.default_namespace.as_str(), config.cluster_url.host()),
            (namespace, Some("10.0.0.1"))
        );
    }
}
