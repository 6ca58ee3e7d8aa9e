//! The package sources of the test host: the nested host's image is made from the same ones.

use std::fs;
use std::path::Path;

/// Why the test host's package sources cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SourcesError {
    /// Not Debian, or an `os-release` that cannot be read.
    #[error("/etc/os-release has no VERSION_CODENAME: the nested host is made from Debian packages")]
    NoCodename,
    /// No source names the release's own suite.
    #[error("no apt source of this host offers {0} main: add one to /etc/apt/sources.list.d")]
    NoMain(String),
}

/// The test host's Debian sources.
#[derive(Debug)]
pub(crate) struct Sources {
    /// The release, such as `bookworm`.
    pub(crate) codename: String,
    /// One-line-style entries for the release, its updates, security fixes and backports.
    pub(crate) lines: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    options: String,
    uri: String,
    suite: String,
}

impl Sources {
    /// Reads `/etc/apt`.
    pub(crate) fn of_this_machine() -> Result<Self, SourcesError> {
        let os = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let codename = os
            .lines()
            .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
            .map(|value| value.trim_matches('"').to_owned())
            .ok_or(SourcesError::NoCodename)?;
        let mut entries = one_line(&fs::read_to_string("/etc/apt/sources.list").unwrap_or_default());
        let parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
        for part in parts {
            let text = fs::read_to_string(part.path()).unwrap_or_default();
            match part.path().extension().and_then(|name| name.to_str()) {
                Some("list") => entries.extend(one_line(&text)),
                Some("sources") => entries.extend(stanzas(&text)),
                _ => {}
            }
        }
        Self::from_entries(codename, &entries)
    }

    fn from_entries(codename: String, entries: &[Entry]) -> Result<Self, SourcesError> {
        let main = entries
            .iter()
            .find(|entry| entry.suite == codename)
            .ok_or_else(|| SourcesError::NoMain(codename.clone()))?;
        let keyring = Path::new("/usr/share/keyrings/debian-archive-keyring.gpg");
        let signed = |options: &str| match options.contains("signed-by") || !keyring.exists() {
            true => options.to_owned(),
            false => format!("signed-by={} {options}", keyring.display()).trim_end().to_owned(),
        };
        let line = |options: &str, uri: &str, suite: &str| match signed(options).as_str() {
            "" => format!("deb {uri} {suite} main"),
            options => format!("deb [{options}] {uri} {suite} main"),
        };
        let mut lines: Vec<_> = ["", "-updates", "-security", "-backports"]
            .iter()
            .filter_map(|pocket| {
                let suite = format!("{codename}{pocket}");
                entries.iter().find(|entry| entry.suite == suite)
            })
            .map(|entry| line(&entry.options, &entry.uri, &entry.suite))
            .collect();
        let backports = format!("{codename}-backports");
        if !entries.iter().any(|entry| entry.suite == backports) {
            lines.push(line(&main.options, &main.uri, &backports));
        }
        Ok(Self { codename, lines })
    }
}

/// `deb [options] uri suite component...`, one per line.
fn one_line(text: &str) -> Vec<Entry> {
    let entry = |line: &str| {
        let rest = line.split('#').next()?.trim().strip_prefix("deb ")?.trim_start();
        let (options, rest) = match rest.strip_prefix('[') {
            Some(rest) => rest.split_once(']')?,
            None => ("", rest),
        };
        let mut words = rest.split_whitespace();
        let (uri, suite) = (words.next()?, words.next()?);
        words.any(|component| component == "main").then(|| Entry {
            options: options.trim().to_owned(),
            uri: uri.to_owned(),
            suite: suite.to_owned(),
        })
    };
    text.lines().filter_map(entry).collect()
}

/// deb822 stanzas: `Field: value` lines, blank lines between stanzas.
fn stanzas(text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    for stanza in lines.split(|line| line.trim().is_empty()) {
        let field = |name: &str| {
            stanza.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map_or("", str::trim)
        };
        let words = |name| field(name).split_whitespace();
        let off = field("Enabled").eq_ignore_ascii_case("no");
        if off || !words("Types").any(|kind| kind == "deb") || !words("Components").any(|c| c == "main") {
            continue;
        }
        let options = match field("Signed-By") {
            path if path.starts_with('/') => format!("signed-by={path}"),
            _ => String::new(),
        };
        let Some(uri) = words("URIs").next() else { continue };
        entries.extend(words("Suites").map(|suite| Entry {
            options: options.clone(),
            uri: uri.to_owned(),
            suite: suite.to_owned(),
        }));
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    const STANZAS: &str = "Types: deb deb-src\n# a comment\nURIs: http://mirror.test/debian\n\
        Suites: bookworm bookworm-updates\nComponents: main contrib\nSigned-By: /keys/debian.gpg\n\n\
        Types: deb-src\nURIs: http://mirror.test/source\nSuites: bookworm\nComponents: main\n\n\
        Enabled: no\nTypes: deb\nURIs: http://mirror.test/off\nSuites: bookworm\nComponents: main\n";

    #[test]
    fn both_styles_are_read() {
        let entries = stanzas(STANZAS);
        let uris: Vec<_> = entries.iter().map(|entry| (entry.uri.as_str(), entry.suite.as_str())).collect();
        assert_eq!(
            uris,
            [("http://mirror.test/debian", "bookworm"), ("http://mirror.test/debian", "bookworm-updates")]
        );
        assert_eq!(entries[0].options, "signed-by=/keys/debian.gpg");
        assert_eq!(
            one_line(
                "# deb http://x y main\ndeb [arch=amd64] http://m/debian trixie contrib main # why\ndeb http://o p q"
            ),
            [Entry { options: "arch=amd64".into(), uri: "http://m/debian".into(), suite: "trixie".into() }]
        );
    }

    #[test]
    fn backports_come_from_where_the_release_comes_from() {
        let sources = Sources::from_entries("bookworm".into(), &stanzas(STANZAS)).unwrap();
        assert_eq!(
            sources.lines,
            [
                "deb [signed-by=/keys/debian.gpg] http://mirror.test/debian bookworm main",
                "deb [signed-by=/keys/debian.gpg] http://mirror.test/debian bookworm-updates main",
                "deb [signed-by=/keys/debian.gpg] http://mirror.test/debian bookworm-backports main",
            ]
        );
        assert!(Sources::from_entries("trixie".into(), &stanzas(STANZAS)).is_err());
    }
}
