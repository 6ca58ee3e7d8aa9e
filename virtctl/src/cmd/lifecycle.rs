//! `virtctl start`, `stop` and `restart`.

use serde_json::{Value, json};

use super::{Failure, options};
use crate::cli::{Server, Start, Stop, VmTarget};
use crate::client::Client;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum GraceError {
    #[error("--force does not wait for the guest: it needs --grace-period=0")]
    Forced,
    #[error("a restart uses the spec's grace period, or none with --force --grace-period=0")]
    Restart,
}

pub(crate) async fn start(server: &Server, args: &Start) -> Result<(), Failure> {
    let mut body = options(args.vm.dry_run);
    if args.paused {
        body["paused"] = json!(true);
    }
    ask(server, &args.vm, "start", &body).await
}

pub(crate) async fn stop(server: &Server, args: &Stop) -> Result<(), Failure> {
    let mut body = options(args.vm.dry_run);
    if let Some(seconds) = grace(args)? {
        body["gracePeriod"] = json!(seconds);
    }
    ask(server, &args.vm, "stop", &body).await
}

pub(crate) async fn restart(server: &Server, args: &Stop) -> Result<(), Failure> {
    let mut body = options(args.vm.dry_run);
    match grace(args)? {
        Some(0) if args.force => body["gracePeriodSeconds"] = json!(0),
        None => {}
        Some(_) => return Err(GraceError::Restart.into()),
    }
    ask(server, &args.vm, "restart", &body).await
}

fn grace(args: &Stop) -> Result<Option<i64>, GraceError> {
    match args.grace_period {
        Some(1..) | None if args.force => Err(GraceError::Forced),
        seconds => Ok(seconds),
    }
}

/// Requests it; the server does it asynchronously.
async fn ask(server: &Server, vm: &VmTarget, what: &str, body: &Value) -> Result<(), Failure> {
    let client = Client::new(server).await?;
    client.ask(&vm.vm, what, body).await?;
    println!("VM {} was scheduled to {what}", vm.vm);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_no_time_at_all_can_be_forced() {
        let args = |grace_period, force| Stop {
            vm: VmTarget { vm: "x".to_owned(), dry_run: false },
            grace_period,
            force,
        };
        assert_eq!(grace(&args(None, false)), Ok(None));
        assert_eq!(grace(&args(Some(7), false)), Ok(Some(7)));
        assert_eq!(grace(&args(Some(0), true)), Ok(Some(0)));
        assert_eq!(grace(&args(Some(7), true)), Err(GraceError::Forced));
    }
}
