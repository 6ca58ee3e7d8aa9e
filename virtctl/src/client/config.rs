//! Which server is meant and who one is there: a kubeconfig, and kubectl's flags in front of it.

use std::ffi::OsStr;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::proxy::matcher::Matcher;
use kube::Config;
use kube::config::{
    AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, KubeconfigError, NamedAuthInfo, NamedCluster,
    NamedContext,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::ExposeSecret as _;

use crate::cli::Server;

/// Name of the entries made from flags, without a kubeconfig.
const FLAGS: &str = "flags";
/// Name of the entries made from a pod's service account.
const POD: &str = "pod";

/// Why no server can be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("kubeconfig {0} not found")]
    Absent(PathBuf),
    #[error("cannot use the kubeconfig {path}: {message}")]
    Unreadable { path: PathBuf, message: String },
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error("the token has characters that no header may have")]
    TokenCharacters,
    #[error("{what} {name:?} does not exist in the kubeconfig")]
    Missing { what: &'static str, name: String },
    #[error("the kubeconfig names no current context: choose one with --context")]
    NoContext,
    #[error("the flag or file name {0:?} is not UTF-8")]
    NotUtf8(PathBuf),
    #[error("the URL of the proxy is not valid")]
    Proxy(#[source] hyper::http::uri::InvalidUri),
    #[error("the server {0:?} is not a URL such as https://host:6443")]
    Url(String),
    #[error("cannot read the token file {path}")]
    Token { path: String, source: std::io::Error },
    #[error("the service account of this pod cannot be used")]
    InCluster(#[from] kube::config::InClusterError),
}

/// Reads the kubeconfigs of a list such as `KUBECONFIG`; the first value of a field counts. Missing files are left out,
/// as kubectl does it, if there is one.
fn read(files: &OsStr) -> Result<Kubeconfig, ConfigError> {
    let paths: Vec<PathBuf> =
        std::env::split_paths(files).filter(|path| !path.as_os_str().is_empty()).collect();
    let there: Vec<&PathBuf> = paths.iter().filter(|path| path.exists()).collect();
    if let (true, Some(first)) = (there.is_empty(), paths.first()) {
        return Err(ConfigError::Absent(first.clone()));
    }
    let mut all = Kubeconfig::default();
    for path in there {
        let next = Kubeconfig::read_from(path).and_then(|next| all.merge(next));
        all = next.map_err(|error| {
            // The lines after the first quote the file, which has secrets.
            let message = error.to_string().lines().next().unwrap_or_default().to_owned();
            ConfigError::Unreadable { path: path.clone(), message }
        })?;
    }
    Ok(all)
}

/// Merges kubeconfigs and flags.
pub(super) async fn config(files: Option<&OsStr>, flags: &Server) -> Result<Config, ConfigError> {
    resolve(files.map_or_else(|| Ok(Kubeconfig::default()), read)?, flags).await
}

async fn resolve(mut kubeconfig: Kubeconfig, flags: &Server) -> Result<Config, ConfigError> {
    let chosen = choose(&mut kubeconfig, flags)?;
    let cluster = entry(&mut kubeconfig.clusters, |one| (&one.name, &mut one.cluster), &chosen.cluster);
    let cluster = cluster.ok_or_else(|| missing("cluster", &chosen.cluster))?;
    override_cluster(cluster, flags)?;
    let proxy = cluster.proxy_url.take().filter(|url| !url.is_empty());
    if let Some(name) = &chosen.user {
        let user = entry(&mut kubeconfig.auth_infos, |one| (&one.name, &mut one.auth_info), name);
        override_user(user.ok_or_else(|| missing("user", name))?, flags)?;
    }
    let options =
        KubeConfigOptions { context: Some(chosen.context), cluster: Some(chosen.cluster), user: chosen.user };
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.proxy_url = match proxy {
        Some(url) => Some(url.parse().map_err(ConfigError::Proxy)?),
        None => proxy_of_environment(&config.cluster_url)?,
    };
    // Errors are printed at once.
    config.default_retry = false;
    if config.accept_invalid_certs {
        // Then no certificate authorities are needed on this host either.
        config.root_cert = Some(Vec::new());
    }
    Ok(config)
}

/// Merges the service account of this pod and flags.
pub(super) async fn in_pod(flags: &Server) -> Result<Config, ConfigError> {
    of_account(Config::incluster()?, flags).await
}

async fn of_account(pod: Config, flags: &Server) -> Result<Config, ConfigError> {
    let file = pod.root_cert_file.map(|path| text(&path)).transpose()?;
    let server = Some(pod.cluster_url.to_string());
    let cluster = Cluster { server, certificate_authority: file, ..Cluster::default() };
    let namespace = Some(pod.default_namespace);
    let context = Context { cluster: POD.into(), user: Some(POD.into()), namespace, ..Context::default() };
    let kubeconfig = Kubeconfig {
        current_context: Some(POD.into()),
        clusters: vec![NamedCluster { name: POD.into(), cluster: Some(cluster), ..NamedCluster::default() }],
        auth_infos: vec![NamedAuthInfo {
            name: POD.into(),
            auth_info: Some(pod.auth_info),
            ..NamedAuthInfo::default()
        }],
        contexts: vec![NamedContext { name: POD.into(), context: Some(context), ..NamedContext::default() }],
        ..Kubeconfig::default()
    };
    resolve(kubeconfig, flags).await
}

/// The names of what is meant.
struct Chosen {
    context: String,
    cluster: String,
    user: Option<String>,
}

/// Resolves the context, and adds entries for values that only flags give.
fn choose(kubeconfig: &mut Kubeconfig, flags: &Server) -> Result<Chosen, ConfigError> {
    let current = kubeconfig.current_context.clone().filter(|name| !name.is_empty());
    let name = match (flags.context.clone().or(current), &flags.server) {
        (Some(name), _) => name,
        (None, Some(_)) => FLAGS.to_owned(),
        (None, None) => return Err(ConfigError::NoContext),
    };
    let mut context = match kubeconfig.contexts.iter().find(|one| one.name == name) {
        Some(one) => one.context.clone().unwrap_or_default(),
        None if flags.context.is_none() && name == FLAGS => Context::default(),
        None => return Err(missing("context", &name)),
    };
    if let Some(cluster) = flags.cluster.clone() {
        context.cluster = cluster;
    } else if context.cluster.is_empty() && flags.server.is_some() {
        context.cluster = FLAGS.to_owned();
        let cluster = Some(Cluster::default());
        kubeconfig.clusters.push(NamedCluster { name: FLAGS.to_owned(), cluster, ..NamedCluster::default() });
    }
    if let Some(user) = flags.user.clone() {
        context.user = Some(user);
    } else if context.user.as_ref().is_none_or(String::is_empty) {
        context.user = Some(FLAGS.to_owned());
        let auth_info = Some(AuthInfo::default());
        kubeconfig.auth_infos.push(NamedAuthInfo {
            name: FLAGS.to_owned(),
            auth_info,
            ..NamedAuthInfo::default()
        });
    }
    let chosen =
        Chosen { context: name.clone(), cluster: context.cluster.clone(), user: context.user.clone() };
    kubeconfig.contexts.retain(|one| one.name != name);
    kubeconfig.contexts.push(NamedContext { name, context: Some(context), ..NamedContext::default() });
    Ok(chosen)
}

fn missing(what: &'static str, name: &str) -> ConfigError {
    ConfigError::Missing { what, name: name.to_owned() }
}

/// The value of a list's entry, empty by default.
fn entry<'a, N, T: Default>(
    list: &'a mut [N],
    parts: impl Fn(&'a mut N) -> (&'a String, &'a mut Option<T>),
    name: &str,
) -> Option<&'a mut T> {
    let found = list.iter_mut().map(parts).find(|(named, _)| *named == name);
    found.map(|(_, value)| value.get_or_insert_default())
}

fn text(path: &PathBuf) -> Result<String, ConfigError> {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.clone());
    whole.into_os_string().into_string().map_err(|path| ConfigError::NotUtf8(path.into()))
}

