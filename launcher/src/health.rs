//! Whether the guest is well: a question of its VMI's probes, asked once, from the machine's network namespace.
//!
//! Whatever the guest answers is bounded: in time by the question, in size by [`http`] and [`crate::agent`].

mod http;
mod tls;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use vireo_proto::launcher::probe_request::{Question, TcpSocket};
use vireo_proto::launcher::{ProbeRequest, ProbeResponse};

use crate::agent::Asker;
use crate::agent::run::End;
use crate::fault::{Code, fault};

/// Why a guest is not well, for people.
type Failure = String;

/// Asks the guest.
pub async fn ask(agent: &Asker, request: ProbeRequest) -> ProbeResponse {
    let limit = Duration::from_secs(request.timeout_seconds);
    let Some(question) = request.question else {
        return invalid("this launcher does not know the question");
    };
    let told = match question {
        Question::HttpGet(get) => match http::Request::try_from(get) {
            Ok(request) => timeout(limit, http::get(request)).await,
            Err(why) => return invalid(&why),
        },
        Question::TcpSocket(socket) => match address(&socket) {
            Ok(address) => timeout(limit, accepts(address)).await,
            Err(why) => return invalid(&why),
        },
        Question::Exec(exec) => timeout(limit, succeeds(agent, exec.command)).await,
        Question::GuestAgentPing(_) => {
            timeout(limit, async { agent.ping().await.map_err(|fault| fault.detail) }).await
        }
    };
    let told = told.unwrap_or_else(|_| Err(format!("no answer within {} s", limit.as_secs())));
    ProbeResponse { failure: told.err(), fault: None }
}

fn invalid(why: &str) -> ProbeResponse {
    ProbeResponse { failure: None, fault: Some(fault(Code::Invalid, why)) }
}

fn address(to: &TcpSocket) -> Result<SocketAddr, String> {
    let address: IpAddr = to.address.parse().map_err(|_| format!("{:?} is no address", to.address))?;
    let port = u16::try_from(to.port).ok().filter(|port| *port != 0);
    Ok(SocketAddr::new(address, port.ok_or_else(|| format!("{} is no port", to.port))?))
}

async fn accepts(address: SocketAddr) -> Result<(), Failure> {
    dial(address).await.map(drop)
}

async fn dial(address: SocketAddr) -> Result<TcpStream, Failure> {
    let dialled = TcpStream::connect(address).await;
    dialled.map_err(|error: io::Error| format!("cannot connect to port {}: {error}", address.port()))
}

async fn succeeds(agent: &Asker, command: Vec<String>) -> Result<(), Failure> {
    match agent.run(command).await {
        Ok(End::Code(0)) => Ok(()),
        Ok(end) => Err(end.to_string()),
        Err(fault) => Err(fault.detail),
    }
}

#[cfg(test)]
mod tests;
