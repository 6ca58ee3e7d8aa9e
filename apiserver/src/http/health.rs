//! `/livez`, `/readyz` and `/healthz`: whether the server lives and is ready, check by check, as a Kubernetes API server
//! reports it.

use std::path::Path;
use std::sync::Arc;

use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::blocking::run_blocking;
use super::query::Query;
use super::{ApiError, Server};
use crate::error::chain;

/// Where less is free, the state directory counts as full: a write of the largest object may not fit.
const LEAST_FREE: u64 = 4 << 20;

/// Which of the endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// Deprecated in Kubernetes; as `/livez`.
    Healthz,
    Livez,
    Readyz,
}

impl Endpoint {
    /// The endpoint of a name.
    pub(super) fn named(name: &str) -> Option<Self> {
        [Self::Healthz, Self::Livez, Self::Readyz].into_iter().find(|endpoint| endpoint.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }

    /// What it checks. Of a server that a restart does not cure, only the readiness suffers.
    fn checks(self) -> &'static [Check] {
        match self {
            Self::Healthz | Self::Livez => &[Check::Ping],
            Self::Readyz => &[Check::Ping, Check::StateDirectory, Check::Store, Check::Objects],
        }
    }
}

/// Something that is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    /// Requests are answered.
    Ping,
    /// There is free space in the state directory.
    StateDirectory,
    /// Objects can be written.
    Store,
    /// All objects could be read. Fails never, as the others are served.
    Objects,
}

impl Check {
    fn name(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::StateDirectory => "state-directory",
            Self::Store => "store",
            Self::Objects => "objects",
        }
    }

    /// Checks it: a remark, which may be empty, or why it fails. May block.
    fn run(self, server: &Server) -> Result<String, String> {
        match self {
            Self::Ping => Ok(String::new()),
            Self::StateDirectory => check_free_space(&server.state_dir).map(|()| String::new()),
            Self::Store => server.store.check().map(|()| String::new()).map_err(|error| chain(&error)),
            Self::Objects => Ok(match server.store.unreadable().count() {
                0 => String::new(),
                count => {
                    format!("{count} could not be read and are not served, see the log and api/unreadable")
                }
            }),
        }
    }
}

/// Whether there is free space below a directory.
fn check_free_space(directory: &Path) -> Result<(), String> {
    let stat = rustix::fs::statvfs(directory).map_err(|error| format!("cannot be looked at: {error}"))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free < LEAST_FREE {
        return Err(format!("no space left: {free} bytes are free, {LEAST_FREE} are needed"));
    }
    if stat.f_files > 0 && stat.f_favail == 0 {
        return Err("no space left: no inodes are free".to_owned());
    }
    Ok(())
}

/// Answers such a request. `only` names one check.
pub(super) async fn serve(
    server: &Arc<Server>,
    (endpoint, only): (Endpoint, Option<String>),
    query: Query,
    method: &Method,
) -> Result<Response, ApiError> {
    if method != Method::GET && method != Method::HEAD {
        return Err(ApiError::method_not_allowed());
    }
    let named = |check: &&Check| only.as_deref().is_none_or(|only| only == check.name());
    let checks: Vec<Check> = endpoint.checks().iter().filter(named).copied().collect();
    if checks.is_empty() {
        return Err(ApiError::path_not_found());
    }
    let (server, excluded) = (Arc::clone(server), query.excluded);
    let results = run_blocking(move || {
        let counts = |check: Check| !excluded.iter().any(|name| name == check.name());
        let result = |check: Check| (check, counts(check).then(|| check.run(&server)));
        Ok(checks.into_iter().map(result).collect::<Vec<_>>())
    });
    Ok(respond(endpoint, only.is_some(), query.verbose, &results.await?))
}

fn respond(
    endpoint: Endpoint,
    one: bool,
    verbose: bool,
    results: &[(Check, Option<Result<String, String>>)],
) -> Response {
    let fails = results.iter().any(|(_, result)| matches!(result, Some(Err(_))));
    let text = if !verbose && !fails {
        "ok".to_owned()
    } else if let (true, [(_, Some(Err(why)))]) = (one, results) {
        format!("internal server error: {why}\n")
    } else {
        report(endpoint, fails, results)
    };
    let code = if fails { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK };
    let headers = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-cache, private"),
    ];
    (code, headers, text).into_response()
}

/// A line for each check.
fn report(endpoint: Endpoint, fails: bool, results: &[(Check, Option<Result<String, String>>)]) -> String {
    let line = |(check, result): &(Check, Option<Result<String, String>>)| match (check.name(), result) {
        (name, None) => format!("[+]{name} excluded: ok\n"),
        (name, Some(Ok(remark))) if remark.is_empty() => format!("[+]{name} ok\n"),
        (name, Some(Ok(remark))) => format!("[+]{name} ok: {remark}\n"),
        (name, Some(Err(why))) => format!("[-]{name} failed: {why}\n"),
    };
    let lines: String = results.iter().map(line).collect();
    let verdict = if fails { "failed" } else { "passed" };
    format!("{lines}{} check {verdict}\n", endpoint.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(
        endpoint: Endpoint,
        verbose: bool,
        results: &[(Check, Option<Result<String, String>>)],
    ) -> (u16, String) {
        let response = respond(endpoint, results.len() == 1, verbose, results);
        let code = response.status().as_u16();
        let body = futures_util::FutureExt::now_or_never(axum::body::to_bytes(response.into_body(), 4096));
        (code, String::from_utf8(body.unwrap().unwrap().to_vec()).unwrap())
    }

    #[test]
    fn checks_are_reported_as_kubernetes_does() {
        let fine = || Some(Ok(String::new()));
        let all = [(Check::Ping, fine()), (Check::StateDirectory, Some(Err("no space left".to_owned())))];
        let listed = "[+]ping ok\n[-]state-directory failed: no space left\nreadyz check failed\n";
        for verbose in [true, false] {
            assert_eq!(render(Endpoint::Readyz, verbose, &all), (500, listed.to_owned()));
        }
        let excluded =
            [(Check::Ping, fine()), (Check::Store, None), (Check::Objects, Some(Ok("1 lost".to_owned())))];
        let listed = "[+]ping ok\n[+]store excluded: ok\n[+]objects ok: 1 lost\nlivez check passed\n";
        assert_eq!(render(Endpoint::Livez, true, &excluded), (200, listed.to_owned()));
        assert_eq!(render(Endpoint::Livez, false, &excluded), (200, "ok".to_owned()));
        let one = [(Check::Store, Some(Err("full".to_owned())))];
        assert_eq!(render(Endpoint::Readyz, false, &one), (500, "internal server error: full\n".to_owned()));
    }

    #[test]
    fn a_directory_that_cannot_be_measured_fails_the_check() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(check_free_space(dir.path()), Ok(()));
        assert!(check_free_space(&dir.path().join("none")).is_err());
    }
}
