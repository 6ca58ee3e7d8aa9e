//! What a launcher is asked while its VM runs under QEMU, when its system calls are filtered: none of it ends the launcher.
#![expect(clippy::unwrap_used, reason = "a test ends where its scenery fails")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use hickory_resolver::proto::op::Message;
use hickory_resolver::proto::rr::rdata::A;
use hickory_resolver::proto::rr::{RData, Record, RecordType};
use rcgen::generate_simple_self_signed;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UdpSocket};
use tokio_rustls::TlsAcceptor;
use vireo_proto::launcher::fault::Code;
use vireo_proto::launcher::probe_request::{Exec, GuestAgentPing, HttpGet, Question, Resolver, TcpSocket};
use vireo_proto::launcher::*;

use crate::guest;
use crate::launched::{LaunchedVm, read_until, soon};

/// The host that the name server knows.
const HOST: &str = "db.example";
/// The port of name servers.
const DNS: u16 = 53;
/// Seconds of a probe that is answered.
const LONG: u64 = 30;

impl LaunchedVm {
    async fn statistics(&mut self) -> Statistics {
        let answer = soon("statistics", self.client.statistics(StatisticsRequest {})).await.unwrap();
        let StatisticsResponse { statistics, fault } = answer.into_inner();
        assert_eq!(fault, None);
        statistics.unwrap()
    }

    async fn probe(
        &mut self,
        question: Question,
        servers: &[IpAddr],
        timeout_seconds: u64,
    ) -> Option<String> {
        let servers = servers.iter().map(ToString::to_string).collect();
        let resolver = Some(Resolver { servers, search_domains: Vec::new() });
        let request = ProbeRequest { timeout_seconds, question: Some(question), resolver };
        let answer = soon("a probe", self.client.probe(request)).await.unwrap().into_inner();
        assert_eq!(answer.fault, None);
        answer.failure
    }

    /// The guest is there, and its end is its own.
    async fn end(mut self) {
        self.shut_down(50).await;
        assert_eq!(self.outcome().await.kind(), outcome::Kind::ShutDown);
        self.dismiss().await;
    }
}

async fn booted(change: impl FnOnce(LaunchRequest) -> LaunchRequest) -> LaunchedVm {
    let mut launcher = LaunchedVm::start().await;
    let disk = guest::disk(launcher.directory.path());
    let request = change(launcher.request(&disk));
    launcher.up(request).await;
    read_until(&mut launcher.console().await, guest::READY).await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", launcher.pid())).unwrap();
    assert!(status.contains("\nSeccomp:\t2\n"), "there is a filter: {status}");
    launcher
}

#[tokio::test]
async fn statistics_are_of_qemu_and_its_disks() {
    let mut launcher = booted(|request| LaunchRequest { memory_balloon: true, ..request }).await;
    for _ in 0..2 {
        let statistics = launcher.statistics().await;
        assert!(statistics.resident_bytes > Some(0) && statistics.user_nanoseconds.is_some());
        assert!(statistics.vcpus[0].nanoseconds > Some(0), "{statistics:?}");
        assert_eq!(statistics.balloon.unwrap().actual_bytes, Some(64 << 20));
        let disk = &statistics.disks[0];
        assert!(disk.name == "root" && disk.reads.unwrap().requests > 0, "{disk:?}");
    }
    launcher.end().await;
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await;
    let _ = stream.shutdown().await;
}

/// A server of HTTP, with or without TLS; its port.
async fn server(tls: Option<TlsAcceptor>) -> u32 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            match tls.clone() {
                None => tokio::spawn(answer(stream)),
                Some(tls) => tokio::spawn(async move {
                    if let Ok(stream) = tls.accept(stream).await {
                        answer(stream).await;
                    }
                }),
            };
        }
    });
    port.into()
}

fn tls() -> TlsAcceptor {
    let certified = generate_simple_self_signed([HOST.to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    Arc::new(config).into()
}

fn get(address: &str, port: u32, tls: bool) -> Question {
    let to = Some(TcpSocket { address: address.to_owned(), port });
    Question::HttpGet(HttpGet { to, tls, path: "/".to_owned(), headers: Vec::new() })
}

/// What a name server answers; by UDP, that there is more than it can say.
fn found(question: &[u8], truncated: bool) -> Vec<u8> {
    let question = Message::from_vec(question).unwrap();
    let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
    let query = question.queries[0].clone();
    answer.metadata.truncation = truncated;
    if !truncated && query.query_type() == RecordType::A {
        let address = RData::A(A::new(127, 0, 0, 1));
        answer.add_answer(Record::from_rdata(query.name().clone(), 60, address));
    }
    answer.add_query(query);
    answer.to_vec().unwrap()
}

/// A name server that is asked by UDP and then by TCP, at an address of this process's own. `None` without the privilege.
async fn name_server() -> Option<IpAddr> {
    let address = Ipv4Addr::from_bits(0x7f00_0000 | (std::process::id() & 0x00ff_ffff));
    let at = SocketAddr::from((address, DNS));
    let socket = match UdpSocket::bind(at).await {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return None,
        bound => bound.unwrap(),
    };
    let listener = TcpListener::bind(at).await.unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            socket.send_to(&found(&buffer[..length], true), from).await.unwrap();
        }
    });
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                while let Ok(length) = stream.read_u16().await {
                    let mut question = vec![0; length.into()];
                    stream.read_exact(&mut question).await.unwrap();
                    let answer = found(&question, false);
                    stream.write_u16(u16::try_from(answer.len()).unwrap()).await.unwrap();
                    stream.write_all(&answer).await.unwrap();
                }
            });
        }
    });
    Some(address.into())
}

