use std::time::Duration;

use super::Field;
use super::report::Findings;
use crate::v1::{self, IntOrString};

/// A question asked again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    question: ProbeQuestion,
    initial_delay: Duration,
    timeout: Duration,
    period: Duration,
    success_threshold: u32,
    failure_threshold: u32,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeQuestion {
    /// Is a GET answered with 200 to 399?
    HttpGet {
        /// Its path and query.
        path: String,
        /// Its port.
        port: ProbePort,
        /// The address; the machine's own when absent.
        host: Option<String>,
        /// Over TLS, the certificate not checked.
        tls: bool,
        /// More headers.
        headers: Vec<(String, String)>,
    },
    /// Is a connection accepted?
    TcpSocket {
        /// Its port.
        port: ProbePort,
        /// The address; the machine's own when absent.
        host: Option<String>,
    },
}

/// A port by its number or by the name that an interface gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbePort {
    /// From 1.
    Number(u16),
    /// A name of `ports`.
    Name(String),
}

impl Probe {
    /// What is asked.
    pub fn question(&self) -> &ProbeQuestion {
        &self.question
    }

    /// Before it is asked first.
    pub fn initial_delay(&self) -> Duration {
        self.initial_delay
    }

    /// How long an answer may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// From one to the next.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Good answers in a row that count, from 1.
    pub fn success_threshold(&self) -> u32 {
        self.success_threshold
    }

    /// Bad answers in a row that count, from 1.
    pub fn failure_threshold(&self) -> u32 {
        self.failure_threshold
    }
}

/// `has_pod_network`: whether there is an address to ask.
pub(super) fn read(
    probe: Option<&v1::Probe>,
    at: &Field,
    has_pod_network: bool,
    found: &mut Findings,
) -> Option<Probe> {
    let probe = probe?;
    let seconds = |value: Option<i32>, default: u64, least: u64, name: &str, found: &mut Findings| {
        let value = value.map_or(Some(default), |value| u64::try_from(value).ok());
        let value = value.filter(|value| *value >= least);
        if value.is_none() {
            found.invalid(&at.at(name), format!("is below {least}"));
        }
        value.unwrap_or(default)
    };
    let initial_delay = seconds(probe.initial_delay_seconds, 0, 0, "initialDelaySeconds", found);
    let timeout = seconds(probe.timeout_seconds.filter(|value| *value != 0), 1, 1, "timeoutSeconds", found);
    let period = seconds(probe.period_seconds.filter(|value| *value != 0), 10, 1, "periodSeconds", found);
    let success =
        seconds(probe.success_threshold.filter(|value| *value != 0), 1, 1, "successThreshold", found);
    let failure =
        seconds(probe.failure_threshold.filter(|value| *value != 0), 3, 1, "failureThreshold", found);
    let question = question(probe, at, has_pod_network, found)?;
    found.notice_if(true, at, "probes are not asked yet");
    Some(Probe {
        question,
        initial_delay: Duration::from_secs(initial_delay),
        timeout: Duration::from_secs(timeout),
        period: Duration::from_secs(period),
        success_threshold: u32::try_from(success).unwrap_or(u32::MAX),
        failure_threshold: u32::try_from(failure).unwrap_or(u32::MAX),
    })
}

fn question(
    probe: &v1::Probe,
    at: &Field,
    has_pod_network: bool,
    found: &mut Findings,
) -> Option<ProbeQuestion> {
    found.refuse_if(probe.exec.is_some(), &at.at("exec"), "a command through the guest agent");
    found.refuse_if(probe.guest_agent_ping.is_some(), &at.at("guestAgentPing"), "the guest agent");
    let given = [
        probe.exec.is_some(),
        probe.guest_agent_ping.is_some(),
        probe.http_get.is_some(),
        probe.tcp_socket.is_some(),
    ];
    match given.iter().filter(|there| **there).count() {
        1 => {}
        0 => {
            found.required(at, "say what is asked: write httpGet or tcpSocket");
            return None;
        }
        _ => {
            found.invalid(at, "asks several questions: keep one of httpGet and tcpSocket");
            return None;
        }
    }
    let asked = if probe.http_get.is_some() { "httpGet" } else { "tcpSocket" };
    let at = at.at(asked);
    if (probe.http_get.is_some() || probe.tcp_socket.is_some()) && !has_pod_network {
        found.invalid(&at, "needs an interface on the pod network");
    }
    let host = |host: &str| Some(host.to_owned()).filter(|host| !host.is_empty());
    if let Some(get) = &probe.http_get {
        let tls = match get.scheme.as_str() {
            "" | "HTTP" => false,
            "HTTPS" => true,
            other => {
                found.invalid(&at.at("scheme"), format!("{other:?} is no scheme: write HTTP or HTTPS"));
                false
            }
        };
        let port = port(get.port.as_ref(), &at.at("port"), found)?;
        let path = if get.path.is_empty() { "/".to_owned() } else { get.path.clone() };
        let headers = get.http_headers.iter().map(|h| (h.name.clone(), h.value.clone())).collect();
        return Some(ProbeQuestion::HttpGet { path, port, host: host(&get.host), tls, headers });
    }
    let socket = probe.tcp_socket.as_ref()?;
    let port = port(socket.port.as_ref(), &at.at("port"), found)?;
    Some(ProbeQuestion::TcpSocket { port, host: host(&socket.host) })
}

fn port(port: Option<&IntOrString>, at: &Field, found: &mut Findings) -> Option<ProbePort> {
    match port {
        None => found.required(at, "give the port's number or name"),
        Some(IntOrString::String(name)) if !name.is_empty() => return Some(ProbePort::Name(name.clone())),
        Some(IntOrString::String(_)) => found.invalid(at, "is an empty name: give the port's number or name"),
        Some(IntOrString::Int(number)) => match u16::try_from(*number) {
            Ok(number) if number != 0 => return Some(ProbePort::Number(number)),
            _ => found.invalid(at, format!("{number} is no port: write 1 to 65535")),
        },
    }
    None
}
