use std::io::Write as _;

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::Failure;
use crate::cli::{Cli, Completion};

/// Prints the script.
pub(crate) fn run(args: &Completion) -> Result<(), Failure> {
    // Generated first: a closed pipe, as by `head`, is an error and not a panic.
    Ok(std::io::stdout().lock().write_all(&script(args.shell))?)
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "virtctl", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What bash offers for the last of some words.
    fn offered(words: &[&str]) -> Vec<String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&script(Shell::Bash)).unwrap();
        let line = r#"source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); f=$(complete -p virtctl); f=${f#*-F }
            ${f%% *} virtctl "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"; printf '%s\n' "${COMPREPLY[@]}""#;
        let output = std::process::Command::new("bash")
            .args(["--norc", "-c", line, "bash"])
            .arg(file.path())
            .args(words)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn bash_completes_verbs_and_flags() {
        assert_eq!(offered(&["virtctl", "cons"]), ["console"]);
        assert_eq!(offered(&["virtctl", "image-"]), ["image-upload"]);
        assert_eq!(offered(&["virtctl", "stop", "--gr"]), ["--grace-period"]);
        assert!(offered(&["virtctl", "create", ""]).contains(&"instancetype".to_owned()));
    }

    #[test]
    fn every_shell_gets_a_script() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell] {
            let script = String::from_utf8(script(shell)).unwrap();
            assert!(script.contains("addvolume"), "{shell}");
        }
    }
}