#[tokio::test]
async fn probes_connect_by_address_and_by_name() {
    let mut launcher = booted(|request| request).await;
    let (plain, encrypted) = (server(None).await, server(Some(tls())).await);
    let accepts = |address: &str| Question::TcpSocket(TcpSocket { address: address.to_owned(), port: plain });
    for question in [accepts("127.0.0.1"), get("127.0.0.1", plain, false), get("127.0.0.1", encrypted, true)]
    {
        assert_eq!(launcher.probe(question.clone(), &[], LONG).await, None, "{question:?}");
    }
    // Nothing listens there.
    let closed = launcher.probe(get("::1", 1, false), &[], LONG).await.unwrap();
    assert!(closed.contains("cannot connect to port 1"), "{closed}");
    let absent = ["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()];
    assert!(launcher.probe(accepts(HOST), &absent, 3).await.is_some(), "no name server is there");
    // What follows asks for port 53, which is root's.
    if let Some(server) = name_server().await {
        for question in [accepts(HOST), get(HOST, plain, false), get(HOST, encrypted, true)] {
            assert_eq!(launcher.probe(question.clone(), &[server], LONG).await, None, "{question:?}");
        }
    }
    launcher.end().await;
}

/// The guest has no agent: each question has an answer that says so.
#[tokio::test]
async fn questions_to_an_agent_that_is_not_there_are_answered() {
    let mut launcher = booted(|request| request).await;
    let command = vec!["true".to_owned()];
    for question in [Question::GuestAgentPing(GuestAgentPing {}), Question::Exec(Exec { command })] {
        let failure = launcher.probe(question.clone(), &[], 1).await;
        assert!(failure.is_some(), "{question:?}");
    }
    let request = AskAgentRequest { question: AgentQuestion::Users.into() };
    let asked = soon("an answer to AskAgent", launcher.client.ask_agent(request)).await.unwrap().into_inner();
    assert_eq!(asked.fault.unwrap().code(), Code::Conflict);
    let keys = AuthorizedKeys { user: "ada".to_owned(), keys: vec!["ssh-ed25519 A".to_owned()] };
    let request = SetCredentialsRequest { authorized_keys: vec![keys], passwords: Vec::new() };
    let set = soon("an answer to SetCredentials", launcher.client.set_credentials(request)).await;
    assert!(set.unwrap().into_inner().fault.is_some());
    launcher.end().await;
}

/// swtpm stores its state when the guest's firmware has started it; a thread of the launcher copies it.
#[tokio::test]
async fn the_state_of_a_tpm_is_kept() {
    let device = Some(extra_device::Device::Tpm(extra_device::Tpm {}));
    let tpm = ExtraDevice { field: "spec.domain.devices.tpm".into(), what: "a TPM".into(), device };
    let kept = tempfile::NamedTempFile::new().unwrap();
    let launcher = booted(|request| LaunchRequest {
        extra_devices: vec![tpm],
        tpm_state_path: kept.path().to_str().unwrap().to_owned(),
        ..request
    });
    launcher.await.end().await;
    assert!(kept.as_file().metadata().unwrap().len() > 0);
}

/// QEMU's threads are found and moved when the filter holds already.
#[tokio::test]
async fn a_vcpu_has_a_cpu_for_itself() {
    let placement = CpuPlacement::default();
    let launcher = booted(|request| LaunchRequest { cpu_placement: Some(placement), ..request }).await;
    let threads = std::fs::read_dir(format!("/proc/{}/task", launcher.qemu())).unwrap();
    let vcpu = threads
        .map(|thread| thread.unwrap().path())
        .find(|thread| std::fs::read_to_string(thread.join("comm")).unwrap().starts_with("CPU 0/"));
    let status = std::fs::read_to_string(vcpu.unwrap().join("status")).unwrap();
    let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t")).unwrap();
    assert!(cpus.parse::<u32>().is_ok(), "one CPU: {cpus}");
    launcher.end().await;
}
