//! `virtctl console`: the guest's first serial port on this terminal.

mod history;
mod waiting;

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::ops::ControlFlow;
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{self, Message};

use super::Failure;
use crate::cli::{Console, Server};
use crate::client::{Client, ClientError, Connection};
use crate::term::RawTerminal;
use history::History;
use waiting::Waiting;

/// Ctrl+], which a terminal also sends for Ctrl+5.
const ESCAPE: u8 = 29;
/// Reads of the keyboard on their way to the guest.
const KEYS: usize = 64;
/// How often an instance that does not run yet is looked at again.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long another connection is tried for when one is lost: a node agent that is replaced is back before.
const RECONNECT: Duration = Duration::from_secs(120);
/// How long one of these attempts may take: where the former node agent was, nothing answers.
const ATTEMPT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
enum ConsoleError {
    #[error("virtual machine instance {name} is {phase}: its console is closed")]
    Final { name: String, phase: String },
    #[error("virtual machine instance {name} is still {phase} after {minutes} minutes")]
    NotReady { name: String, phase: String, minutes: u64 },
    #[error("the terminal cannot be used")]
    Terminal(#[source] std::io::Error),
    #[error(
        "the console connection was lost: the handler or the instance is gone; connect again to continue"
    )]
    BrokenOff(#[source] tungstenite::Error),
}

/// Connects, waiting for the instance to run if need be, and stays until the user leaves or the guest is gone.
pub(crate) async fn run(server: &Server, args: &Console) -> Result<(), Failure> {
    let client = Client::new(server).await?;
    let terminal = std::io::stdout().is_terminal();
    let (stream, uid) = connect(&client, args, args.history.unwrap_or(terminal)).await?;
    let raw = RawTerminal::enter().map_err(ConsoleError::Terminal)?;
    eprint!("Successfully connected to {} console. Press Ctrl+] or Ctrl+5 to exit console.\r\n", args.vmi);
    let ended = stay(stream, &client, (&args.vmi, &uid), terminal).await;
    drop(raw);
    eprintln!();
    ended?;
    Ok(())
}

async fn connect(
    client: &Client,
    args: &Console,
    history: bool,
) -> Result<(WebSocketStream<Connection>, String), Failure> {
    let name = &args.vmi;
    let subresource = if history { "console?history=true" } else { "console" };
    let (object, console) = (client.vmi(name), client.subresource(name, subresource));
    let deadline = Instant::now() + Duration::from_secs(args.timeout.saturating_mul(60));
    let mut waiting = Waiting::default();
    loop {
        let vmi = client.get(&object).await?;
        match phase(&vmi) {
            "Running" => match client.stream(&console).await {
                Ok(stream) => return Ok((stream, uid(&vmi).to_owned())),
                // It may have stopped since; the next poll detects it.
                Err(ClientError::Refused { .. }) if phase(&client.get(&object).await?) != "Running" => {}
                Err(error) => return Err(error.into()),
            },
            phase @ ("Succeeded" | "Failed") => {
                return Err(ConsoleError::Final { name: name.clone(), phase: phase.to_owned() }.into());
            }
            phase if Instant::now() >= deadline => {
                let (name, phase, minutes) = (name.clone(), phase.to_owned(), args.timeout);
                return Err(ConsoleError::NotReady { name, phase, minutes }.into());
            }
            _ => {
                if let Some(line) = waiting.line(name, &vmi) {
                    eprintln!("{line}");
                }
                sleep(PATIENCE).await;
            }
        }
    }
}

fn phase(object: &Value) -> &str {
    object.pointer("/status/phase").and_then(Value::as_str).unwrap_or("Pending")
}

fn uid(object: &Value) -> &str {
    object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default()
}

/// Stays until the user leaves or the guest is gone. A connection that is lost is replaced.
async fn stay(
    mut stream: WebSocketStream<Connection>,
    client: &Client,
    vmi: (&str, &str),
    terminal: bool,
) -> Result<(), ConsoleError> {
    let (mut keys, left) = keyboard();
    let mut signals = Signals::new().map_err(ConsoleError::Terminal)?;
    let leave = async {
        let typed = async {
            if left.await.is_err() {
                // Input has ended, and the view goes on.
                std::future::pending().await
            }
        };
        tokio::select! {
            () = typed => {}
            () = signals.any() => {}
        }
    };
    tokio::pin!(leave);
    loop {
        let lost = tokio::select! {
            // In this order, what was typed before the escape is sent before the escape counts.
            biased;
            ended = attach(stream, &mut keys, History::on(terminal)) => match ended {
                Err(ConsoleError::BrokenOff(error)) => error,
                ended => return ended,
            },
            () = &mut leave => return Ok(()),
        };
        eprint!("\r\nThe console connection was lost. Connecting again ...\r\n");
        let again = tokio::select! {
            again = reconnect(client, vmi) => again,
            () = &mut leave => return Ok(()),
        };
        stream = again.ok_or(ConsoleError::BrokenOff(lost))?;
        eprint!("Connected again. Output in between is missing.\r\n");
    }
}

