//! `virtctl console`: the guest's first serial port on this terminal.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{self, Message};

use super::Failure;
use crate::cli::{Console, Server};
use crate::client::{Client, ClientError};
use crate::term::RawTerminal;

/// Ctrl+], which a terminal also sends for Ctrl+5.
const ESCAPE: u8 = 29;
/// How often an instance that does not run yet is looked at again.
const PATIENCE: Duration = Duration::from_millis(250);

#[derive(Debug, thiserror::Error)]
enum ConsoleError {
    #[error("virtual machine instance {name} is {phase}: it has no console any more")]
    Final { name: String, phase: String },
    #[error("virtual machine instance {name} is still {phase} after {minutes} minutes")]
    NotReady { name: String, phase: String, minutes: u64 },
    #[error("the terminal cannot be used")]
    Terminal(#[source] std::io::Error),
    #[error("the console broke off: the handler or the instance went away; connect again to go on")]
    BrokenOff(#[source] tungstenite::Error),
}

/// Connects, waiting for the instance to run if need be, and stays until the user leaves or the guest is gone.
pub(crate) async fn run(server: &Server, args: &Console) -> Result<(), Failure> {
    let client = Client::new(server);
    let stream = connect(&client, server, args).await?;
    let raw = RawTerminal::enter().map_err(ConsoleError::Terminal)?;
    eprint!("Successfully connected to {} console. Press Ctrl+] or Ctrl+5 to exit console.\r\n", args.vmi);
    let ended = attach(stream).await;
    drop(raw);
    eprintln!();
    ended?;
    Ok(())
}

async fn connect(
    client: &Client,
    server: &Server,
    args: &Console,
) -> Result<WebSocketStream<UnixStream>, Failure> {
    let (namespace, name) = (&server.namespace, &args.vmi);
    let console = format!("/v1/namespaces/{namespace}/virtualmachineinstances/{name}/console");
    let object = format!("/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances/{name}");
    let deadline = Instant::now() + Duration::from_secs(args.timeout.saturating_mul(60));
    loop {
        match phase(&client.get(&object).await?) {
            "Running" => match client.stream(&console).await {
                Ok(stream) => return Ok(stream),
                // It may have stopped since it was asked; the next look tells.
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
            _ => sleep(PATIENCE).await,
        }
    }
}

fn phase(object: &Value) -> &str {
    object.pointer("/status/phase").and_then(Value::as_str).unwrap_or("Pending")
}

async fn attach(stream: WebSocketStream<UnixStream>) -> Result<(), ConsoleError> {
    let (mut to_guest, mut from_guest) = stream.split();
    let mut keys = keyboard();
    let mut signals = Signals::new().map_err(ConsoleError::Terminal)?;
    let mut typing = true;
    loop {
        tokio::select! {
            frame = from_guest.next() => match frame {
                Some(Ok(Message::Binary(bytes))) => show(&bytes).map_err(ConsoleError::Terminal)?,
                Some(Ok(Message::Close(_))) | None => return Ok(()),
                Some(Ok(_)) => {}
                Some(Err(tungstenite::Error::ConnectionClosed)) => return Ok(()),
                Some(Err(error)) => return Err(ConsoleError::BrokenOff(error)),
            },
            typed = keys.recv(), if typing => match typed {
                Some(bytes) => {
                    let escape = bytes.iter().position(|byte| *byte == ESCAPE);
                    let wanted = bytes.get(..escape.unwrap_or(bytes.len())).unwrap_or_default().to_vec();
                    if !wanted.is_empty() {
                        to_guest.send(Message::binary(wanted)).await.map_err(ConsoleError::BrokenOff)?;
                    }
                    if escape.is_some() {
                        // The peer may be gone already; leaving is what counts.
                        let _ = to_guest.close().await;
                        return Ok(());
                    }
                }
                // Input that ends (a pipe) does not end the view: the guest's answers are still to come.
                None => typing = false,
            },
            () = signals.any() => return Ok(()),
        }
    }
}

fn show(bytes: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// What is typed. The thread blocks in `read` and ends with the process.
fn keyboard() -> mpsc::Receiver<Vec<u8>> {
    let (typed, keys) = mpsc::channel(16);
    std::thread::spawn(move || {
        let mut buffer = [0; 1024];
        while let Ok(read @ 1..) = std::io::stdin().lock().read(&mut buffer) {
            let bytes = buffer.get(..read).unwrap_or_default().to_vec();
            if typed.blocking_send(bytes).is_err() {
                break;
            }
        }
    });
    keys
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
