use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use super::network::Binding;
use super::report::Findings;
use super::{Field, Interface, Protocol};
use crate::v1::{self, IntOrString};

/// A probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    question: ProbeQuestion,
    initial_delay: Duration,
    timeout: Duration,
    period: Duration,
    success_threshold: u32,
    failure_threshold: u32,
}

/// The probe's handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeQuestion {
    /// Is a GET answered with 200 to 399?
    HttpGet {
        /// Its path and query.
        path: String,
        /// From 1.
        port: u16,
        /// Where; the guest when absent.
        host: Option<ProbeHost>,
        /// Over TLS, the certificate not checked.
        tls: bool,
        /// More headers.
        headers: Vec<(String, String)>,
    },
    /// Is a connection accepted?
    TcpSocket {
        /// From 1.
        port: u16,
        /// Where; the guest when absent.
        host: Option<ProbeHost>,
    },
    /// Does a command end with 0, which the guest's agent runs?
    Exec {
        /// The program and its arguments.
        command: Vec<String>,
    },
    /// Does the guest's agent answer?
    GuestAgentPing,
}

/// Where a probe connects to, if not to the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeHost {
    /// An address.
    Address(IpAddr),
    /// A DNS name, resolved whenever the probe runs.
    Name(String),
}

impl fmt::Display for ProbeHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl Probe {
    /// The probe's handler.
    pub fn question(&self) -> &ProbeQuestion {
        &self.question
    }