/// Another connection to the same guest, if there is one in time.
async fn reconnect(client: &Client, (name, same): (&str, &str)) -> Option<WebSocketStream<Connection>> {
    let (object, console) = (client.vmi(name), client.subresource(name, "console"));
    let attempt = async || match client.get(&object).await {
        Ok(vmi) if uid(&vmi) != same || phase(&vmi) != "Running" => ControlFlow::Break(None),
        Ok(_) => match client.stream(&console).await {
            Ok(stream) => ControlFlow::Break(Some(stream)),
            Err(_) => ControlFlow::Continue(()),
        },
        Err(ClientError::Refused { code, .. }) if code.is_client_error() => ControlFlow::Break(None),
        Err(_) => ControlFlow::Continue(()),
    };
    let connect = async {
        loop {
            if let Ok(ControlFlow::Break(outcome)) = timeout(ATTEMPT, attempt()).await {
                return outcome;
            }
            sleep(PATIENCE).await;
        }
    };
    timeout(RECONNECT, connect).await.ok().flatten()
}

/// Output and keys go their own ways: a guest that reads no keys must not keep its output from being shown, nor the
/// user from leaving.
async fn attach(
    stream: WebSocketStream<Connection>,
    keys: &mut mpsc::Receiver<Vec<u8>>,
    history: History,
) -> Result<(), ConsoleError> {
    let (to_guest, from_guest) = stream.split();
    tokio::select! {
        biased;
        ended = view(from_guest, history) => ended,
        broken = forward(keys, to_guest) => broken,
    }
}

/// Prints the guest's output, until it ends.
async fn view(
    mut from_guest: SplitStream<WebSocketStream<Connection>>,
    mut history: History,
) -> Result<(), ConsoleError> {
    let ended = loop {
        match from_guest.next().await {
            Some(Ok(Message::Binary(bytes))) => {
                show(&history.take(&bytes)).map_err(ConsoleError::Terminal)?
            }
            Some(Ok(Message::Text(text))) => history.announced(&text),
            Some(Ok(Message::Close(_)) | Err(tungstenite::Error::ConnectionClosed)) | None => break Ok(()),
            Some(Ok(_)) => {}
            Some(Err(error)) => break Err(ConsoleError::BrokenOff(error)),
        }
    };
    show(&history.rest()).map_err(ConsoleError::Terminal)?;
    ended
}

/// Sends keys to the guest. Input that ends (a pipe) does not end the view: the guest's answers are still to come.
async fn forward(
    keys: &mut mpsc::Receiver<Vec<u8>>,
    mut to_guest: SplitSink<WebSocketStream<Connection>, Message>,
) -> Result<(), ConsoleError> {
    while let Some(bytes) = keys.recv().await {
        to_guest.send(Message::binary(bytes)).await.map_err(ConsoleError::BrokenOff)?;
    }
    std::future::pending().await
}

fn show(bytes: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// What is typed, and word that the user leaves. The thread blocks in `read` and ends with the process.
fn keyboard() -> (mpsc::Receiver<Vec<u8>>, oneshot::Receiver<()>) {
    let (typed, keys) = mpsc::channel(KEYS);
    let (leave, left) = oneshot::channel();
    std::thread::spawn(move || {
        let by_hand = rustix::termios::isatty(std::io::stdin());
        let mut buffer = [0; 1024];
        while let Ok(read @ 1..) = std::io::stdin().lock().read(&mut buffer) {
            let (bytes, escape) = until_escape(buffer.get(..read).unwrap_or_default());
            // A pipe waits for a guest that reads no input; a terminal continues, as its next key may be the escape.
            let gone = match (bytes.is_empty(), by_hand) {
                (true, _) => false,
                (false, true) => matches!(typed.try_send(bytes.to_vec()), Err(TrySendError::Closed(_))),
                (false, false) => typed.blocking_send(bytes.to_vec()).is_err(),
            };
            if escape {
                // The other side may be leaving already.
                let _ = leave.send(());
                return;
            }
            if gone {
                return;
            }
        }
        // Dropping `leave` sends nothing: the view continues.
    });
    (keys, left)
}

/// What was typed before the escape, and whether there was one.
fn until_escape(typed: &[u8]) -> (&[u8], bool) {
    match typed.iter().position(|byte| *byte == ESCAPE) {
        Some(at) => (typed.get(..at).unwrap_or_default(), true),
        None => (typed, false),
    }
}

/// Signals that would kill the process with the terminal still raw.
struct Signals {
    terminate: Signal,
    hang_up: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_escape_cuts_what_is_typed() {
        assert_eq!(until_escape(b"ls\n"), (b"ls\n".as_slice(), false));
        assert_eq!(until_escape(b"ls\x1dmore"), (b"ls".as_slice(), true));
        assert_eq!(until_escape(b"\x1d"), (b"".as_slice(), true));
    }
}