fn override_cluster(cluster: &mut Cluster, flags: &Server) -> Result<(), ConfigError> {
    if let Some(server) = &flags.server {
        cluster.server = Some(server.clone());
    }
    if let Some(name) = &flags.tls_server_name {
        cluster.tls_server_name = Some(name.clone());
    }
    if let Some(file) = &flags.certificate_authority {
        cluster.certificate_authority = Some(text(file)?);
        cluster.certificate_authority_data = None;
    }
    if let Some(skip) = flags.insecure_skip_tls_verify {
        cluster.insecure_skip_tls_verify = Some(skip);
    }
    let files = [&mut cluster.certificate_authority, &mut cluster.certificate_authority_data];
    for field in files.into_iter().chain([&mut cluster.tls_server_name]) {
        field.take_if(|text| text.is_empty());
    }
    let url = cluster.server.clone().unwrap_or_default();
    match url.parse::<Uri>() {
        Ok(uri) if matches!(uri.scheme_str(), Some("http" | "https")) => Ok(()),
        _ => Err(ConfigError::Url(url)),
    }
}

fn override_user(user: &mut AuthInfo, flags: &Server) -> Result<(), ConfigError> {
    if let Some(token) = &flags.token {
        user.token = Some(token.as_str().into());
        // The token replaces every other credential that is sent in a header.
        (user.token_file, user.exec, user.auth_provider) = (None, None, None);
        (user.username, user.password) = (None, None);
    }
    if let Some(file) = &flags.client_certificate {
        (user.client_certificate, user.client_certificate_data) = (Some(text(file)?), None);
    }
    if let Some(file) = &flags.client_key {
        (user.client_key, user.client_key_data) = (Some(text(file)?), None);
    }
    if let Some(name) = &flags.impersonate {
        user.impersonate = Some(name.clone());
    }
    if let Some(uid) = &flags.impersonate_uid {
        user.impersonate_uid = Some(uid.clone());
    }
    if !flags.impersonate_groups.is_empty() {
        user.impersonate_groups = Some(flags.impersonate_groups.clone());
    }
    for field in [&mut user.client_certificate, &mut user.client_certificate_data, &mut user.token_file] {
        field.take_if(|text| text.is_empty());
    }
    read_token(user)
}

