//! The test host's `kubectl` and the server of a nested host: on an emulated CPU every start of a program in Go takes seconds, which
//! the guests need.

use std::fs;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::host::{Host, HostError, Output};
use crate::relay::Relay;
use crate::wire::Status;

const LOOPBACK: &str = "server: https://127.0.0.1:";

/// What asks the server of one kubeconfig.
#[derive(Debug)]
pub struct Kubectl {
    /// Its kubeconfig, and what it caches.
    home: TempDir,
    _relay: Relay,
}

impl Kubectl {
    /// For the server on a loopback port of `host` that its `kubeconfig`, the text, names.
    pub fn outside(host: &Host, kubeconfig: &str) -> Result<Self, HostError> {
        let absent = || io::Error::other(format!("no {LOOPBACK} in:\n{kubeconfig}"));
        let port = port(kubeconfig).ok_or_else(absent).map_err(HostError::Kubectl)?;
        let relay = Relay::to(host, port).map_err(HostError::Kubectl)?;
        let home = tempfile::tempdir().map_err(HostError::Kubectl)?;
        let theirs = format!("{LOOPBACK}{port}");
        let ours = format!("{LOOPBACK}{}", relay.address().port());
        let kubeconfig = kubeconfig.replace(&theirs, &ours);
        fs::write(home.path().join("kubeconfig"), kubeconfig).map_err(HostError::Kubectl)?;
        Ok(Self { home, _relay: relay })
    }

    /// Runs a line of `bash` that begins with the arguments of `kubectl`. Where `deadline` passes it ends with the code 124.
    pub fn run(&self, line: &str, input: Option<&str>, deadline: Duration) -> Result<Output, HostError> {
        let mut command = Command::new("timeout");
        command.arg(deadline.as_secs().to_string()).args(["bash", "-e", "-o", "pipefail", "-c"]);
        command.arg(format!("kubectl {line}"));
        command.env("HOME", self.home.path()).env("KUBECONFIG", self.home.path().join("kubeconfig"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = command.spawn().map_err(HostError::Kubectl)?;
        if let Some(mut stdin) = running.stdin.take() {
            // It may end before it has read all, and says why.
            let _ = stdin.write_all(input.unwrap_or_default().as_bytes());
        }
        let ended = running.wait_with_output().map_err(HostError::Kubectl)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let status = ended.status.code().map_or(Status::NotStarted(ended.status.to_string()), Status::Code);
        Ok(Output { status, stdout: text(&ended.stdout), stderr: text(&ended.stderr) })
    }
}

/// Of the server of a kubeconfig.
fn port(kubeconfig: &str) -> Option<u16> {
    let (_, after) = kubeconfig.split_once(LOOPBACK)?;
    after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::port;

    #[test]
    fn a_kubeconfig_names_the_port_of_its_server() {
        assert_eq!(
            port("clusters:\n- cluster:\n    server: https://127.0.0.1:6443\n  name: here\n"),
            Some(6443)
        );
        assert_eq!(port("    server: https://127.0.0.1:6443"), Some(6443));
        assert_eq!(port("    server: https://192.0.2.1:6443\n"), None);
    }
}
