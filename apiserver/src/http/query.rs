//! What stands behind a path.

use std::time::Duration;

use percent_encoding::percent_decode_str;

use super::ApiError;
use crate::resource::Cause;

/// How objects of another moment are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    NotOlderThan,
    Exact,
}

/// What to do with unknown fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Unknown {
    Ignore,
    #[default]
    Warn,
    Refuse,
}

/// The parameters that are looked at; others are ignored, as a Kubernetes API server does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) watch: bool,
    pub(super) bookmarks: bool,
    pub(super) initial_events: bool,
    pub(super) timeout: Option<Duration>,
    pub(super) labels: String,
    pub(super) fields: String,
    /// Absent also when it is 0: anything will do.
    pub(super) revision: Option<u64>,
    pub(super) matching: Option<Match>,
    pub(super) limit: Option<usize>,
    pub(super) next: Option<String>,
    pub(super) dry_run: bool,
    pub(super) unknown: Unknown,
    /// Who writes; absent: what the user agent is called.
    pub(super) manager: Option<String>,
    /// Whether what others own may be changed.
    pub(super) force: Option<bool>,
    pub(super) grace: Option<i64>,
    pub(super) propagation: Option<String>,
    /// `None`, `Metadata` or `Object`: what a table's rows carry.
    pub(super) include: Option<String>,
    /// Whether every health check is listed.
    pub(super) verbose: bool,
    /// Health checks that are left out.
    pub(super) excluded: Vec<String>,
}

fn decode(text: &str) -> Result<String, ApiError> {
    let spaced = text.replace('+', " ");
    let text = percent_decode_str(&spaced).decode_utf8();
    text.map(|text| text.into_owned()).map_err(|_| ApiError::bad_request("the query is not valid UTF-8"))
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, ApiError> {
    text.parse().map_err(|_| {
        ApiError::bad_request(format!("invalid value for {name}: {text:?} must be a number in range"))
    })
}

fn truth(name: &str, text: &str) -> Result<bool, ApiError> {
    match text {
        "true" | "1" | "" => Ok(true),
        "false" | "0" => Ok(false),
        other => Err(ApiError::bad_request(format!(
            "invalid value for {name}: {other:?} is neither true nor false"
        ))),
    }
}

impl Query {
    pub(super) fn parse(text: &str) -> Result<Self, ApiError> {
        let mut query = Self::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            query.take(&decode(name)?, decode(value)?)?;
        }
        if query.matching.is_some() && query.revision.is_none() && !query.initial_events {
            let why = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided";
            let cause = Cause::forbidden("resourceVersionMatch", why);
            return Err(ApiError::invalid_options("ListOptions", cause));
        }
        Ok(query)
    }

    fn take(&mut self, name: &str, value: String) -> Result<(), ApiError> {
        match name {
            "watch" => self.watch = truth(name, &value)?,
            "allowWatchBookmarks" => self.bookmarks = truth(name, &value)?,
            "sendInitialEvents" => self.initial_events = truth(name, &value)?,
            "timeoutSeconds" => {
                let seconds: u64 = number(name, &value)?;
                self.timeout = (seconds > 0).then(|| Duration::from_secs(seconds));
            }
            "labelSelector" => self.labels = value,
            "fieldSelector" => self.fields = value,
            "resourceVersion" if value.is_empty() => {}
            "resourceVersion" => self.revision = Some(number(name, &value)?).filter(|revision| *revision > 0),
            "resourceVersionMatch" => {
                self.matching = match value.as_str() {
                    "" => None,
                    "NotOlderThan" => Some(Match::NotOlderThan),
                    "Exact" => Some(Match::Exact),
                    other => {
                        let why = format!(
                            "Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\""
                        );
                        let cause = Cause::unsupported("resourceVersionMatch", why);
                        return Err(ApiError::invalid_options("ListOptions", cause));
                    }
                }
            }
            "verbose" => self.verbose = true,
            "exclude" => self.excluded.push(value),
            // What is less than one is none.
            "limit" => {
                self.limit = usize::try_from(number::<i64>(name, &value)?).ok().filter(|limit| *limit > 0);
            }
            "continue" => self.next = Some(value).filter(|value| !value.is_empty()),
            "dryRun" => self.dry_run = dry_run(&value)?,
            "fieldValidation" => {
                self.unknown = match value.as_str() {
                    "Ignore" => Unknown::Ignore,
                    "Warn" | "" => Unknown::Warn,
                    "Strict" => Unknown::Refuse,
                    other => {
                        return Err(ApiError::bad_request(format!(
                            "invalid value for fieldValidation: {other:?}: use Ignore, Warn or Strict"
                        )));
                    }
                }
            }
            "fieldManager" => self.manager = Some(value).filter(|value| !value.is_empty()),
            "force" => self.force = Some(truth(name, &value)?),
            "gracePeriodSeconds" => self.grace = Some(number(name, &value)?),
            "propagationPolicy" => self.propagation = Some(value).filter(|value| !value.is_empty()),
            "includeObject" => self.include = Some(value),
            _ => {}
        }
        Ok(())
    }
}

/// The one value that `dryRun` may have.
pub fn dry_run(value: &str) -> Result<bool, ApiError> {
    match value {
        "All" => Ok(true),
        "" => Ok(false),
        other => {
            let cause = Cause::unsupported(
                "dryRun",
                format!("Unsupported value: {other:?}: supported values: \"All\""),
            );
            Err(ApiError::invalid_options("CreateOptions", cause))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_and_malformed_ones_refused() {
        let query =
            Query::parse("labelSelector=a%3Db%2Cc&limit=500&watch=true&resourceVersion=0&x=y&dryRun=All")
                .unwrap();
        assert_eq!(
            (query.labels.as_str(), query.limit, query.watch, query.revision),
            ("a=b,c", Some(500), true, None)
        );
        assert!(query.dry_run);
        assert_eq!(Query::parse("limit=-1").unwrap().limit, None);
        for text in [
            "limit=x",
            "resourceVersion=abc",
            "resourceVersion=-1",
            "resourceVersion=99999999999999999999999",
            "watch=maybe",
            "timeoutSeconds=1e9",
            "dryRun=Some",
            "fieldValidation=Lax",
            "resourceVersionMatch=Exact",
            "resourceVersion=1&resourceVersionMatch=Older",
            "labelSelector=%ff",
        ] {
            assert!(Query::parse(text).is_err(), "{text}");
        }
    }
}
