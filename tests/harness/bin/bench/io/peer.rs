//! Another monitor that is measured beside ours: its command line comes from the environment.

use std::path::{Path, PathBuf};

use super::monitor::{COMMAND_LINE, MEMORY_MIB};

/// How the variable begins; the rest is the monitor's name.
const PREFIX: &str = "PEER_";
/// Where the nested host has its program.
const PROGRAM: &str = "/in/peer";

/// A monitor and its command line, whose words may contain `{kernel}`, `{initrd}`, `{cmdline}`, `{disk}`, `{cpus}`, `{queues}`
/// and `{memory}` (MiB). The guest's serial port has to be standard input and output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// As the variable has it.
    pub(crate) name: String,
    line: String,
}

impl Peer {
    /// That of the environment, if there is one.
    ///
    /// # Errors
    /// Where there are several, or one without a command.
    pub(crate) fn find(variables: impl Iterator<Item = (String, String)>) -> Result<Option<Self>, String> {
        let mut found: Vec<Self> = variables
            .filter_map(|(name, line)| {
                let name = name.strip_prefix(PREFIX)?.to_lowercase().replace('_', "-");
                Some(Self { name, line })
            })
            .collect();
        match (found.pop(), found.is_empty()) {
            (Some(peer), true) if peer.line.trim().is_empty() => {
                Err(format!("{PREFIX}{}: want a command line", peer.name.to_uppercase()))
            }
            (peer, true) => Ok(peer),
            (_, false) => Err(format!("several variables begin with {PREFIX}: set one")),
        }
    }

    /// Its program on this host.
    pub(crate) fn program(&self) -> PathBuf {
        Path::new(self.line.split_whitespace().next().unwrap_or_default()).to_owned()
    }

    /// As the nested host starts it.
    pub(crate) fn command(&self, disk: &str, queues: u32) -> Vec<String> {
        let (queues, memory) = (queues.to_string(), MEMORY_MIB.to_string());
        let values = [
            ("{kernel}", "/in/vmlinuz"),
            ("{initrd}", "/in/initrd"),
            ("{cmdline}", COMMAND_LINE),
            ("{disk}", disk),
            ("{cpus}", &queues),
            ("{queues}", &queues),
            ("{memory}", &memory),
        ];
        let fill =
            |word: &str| values.iter().fold(word.to_owned(), |word, (key, value)| word.replace(key, value));
        let words = self.line.split_whitespace().skip(1).map(fill);
        std::iter::once(PROGRAM.to_owned()).chain(words).collect()
    }

    /// The variable that has it, for the part in the nested host.
    pub(crate) fn variable(&self) -> (String, String) {
        (format!("{PREFIX}{}", self.name.to_uppercase().replace('-', "_")), self.line.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variables: &[(&str, &str)]) -> Result<Option<Peer>, String> {
        Peer::find(variables.iter().map(|(name, line)| ((*name).to_owned(), (*line).to_owned())))
    }

    #[test]
    fn one_variable_names_a_monitor_and_its_command_line() {
        assert_eq!(find(&[("HOME", "/root")]), Ok(None));
        let line = "/opt/ch --kernel {kernel} --disk path={disk},num_queues={queues} --cmdline {cmdline}";
        let peer = find(&[("PEER_CLOUD_HYPERVISOR", line)]).unwrap().unwrap();
        assert_eq!(
            (peer.name.as_str(), peer.program().as_path()),
            ("cloud-hypervisor", Path::new("/opt/ch"))
        );
        let command = peer.command("/dev/x", 2);
        let expected = [
            "/in/peer",
            "--kernel",
            "/in/vmlinuz",
            "--disk",
            "path=/dev/x,num_queues=2",
            "--cmdline",
            COMMAND_LINE,
        ];
        assert_eq!(command, expected);
        let (name, line) = peer.variable();
        assert_eq!(find(&[(&name, &line)]), Ok(Some(peer)));
        assert!(find(&[("PEER_A", "a"), ("PEER_B", "b")]).unwrap_err().contains("several"));
        assert!(find(&[("PEER_A", " ")]).unwrap_err().contains("PEER_A"));
    }
}
