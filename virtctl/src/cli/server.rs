//! The flags that every command has: `kubectl`'s global flags, which name a server and a user, and `--state-dir`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use jiff::SignedDuration;

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Server {
    /// Kubeconfig of the server [default: $KUBECONFIG, else ~/.kube/config; without one, the virt-handler of
    /// this host]
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "state_dir")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "state_dir")]
    pub(crate) context: Option<String>,
    /// Cluster of the kubeconfig [default: that of the context]
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "state_dir")]
    pub(crate) cluster: Option<String>,
    /// User of the kubeconfig [default: that of the context]
    // `create vm` has a flag of this name for the guest's user, as upstream's; it sends no request.
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "state_dir")]
    pub(crate) user: Option<String>,
    /// Namespace [default: that of the context, else default]
    #[arg(short, long, global = true, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// URL of the server
    #[arg(short, long, global = true, value_name = "URL", conflicts_with = "state_dir")]
    pub(crate) server: Option<String>,
    /// Bearer token for the server
    #[arg(long, global = true, conflicts_with = "state_dir")]
    pub(crate) token: Option<String>,
    /// User to impersonate
    #[arg(long = "as", global = true, value_name = "USER", conflicts_with = "state_dir")]
    pub(crate) impersonate: Option<String>,
    /// Group to impersonate; may be repeated
    #[arg(long = "as-group", global = true, value_name = "GROUP", conflicts_with = "state_dir")]
    pub(crate) impersonate_groups: Vec<String>,
    /// UID to impersonate
    #[arg(long = "as-uid", global = true, value_name = "UID", conflicts_with = "state_dir")]
    pub(crate) impersonate_uid: Option<String>,
    /// File with the certificates of the authorities that vouch for the server
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "state_dir")]
    pub(crate) certificate_authority: Option<PathBuf>,
    /// File with a client certificate
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "state_dir")]
    pub(crate) client_certificate: Option<PathBuf>,
    /// File with the key of the client certificate
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "state_dir")]
    pub(crate) client_key: Option<PathBuf>,
    /// Do not check the server's certificate
    #[arg(long, global = true, value_name = "BOOL", conflicts_with = "state_dir",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) insecure_skip_tls_verify: Option<bool>,
    /// Name that the server's certificate must have [default: the host of its URL]
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "state_dir")]
    pub(crate) tls_server_name: Option<String>,
    /// How long a request may take, as 30s or 2m; 0 is for ever
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration)]
    pub(crate) request_timeout: Option<Timeout>,
    /// State directory of the virt-handler [default: $VIREO_STATE_DIR, else /var/lib/vireo]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// How long a request may take; absent: for ever.
pub(crate) type Timeout = Option<Duration>;

/// Reads what kubectl reads: a number of seconds, or numbers with units.
fn duration(text: &str) -> Result<Timeout, String> {
    let seconds = text.parse::<u64>().map(Duration::from_secs).ok();
    let read = || text.parse::<SignedDuration>().ok().and_then(|length| Duration::try_from(length).ok());
    let length = seconds.or_else(read);
    let length = length.ok_or("must be a number of seconds, or a duration such as 30s, 2m or 1h30m")?;
    Ok((!length.is_zero()).then_some(length))
}

impl Server {
    /// Whether a server is named, instead of the virt-handler of this host.
    pub(crate) fn names_a_server(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some() || self.cluster.is_some() || self.server.is_some()
    }

