//! `virtctl ssh` and `virtctl scp`: the local OpenSSH client, by way of `virtctl port-forward`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Failure;
use super::target::{Target, TargetError};
use crate::cli::{Scp, Secure, Server, Ssh};
use crate::client;

/// Where keys of guests are remembered, below the home directory: apart from other hosts', as names of guests come back.
const KNOWN_HOSTS: &str = ".ssh/kubevirt_known_hosts";

#[derive(Debug, thiserror::Error)]
enum SshError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("one of the two must be in a guest, as [USER@]KIND/NAME[/NAMESPACE]:PATH")]
    NoGuest,
    #[error("both paths are in guests: copy by way of this host")]
    TwoGuests,
    #[error("cannot find this program, which ssh is to start again")]
    Myself(#[source] std::io::Error),
    #[error("cannot start {program}: is the package openssh-client installed?")]
    Start {
        program: &'static str,
        #[source]
        source: std::io::Error,
    },
}

/// A user of a guest.
#[derive(Debug, PartialEq, Eq)]
struct Login {
    user: Option<String>,
    target: Target,
}

impl Login {
    fn parse(text: &str, given: Option<&str>) -> Result<Self, TargetError> {
        let (user, target) = match text.rsplit_once('@') {
            Some((user, target)) => (Some(user), target),
            None => (None, text),
        };
        if user == Some("") {
            return Err(TargetError::Form(text.to_owned()));
        }
        Ok(Self { user: user.map(str::to_owned), target: Target::parse(target, given)? })
    }
}

/// Becomes `ssh`.
pub(crate) async fn ssh(server: &Server, args: &Ssh) -> Result<(), Failure> {
    let login = Login::parse(&args.target, server.namespace.as_deref())?;
    let route = Route::of(server, &login, &args.secure).await?;
    let mut command = Command::new("ssh");
    command.args(route.options()).arg(route.host());
    command.args(&args.command);
    become_it("ssh", command)
}

/// Becomes `scp`.
pub(crate) async fn scp(server: &Server, args: &Scp) -> Result<(), Failure> {
    let given = server.namespace.as_deref();
    let (from, to) = (remote(&args.source, given)?, remote(&args.destination, given)?);
    let login = match (&from, &to) {
        (Some((login, _)), None) | (None, Some((login, _))) => login,
        (None, None) => return Err(SshError::NoGuest.into()),
        (Some(_), Some(_)) => return Err(SshError::TwoGuests.into()),
    };
    let route = Route::of(server, login, &args.secure).await?;
    let endpoint = |remote: &Option<(Login, String)>, local: &str| match remote {
        Some((_, path)) => format!("{}:{path}", route.host()),
        // Else a colon in it would make it a host's.
        None if local.contains(':') && !local.starts_with(['/', '.']) => format!("./{local}"),
        None => local.to_owned(),
    };
    let mut command = Command::new("scp");
    command.args(args.recursive.then_some("-r")).args(args.preserve.then_some("-p"));
    command.args(route.options()).arg("--");
    command.args([endpoint(&from, &args.source), endpoint(&to, &args.destination)]);
    become_it("scp", command)
}

/// A path in a guest: `[USER@]KIND/NAME[/NAMESPACE]:PATH`. Whatever else is a path here.
fn remote(text: &str, given: Option<&str>) -> Result<Option<(Login, String)>, TargetError> {
    let Some((login, path)) = text.split_once(':') else { return Ok(None) };
    match Login::parse(login, given) {
        Ok(login) => Ok(Some((login, path.to_owned()))),
        // A local file, or another host.
        Err(TargetError::Kind(_)) => Ok(None),
        Err(TargetError::Form(_)) if !login.contains('/') => Ok(None),
        Err(error) => Err(error),
    }
}

fn become_it(program: &'static str, mut command: Command) -> Result<(), Failure> {
    let source = command.exec();
    Err(SshError::Start { program, source }.into())
}

/// How OpenSSH gets there.
struct Route<'a> {
    login: &'a Login,
    secure: &'a Secure,
    namespace: String,
    /// This program, and where it finds the server.
    virtctl: Vec<OsString>,
    home: Option<PathBuf>,
}