/// As client-go does it, and kube does not: a token file is preferred to a token, and white space around it is removed.
fn read_token(user: &mut AuthInfo) -> Result<(), ConfigError> {
    user.token.take_if(|token| token.expose_secret().is_empty());
    let Some(path) = user.token_file.clone() else {
        return check_token(user.token.as_ref().map_or("", |token| token.expose_secret()));
    };
    let read = std::fs::read_to_string(&path);
    let text = read.map_err(|source| ConfigError::Token { path, source })?;
    let token = text.trim();
    // kube rereads the file from time to time, but only without a token.
    user.token = (token.len() != text.len()).then(|| token.into());
    check_token(token)
}

/// kube panics where a token cannot be sent.
fn check_token(token: &str) -> Result<(), ConfigError> {
    HeaderValue::from_str(token).map(drop).map_err(|_| ConfigError::TokenCharacters)
}

/// The proxy of `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` for a server; none for one on this host, as in Go.
pub(super) fn proxy_of_environment(server: &Uri) -> Result<Option<Uri>, ConfigError> {
    let host = server.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    if host == "localhost" || address.is_ok_and(|address| address.is_loopback()) {
        return Ok(None);
    }
    let Some(proxy) = Matcher::from_env().intercept(server) else { return Ok(None) };
    // The matcher takes them out of the URL, where kube looks for them.
    let basic = proxy.basic_auth().and_then(|value| value.to_str().ok()?.strip_prefix("Basic "));
    let basic = basic.and_then(|encoded| String::from_utf8(STANDARD.decode(encoded).ok()?).ok());
    let given = proxy.raw_auth().map(|(user, password)| (user.to_owned(), password.to_owned()));
    let given = given.or_else(|| {
        let (user, password) = basic.as_deref()?.split_once(':')?;
        Some((user.to_owned(), password.to_owned()))
    });
    let Some((user, password)) = given else { return Ok(Some(proxy.uri().clone())) };
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let scheme = proxy.uri().scheme_str().unwrap_or("http");
    let authority = proxy.uri().authority().map(ToString::to_string).unwrap_or_default();
    let url = format!("{scheme}://{}:{}@{authority}", encode(&user), encode(&password));
    url.parse().map(Some).map_err(ConfigError::Proxy)
}

#[cfg(test)]
mod tests;