    /// The first flag that names a user or how to trust a server, without naming the server.
    pub(crate) fn credential(&self) -> Option<&'static str> {
        let flags = [
            ("user", self.user.is_some()),
            ("token", self.token.is_some()),
            ("as", self.impersonate.is_some()),
            ("as-group", !self.impersonate_groups.is_empty()),
            ("as-uid", self.impersonate_uid.is_some()),
            ("certificate-authority", self.certificate_authority.is_some()),
            ("client-certificate", self.client_certificate.is_some()),
            ("client-key", self.client_key.is_some()),
            ("insecure-skip-tls-verify", self.insecure_skip_tls_verify.is_some()),
            ("tls-server-name", self.tls_server_name.is_some()),
        ];
        flags.into_iter().find_map(|(flag, given)| given.then_some(flag))
    }

    /// The same as a command line, for a `virtctl` that another program starts.
    pub(crate) fn flags(&self) -> Vec<OsString> {
        let paths = [
            ("kubeconfig", &self.kubeconfig),
            ("certificate-authority", &self.certificate_authority),
            ("client-certificate", &self.client_certificate),
            ("client-key", &self.client_key),
            ("state-dir", &self.state_dir),
        ];
        let words = [
            ("context", &self.context),
            ("cluster", &self.cluster),
            ("user", &self.user),
            ("server", &self.server),
            ("token", &self.token),
            ("as", &self.impersonate),
            ("as-uid", &self.impersonate_uid),
            ("tls-server-name", &self.tls_server_name),
        ];
        let paths = paths.into_iter().filter_map(|(flag, path)| Some((flag, path.clone()?.into_os_string())));
        let words = words.into_iter().filter_map(|(flag, word)| Some((flag, OsString::from(word.clone()?))));
        let groups = self.impersonate_groups.iter().map(|group| ("as-group", OsString::from(group)));
        let mut flags: Vec<OsString> = Vec::new();
        for (flag, value) in paths.chain(words).chain(groups) {
            flags.extend([format!("--{flag}").into(), value]);
        }
        if let Some(skip) = self.insecure_skip_tls_verify {
            flags.push(format!("--insecure-skip-tls-verify={skip}").into());
        }
        if let Some(timeout) = self.request_timeout {
            flags.push(format!("--request-timeout={}ms", timeout.unwrap_or_default().as_millis()).into());
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

    fn server(line: &str) -> Result<Server, clap::Error> {
        Cli::try_parse_from(line.split(' ')).map(|cli| cli.server)
    }

    #[test]
    fn flags_stand_before_and_after_the_command() {
        let line = "virtctl -s https://a --as eve start vm --as-group one --as-group two --insecure-skip-tls-verify --request-timeout 2m -n b";
        let server = server(line).unwrap();
        assert_eq!((server.server.as_deref(), server.namespace.as_deref()), (Some("https://a"), Some("b")));
        let given = server.flags();
        let expected = "--server https://a --as eve --as-group one --as-group two --insecure-skip-tls-verify=true --request-timeout=120000ms";
        assert_eq!(given, expected.split(' ').map(OsString::from).collect::<Vec<_>>());
    }

    #[test]
    fn a_handler_has_no_users() {
        for flag in ["--token t", "--as eve", "--server https://a", "--context c", "--kubeconfig f"] {
            assert!(server(&format!("virtctl --state-dir d {flag} start vm")).is_err(), "{flag}");
        }
        assert!(server("virtctl --state-dir d -n b console vm").is_ok());
    }

    #[test]
    fn timeouts_are_those_of_kubectl() {
        let read = |text: &str| {
            server(&format!("virtctl --request-timeout={text} start vm")).map(|one| one.request_timeout)
        };
        for (text, seconds) in [("5", 5), ("30s", 30), ("2m", 120), ("1h30m", 5400)] {
            assert_eq!(read(text).unwrap(), Some(Some(Duration::from_secs(seconds))), "{text}");
        }
        for never in ["0", "0s"] {
            assert_eq!(read(never).unwrap(), Some(None), "{never}");
        }
        for odd in ["-1s", "soon", ""] {
            assert!(read(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn the_user_of_a_guest_is_not_the_servers() {
        let cli = Cli::try_parse_from("virtctl create vm --user fedora".split(' ')).unwrap();
        assert!(matches!(cli.command, crate::cli::Command::Create(_)));
    }
}