impl<'a> Route<'a> {
    async fn of(server: &Server, login: &'a Login, secure: &'a Secure) -> Result<Self, Failure> {
        let namespace = match &login.target.namespace {
            Some(namespace) => namespace.clone(),
            None => client::namespace(server).await?,
        };
        let mut virtctl = vec![std::env::current_exe().map_err(SshError::Myself)?.into_os_string()];
        virtctl.extend(server.flags());
        let home = std::env::var_os("HOME").map(PathBuf::from);
        Ok(Self { login, secure, namespace, virtctl, home })
    }

    /// What OpenSSH calls the guest, and remembers its key by.
    fn host(&self) -> String {
        let Target { kind, name, .. } = &self.login.target;
        format!("{}.{name}.{}", kind.as_str(), self.namespace)
    }

    fn options(&self) -> Vec<OsString> {
        let Secure { username, identity_file, known_hosts, local_ssh_opts, .. } = self.secure;
        let mut options: Vec<OsString> = vec!["-o".into(), format!("ProxyCommand={}", self.proxy()).into()];
        let default = || self.home.as_ref().map(|home| home.join(KNOWN_HOSTS));
        if let Some(file) = known_hosts.clone().or_else(default) {
            options.extend(["-o".into(), format!("UserKnownHostsFile={}", in_quotes(&file)).into()]);
        }
        if let Some(user) = self.login.user.as_ref().or(username.as_ref()) {
            options.extend(["-o".into(), format!("User={user}").into()]);
        }
        if let Some(file) = identity_file {
            options.extend(["-i".into(), file.into()]);
        }
        // Both `-o X=y` in one word and `-v` are usual.
        let words = local_ssh_opts.iter().flat_map(|option| match option.trim().split_once(' ') {
            Some((flag, value)) if flag.len() == 2 => vec![flag.into(), value.trim().into()],
            _ => vec![option.trim().into()],
        });
        options.extend(words);
        options
    }

    /// A line for the user's shell, in which OpenSSH replaces what a percent sign begins.
    fn proxy(&self) -> String {
        let Target { kind, name, .. } = &self.login.target;
        let target = format!("{}/{name}/{}", kind.as_str(), self.namespace);
        let port = self.secure.port.to_string();
        let rest = ["port-forward", "--stdio=true", &target, &port];
        let words = self.virtctl.iter().map(|word| word.to_string_lossy());
        let words = words.chain(rest.map(Into::into)).map(|word| for_a_shell(&word).replace('%', "%%"));
        words.collect::<Vec<_>>().join(" ")
    }
}

/// A path as a value of OpenSSH's options, where a space would begin another one.
fn in_quotes(path: &Path) -> String {
    format!("\"{}\"", path.display().to_string().replace('%', "%%"))
}

fn for_a_shell(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/.-_=:,+@%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_guest_is_known_by_its_kind() {
        let of = |text| remote(text, None).map(|found| found.map(|(login, path)| (login.user, path)));
        assert_eq!(of("ada@vmi/web:a.txt"), Ok(Some((Some("ada".to_owned()), "a.txt".to_owned()))));
        assert_eq!(of("vm/web/prod:"), Ok(Some((None, String::new()))));
        for local in ["a.txt", "./a:b", "/vm/web", "other:file", "ada@other:file", "C:\\file"] {
            assert_eq!(of(local), Ok(None), "{local}");
        }
        for odd in ["@vm/web:x", "vm/:x"] {
            assert!(of(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn what_a_shell_would_read_is_quoted() {
        let login = Login::parse("vmi/web", None).unwrap();
        let secure = Secure {
            username: Some("ada".to_owned()),
            identity_file: None,
            known_hosts: None,
            port: 2222,
            local_ssh_opts: vec!["-o BatchMode=yes".to_owned(), "-v".to_owned()],
        };
        let route = Route {
            login: &login,
            secure: &secure,
            namespace: "prod".to_owned(),
            virtctl: vec!["/a b/virtctl".into(), "--context".into(), "it's 100%".into()],
            home: Some("/home/my user".into()),
        };
        let options: Vec<_> =
            route.options().iter().map(|option| option.to_string_lossy().into_owned()).collect();
        assert_eq!(
            options,
            [
                "-o",
                r"ProxyCommand='/a b/virtctl' --context 'it'\''s 100%%' port-forward --stdio=true vmi/web/prod 2222",
                "-o",
                "UserKnownHostsFile=\"/home/my user/.ssh/kubevirt_known_hosts\"",
                "-o",
                "User=ada",
                "-o",
                "BatchMode=yes",
                "-v",
            ]
        );
        assert_eq!(route.host(), "vmi.web.prod");
    }
}
