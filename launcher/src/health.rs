//! Runs one probe of a VMI, in the VM's network namespace.
//!
//! Whatever the guest answers is bounded: in time by the question, in size by [`http`] and [`crate::agent`].

mod dns;
mod http;
mod tls;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use url::Host;
use vireo_proto::launcher::probe_request::{Question, TcpSocket};
use vireo_proto::launcher::{ProbeRequest, ProbeResponse};

use crate::agent::AgentClient;
use crate::agent::exec::End;
use crate::fault::{Code, fault};
use dns::Names;

/// What a guest answers to a probe.
#[cfg(any(test, fuzzing))]
pub(crate) async fn fuzz(stream: tokio::io::DuplexStream) {
    http::fuzz(stream).await;
}

/// Why a guest is not well, for people.
type Failure = String;

/// Runs the probe.
pub async fn run(agent: &AgentClient, request: ProbeRequest) -> ProbeResponse {
    let limit = Duration::from_secs(request.timeout_seconds);
    let Some(question) = request.question else {
        return invalid("this launcher does not know the question");
    };
    let names = match Names::try_from(request.resolver.unwrap_or_default()) {
        Ok(names) => names,
        Err(why) => return invalid(&why),
    };
    let result = match question {
        Question::HttpGet(get) => match http::Request::try_from(get) {
            Ok(request) => timeout(limit, http::get(request, &names)).await,
            Err(why) => return invalid(&why),
        },
        Question::TcpSocket(socket) => match Target::try_from(&socket) {
            Ok(target) => timeout(limit, accepts(target, &names)).await,
            Err(why) => return invalid(&why),
        },
        Question::Exec(exec) => timeout(limit, succeeds(agent, exec.command)).await,
        Question::GuestAgentPing(_) => {
            timeout(limit, async { agent.ping().await.map_err(|fault| fault.detail) }).await
        }
    };
    let result = result.unwrap_or_else(|_| Err(format!("no answer within {} s", limit.as_secs())));
    ProbeResponse { failure: result.err(), fault: None }
}

fn invalid(why: &str) -> ProbeResponse {
    ProbeResponse { failure: None, fault: Some(fault(Code::Invalid, why)) }
}

/// Where a probe connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    host: Host,
    port: u16,
}

impl TryFrom<&TcpSocket> for Target {
    type Error = String;

    fn try_from(to: &TcpSocket) -> Result<Self, String> {
        let host = match to.address.parse() {
            Ok(IpAddr::V4(address)) => Host::Ipv4(address),
            Ok(IpAddr::V6(address)) => Host::Ipv6(address),
            Err(_) => match Host::parse(&to.address) {
                Ok(Host::Domain(name)) => Host::Domain(name),
                _ => return Err(format!("invalid address {:?}", to.address)),
            },
        };
        let port = u16::try_from(to.port).ok().filter(|port| *port != 0);
        Ok(Self { host, port: port.ok_or_else(|| format!("invalid port {}", to.port))? })
    }
}

async fn accepts(target: Target, names: &Names) -> Result<(), Failure> {
    dial(&target, names).await.map(drop)
}

/// Connects to the first address of a target that accepts.
async fn dial(target: &Target, names: &Names) -> Result<TcpStream, Failure> {
    let Target { host, port } = target;
    let addresses: Vec<IpAddr> = match host {
        Host::Ipv4(address) => vec![(*address).into()],
        Host::Ipv6(address) => vec![(*address).into()],
        Host::Domain(name) => names.lookup(name).await?,
    };
    let addresses: Vec<SocketAddr> =
        addresses.into_iter().map(|address| SocketAddr::new(address, *port)).collect();
    let dialled = TcpStream::connect(addresses.as_slice()).await;
    dialled.map_err(|error: io::Error| format!("cannot connect to port {port}: {error}"))
}

async fn succeeds(agent: &AgentClient, command: Vec<String>) -> Result<(), Failure> {
    match agent.exec(command).await {
        Ok(End::Code(0)) => Ok(()),
        Ok(end) => Err(end.to_string()),
        Err(fault) => Err(fault.detail),
    }
}

#[cfg(test)]
mod tests;