    /// Delay before the first probe.
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

/// `interfaces`: where there is an address to ask, and what its ports are called.
pub(super) fn read(
    probe: Option<&v1::Probe>,
    at: &Field,
    interfaces: &[Interface],
    found: &mut Findings,
) -> Option<Probe> {
    let probe = probe?;
    let mut seconds = |value: Option<i32>, default: u32, least: u32, name: &str| {
        let value =
            value.filter(|value| *value != 0).map_or(Some(default), |value| u32::try_from(value).ok());
        if value.is_none() {
            found.invalid(&at.at(name), format!("is below {least}"));
        }
        value.unwrap_or(default)
    };
    let initial_delay = seconds(probe.initial_delay_seconds, 0, 0, "initialDelaySeconds");
    let timeout = seconds(probe.timeout_seconds, 1, 1, "timeoutSeconds");
    let period = seconds(probe.period_seconds, 10, 1, "periodSeconds");
    let success_threshold = seconds(probe.success_threshold, 1, 1, "successThreshold");
    let failure_threshold = seconds(probe.failure_threshold, 3, 1, "failureThreshold");
    Some(Probe {
        question: question(probe, at, interfaces, found)?,
        initial_delay: Duration::from_secs(initial_delay.into()),
        timeout: Duration::from_secs(timeout.into()),
        period: Duration::from_secs(period.into()),
        success_threshold,
        failure_threshold,
    })
}

/// A liveness probe, whose first good answer ends a doubt.
pub(super) fn read_liveness(
    probe: Option<&v1::Probe>,
    at: &Field,
    interfaces: &[Interface],
    found: &mut Findings,
) -> Option<Probe> {
    if probe.and_then(|probe| probe.success_threshold).is_some_and(|threshold| threshold > 1) {
        found.invalid(&at.at("successThreshold"), "a livenessProbe knows 1 only");
    }
    read(probe, at, interfaces, found)
}

fn question(
    probe: &v1::Probe,
    at: &Field,
    interfaces: &[Interface],
    found: &mut Findings,
) -> Option<ProbeQuestion> {
    let handlers = "exec, guestAgentPing, httpGet and tcpSocket";
    let given = [
        probe.exec.is_some(),
        probe.guest_agent_ping.is_some(),
        probe.http_get.is_some(),
        probe.tcp_socket.is_some(),
    ];
    match given.iter().filter(|there| **there).count() {
        1 => {}
        0 => {
            found.required_value(at, format!("say what is asked: write one of {handlers}"));
            return None;
        }
        _ => {
            found.invalid(at, format!("asks several questions: keep one of {handlers}"));
            return None;
        }
    }
    if let Some(exec) = &probe.exec {
        if exec.command.first().is_none_or(String::is_empty) {
            found.required_value(&at.at("exec").at("command"), "give the program, and its arguments");
        }
        return Some(ProbeQuestion::Exec { command: exec.command.clone() });
    }
    if let Some(get) = &probe.http_get {
        let at = at.at("httpGet");
        let tls = match get.scheme.as_str() {
            "" | "HTTP" => false,
            "HTTPS" => true,
            other => {
                found.invalid_value(&at.at("scheme"), other, "must be HTTP or HTTPS");
                false
            }
        };
        let path = if get.path.starts_with('/') { get.path.clone() } else { format!("/{}", get.path) };
        let headers = headers(&get.http_headers, &at, found);
        let (port, host) = target((get.port.as_ref(), &get.host), &at, interfaces, found)?;
        return Some(ProbeQuestion::HttpGet { path, port, host, tls, headers });
    }
    if let Some(socket) = &probe.tcp_socket {
        let at = at.at("tcpSocket");
        let is_by_passt = |one: &Interface| matches!(one.binding(), Binding::Passt { .. });
        let why = "passt accepts connections before the guest does: use httpGet, exec or guestAgentPing";
        found.notice_if(socket.host.is_empty() && interfaces.iter().any(is_by_passt), &at, why);
        let (port, host) = target((socket.port.as_ref(), &socket.host), &at, interfaces, found)?;
        return Some(ProbeQuestion::TcpSocket { port, host });
    }
    Some(ProbeQuestion::GuestAgentPing)
}

fn headers(headers: &[v1::HttpHeader], at: &Field, found: &mut Findings) -> Vec<(String, String)> {
    let at = at.at("httpHeaders");
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(letter);
    let is_value = |letter: char| letter == '\t' || !letter.is_control();
    for (index, header) in headers.iter().enumerate() {
        if header.name.is_empty() || !header.name.chars().all(is_name) {
            found.invalid_value(
                &at.index(index).at("name"),
                &header.name,
                "must be a valid HTTP header name",
            );
        }
        if !header.value.chars().all(is_value) {
            found.invalid(&at.index(index).at("value"), "has control characters");
        }
    }
    headers.iter().map(|header| (header.name.clone(), header.value.clone())).collect()
}

/// The port, and the host if it is not the guest.
fn target(
    (port, host): (Option<&IntOrString>, &str),
    at: &Field,
    interfaces: &[Interface],
    found: &mut Findings,
) -> Option<(u16, Option<ProbeHost>)> {
    let is_reached =
        |one: &Interface| matches!(one.binding(), Binding::Masquerade { .. } | Binding::Passt { .. });
    let is_bridged = |one: &Interface| one.network().is_primary() && matches!(one.binding(), Binding::Bridge);
    if interfaces.iter().any(is_bridged) {
        let message = "needs the address of the Pod, which the guest has where the binding of the pod network is bridge: \
                       use exec or guestAgentPing, or the binding masquerade";
        found.not_supported(at, message);
    } else if host.is_empty() && !interfaces.iter().any(is_reached) {
        found.invalid(at, "needs an interface on the pod network");
    }
    let target = match host.parse() {
        Ok(address) => Some(ProbeHost::Address(address)),
        Err(_) if is_host_name(host) => Some(ProbeHost::Name(host.to_owned())),
        Err(_) => None,
    };
    if target.is_none() && !host.is_empty() {
        found.invalid_value(&at.at("host"), host, "must be an IP address or a DNS name");
    }
    let port = number(port, &at.at("port"), interfaces, found)?;
    Some((port, target))
}

/// Whether a resolver could be asked for it: labels of at most 63 letters, digits, `-` and `_`, joined by dots.
fn is_host_name(text: &str) -> bool {
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
            && !label.starts_with('-')
    };
    // What ends in a number would be an address (RFC 1123, section 2.1).
    let is_number = name.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
    name.len() <= 253 && name.split('.').all(is_label) && !is_number
}

fn number(
    port: Option<&IntOrString>,
    at: &Field,
    interfaces: &[Interface],
    found: &mut Findings,
) -> Option<u16> {
    match port {
        None => found.required_value(at, "give the port's number or name"),
        Some(IntOrString::String(name)) => {
            let ports = interfaces.iter().flat_map(|interface| interface.binding().ports());
            let named = |port: &&super::Port| port.protocol() == Protocol::Tcp && port.name() == Some(name);
            match ports.clone().find(named) {
                Some(port) => return Some(port.port()),
                None => found.not_found(at, format!("no interface has a TCP port that is called {name:?}")),
            }
        }
        Some(IntOrString::Int(number)) => match u16::try_from(*number) {
            Ok(number) if number != 0 => return Some(number),
            _ => found.invalid_value(at, number, "must be between 1 and 65535, inclusive"),
        },
    }
    None
}
