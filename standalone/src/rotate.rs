//! Commands that replace certificates and tokens of a server in its state directory. A server that runs notices.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use vireo_apiserver::auth::rotate_key;
use vireo_apiserver::pki::{announce_authority, expirations, renew};
use vireo_handler::command::Failure;
use vireo_standalone::credentials::{SIGNING_KEY, TOKEN, rotate_token};
use vireo_standalone::run::directory;

use crate::cli::{CertificateCommand, ServerState};

/// Where the server keeps its certificates.
fn existing(ServerState { state_dir }: ServerState) -> Result<PathBuf, Failure> {
    let directory = directory(&state_dir);
    match directory.is_dir() {
        true => Ok(directory),
        false => Err(format!("{} is not the state directory of a server", state_dir.display()).into()),
    }
}

pub(crate) async fn token(server: ServerState) -> Result<(), Failure> {
    let directory = existing(server)?;
    rotate_token(&directory)?;
    println!("the administrator has a new token in {}", directory.join(TOKEN).display());
    Ok(())
}

pub(crate) async fn key(server: ServerState, overlap: Option<u64>) -> Result<(), Failure> {
    let key = existing(server)?.join(SIGNING_KEY);
    rotate_key(&key, overlap.map(Duration::from_secs), Timestamp::now().as_second())?;
    let until = match overlap {
        None => "they end".to_owned(),
        Some(seconds) => format!("they end, for {seconds} s at most"),
    };
    println!("another key signs tokens of ServiceAccounts; those of former keys are accepted until {until}");
    Ok(())
}

pub(crate) async fn certificate(command: CertificateCommand) -> Result<(), Failure> {
    match command {
        CertificateCommand::Check(server) => check(server),
        CertificateCommand::Rotate(server) => {
            renew(&existing(server)?)?;
            println!(
                "the server makes new certificates and a new kubeconfig: at once if it runs, else when it starts"
            );
            Ok(())
        }
        CertificateCommand::RotateCa { server, overlap } => {
            let directory = existing(server)?;
            let now = Timestamp::now().as_second();
            if !announce_authority(&directory, Duration::from_secs(overlap), now)? {
                return Err("the authority is being replaced already".into());
            }
            println!(
                "the next authority is announced: it issues certificates in {overlap} s, and {overlap} s after that the former \
                 one is no longer trusted. Clients need the kubeconfig of the server anew before each."
            );
            Ok(())
        }
    }
}

fn check(server: ServerState) -> Result<(), Failure> {
    for (what, end) in expirations(&existing(server)?)? {
        println!("{what}: ends at {}", Timestamp::from_second(end)?);
    }
    Ok(())
}
