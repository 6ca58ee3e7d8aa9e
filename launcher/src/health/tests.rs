use std::sync::Arc;

use rcgen::generate_simple_self_signed;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use vireo_proto::launcher::probe_request::{Exec, GuestAgentPing, Header, HttpGet};

use super::*;
use crate::agent::requests;

/// What a server does with a request, given its head.
type Manner = fn(&str) -> (String, Then);

#[derive(Clone, Copy, PartialEq)]
enum Then {
    Close,
    Hold,
    /// The same again, without end.
    Repeat,
}

async fn serve(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), manner: Manner) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let (answer, then) = manner(&String::from_utf8_lossy(&head));
    while stream.write_all(answer.as_bytes()).await.is_ok() {
        match then {
            Then::Close => return drop(stream.shutdown().await),
            Then::Hold => return std::future::pending().await,
            Then::Repeat => {}
        }
    }
}

/// A server of this VM; its port.
async fn server(manner: Manner, tls: Option<TlsAcceptor>) -> u32 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let tls = tls.clone();
            tokio::spawn(async move {
                match tls {
                    None => serve(&mut stream, manner).await,
                    Some(tls) => {
                        if let Ok(mut stream) = tls.accept(stream).await {
                            serve(&mut stream, manner).await;
                        }
                    }
                }
            });
        }
    });
    port.into()
}

fn to(port: u32) -> TcpSocket {
    TcpSocket { address: "127.0.0.1".to_owned(), port }
}

async fn reported(question: Question) -> ProbeResponse {
    let (agent, _requests) = requests();
    run(&agent, ProbeRequest { timeout_seconds: 1, question: Some(question), resolver: None }).await
}

async fn get(port: u32, tls: bool, path: &str) -> Option<String> {
    let get = HttpGet { to: Some(to(port)), tls, path: path.to_owned(), headers: Vec::new() };
    let reported = reported(Question::HttpGet(get)).await;
    assert_eq!(reported.fault, None);
    reported.failure
}

fn status(code: u32) -> (String, Then) {
    (format!("HTTP/1.1 {code} What\r\nContent-Length: 0\r\n\r\n"), Then::Close)
}

fn redirects(place: &str) -> (String, Then) {
    (format!("HTTP/1.1 302 Found\r\nLocation: {place}\r\n\r\n"), Then::Close)
}

/// Whatever a server does, there is an answer in time, and it names the cause.
#[tokio::test]
async fn every_manner_of_an_http_server() {
    let rows: [(Manner, &str); 19] = [
        (|_| status(200), ""),
        (|_| status(204), ""),
        (|_| status(399), ""),
        (|_| status(404), "statuscode: 404"),
        (|_| status(500), "statuscode: 500"),
        (|_| status(101), "statuscode: 101"),
        // Elsewhere, without location, on to another path, in a circle.
        (|_| redirects("http://192.0.2.1/"), ""),
        (|_| redirects("https://example.org/"), ""),
        (|_| redirects("file:///etc/passwd"), ""),
        (|_| status(301), ""),
        (
            |head| if head.starts_with("GET /next?a ") { status(503) } else { redirects("next?a") },
            "statuscode: 503",
        ),
        (|_| redirects("/again"), "stopped after 10 redirects"),
        (|_| (String::new(), Then::Hold), "no answer within 1 s"),
        (|_| (String::new(), Then::Close), "no HTTP answer"),
        (|_| ("SSH-2.0-what\r\n".to_owned(), Then::Hold), "no HTTP answer"),
        (|_| ("HTTP/1.1 200 OK\r\nX: ".to_owned() + &"y".repeat(1 << 20), Then::Hold), "no HTTP answer"),
        (|_| ("HTTP/1.1 200 OK\r\n".to_owned() + &"X: y\r\n".repeat(4096), Then::Hold), "no HTTP answer"),
        (|_| ("HTTP/1.1 100 Continue\r\n\r\n".to_owned(), Then::Repeat), "no answer within 1 s"),
        // Its body is not read.
        (|_| ("HTTP/1.1 200 OK\r\n\r\nand so on, ".to_owned(), Then::Repeat), ""),
    ];
    for (number, (manner, failure)) in rows.into_iter().enumerate() {
        let port = server(manner, None).await;
        let reported = get(port, false, "/").await;
        match failure {
            "" => assert_eq!(reported, None, "row {number}"),
            failure => {
                assert!(
                    reported.as_ref().is_some_and(|reported| reported.contains(failure)),
                    "row {number}: {reported:?}"
                )
            }
        }
    }
}

#[tokio::test]
async fn a_request_is_what_was_asked_for() {
    let port = server(
        |head| {
            let wanted = [
                "GET /a%20b?c=d ",
                "\r\nhost: web.example\r\n",
                "\r\nx-y: z\r\n",
                "\r\nuser-agent: kube-probe/",
            ];
            let has_all = wanted.iter().all(|part| head.contains(part));
            if has_all && !head.contains("127.0.0.1") { status(200) } else { status(400) }
        },
        None,
    )
    .await;
    let header = |name: &str, value: &str| Header { name: name.to_owned(), value: value.to_owned() };
    let headers = vec![header("Host", "web.example"), header("X-Y", "z")];
    let get = HttpGet { to: Some(to(port)), tls: false, path: "/a b?c=d".to_owned(), headers };
    assert_eq!(reported(Question::HttpGet(get)).await, ProbeResponse::default());
}

#[tokio::test]
async fn any_certificate_will_do_and_none_will_not() {
    let certified = generate_simple_self_signed(["elsewhere.example".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    let port = server(|_| status(200), Some(Arc::new(config).into())).await;
    assert_eq!(get(port, true, "/").await, None);
    assert!(get(port, false, "/").await.is_some());
    let plain = server(|_| ("x\r\n\r\n".repeat(64), Then::Hold), None).await;
    assert!(get(plain, true, "/").await.is_some());
}

#[tokio::test]
async fn a_socket_is_well_when_it_is_accepted() {
    let port = server(|_| (String::new(), Then::Hold), None).await;
    assert_eq!(reported(Question::TcpSocket(to(port))).await, ProbeResponse::default());
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let failure = reported(Question::TcpSocket(to(closed.into()))).await.failure.unwrap();
    assert!(failure.starts_with(&format!("cannot connect to port {closed}: ")), "{failure}");
}

#[tokio::test]
async fn an_invalid_probe_has_no_result() {
    let get = |path: &str, name: &str| {
        let headers = vec![Header { name: name.to_owned(), value: String::new() }];
        Question::HttpGet(HttpGet { to: Some(to(80)), tls: false, path: path.to_owned(), headers })
    };
    for question in [
        Question::TcpSocket(TcpSocket::default()),
        Question::TcpSocket(to(0)),
        Question::TcpSocket(to(65536)),
        Question::HttpGet(HttpGet::default()),
        get("@example.org/", "x"),
        get(":80/", "x"),
        get("/", "x y"),
    ] {
        let reported = reported(question.clone()).await;
        assert!(reported.failure.is_none() && reported.fault.is_some(), "{question:?}: {reported:?}");
    }
    let (agent, _requests) = requests();
    assert!(run(&agent, ProbeRequest::default()).await.fault.is_some());
}

/// There is a port, without a server.
#[tokio::test(start_paused = true)]
async fn an_agent_that_is_not_there_is_a_failure() {
    let (agent, asked) = requests();
    let requests = [
        Question::GuestAgentPing(GuestAgentPing {}),
        Question::Exec(Exec { command: vec!["true".to_owned()] }),
    ];
    for question in requests.clone() {
        let reported =
            run(&agent, ProbeRequest { timeout_seconds: 3, question: Some(question), resolver: None }).await;
        assert_eq!(reported.failure.as_deref(), Some("no answer within 3 s"));
    }
    drop(asked);
    for question in requests {
        let reported =
            run(&agent, ProbeRequest { timeout_seconds: 3, question: Some(question), resolver: None }).await;
        assert_eq!(reported.failure.as_deref(), Some("VMI does not have guest agent connected"));
    }
}

/// A name server that knows one host, which is this VM; where it is asked.
async fn name_server(host: &'static str) -> SocketAddr {
    use hickory_resolver::proto::op::{Message, ResponseCode};
    use hickory_resolver::proto::rr::rdata::A;
    use hickory_resolver::proto::rr::{RData, Record, RecordType};
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let question = Message::from_vec(&buffer[..length]).unwrap();
            let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
            let query = question.queries[0].clone();
            match query.name().to_string() == host {
                true if query.query_type() == RecordType::A => {
                    let address = RData::A(A::new(127, 0, 0, 1));
                    answer.add_answer(Record::from_rdata(query.name().clone(), 60, address));
                }
                true => {}
                false => answer.metadata.response_code = ResponseCode::NXDomain,
            }
            answer.add_query(query);
            socket.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
        }
    });
    address
}

#[tokio::test]
async fn names_are_resolved_by_the_vms_name_servers_in_its_search_domains() {
    let server = name_server("db.shop.example.").await;
    let names = |servers: &[SocketAddr]| Names {
        servers: servers.to_vec(),
        search: vec!["web.example".parse().unwrap(), "shop.example".parse().unwrap()],
    };
    let here: Vec<IpAddr> = vec![[127, 0, 0, 1].into()];
    for host in ["db.shop.example", "db.shop.example.", "db"] {
        assert_eq!(names(&[server]).lookup(host).await.as_ref(), Ok(&here), "{host}");
    }
    let failure = names(&[server]).lookup("cache").await.unwrap_err();
    assert!(failure.starts_with("cannot resolve cache: "), "{failure}");
    let failure = names(&[]).lookup("db").await.unwrap_err();
    assert_eq!(failure, "cannot resolve db: the VM has no name server");
}

#[tokio::test]
async fn a_probe_asks_the_host_that_it_names() {
    let server = name_server("db.shop.example.").await;
    let names = Names { servers: vec![server], search: Vec::new() };
    let well =
        |head: &str| if head.contains("\r\nhost: db.shop.example:") { status(200) } else { status(400) };
    let port = self::server(well, None).await;
    let to = TcpSocket { address: "DB.shop.example".to_owned(), port };
    accepts(Target::try_from(&to).unwrap(), &names).await.unwrap();
    let get = HttpGet { to: Some(to), tls: false, path: "/".to_owned(), headers: Vec::new() };
    http::get(http::Request::try_from(get).unwrap(), &names).await.unwrap();
}

/// A name server that is silent is a failure of the probe, in its time.
#[tokio::test]
async fn an_unresolvable_name_takes_no_longer_than_the_probe() {
    let (agent, _requests) = requests();
    let resolver = |servers: &[&str]| wire_resolver(servers);
    let to = TcpSocket { address: "db".to_owned(), port: 1 };
    // TEST-NET-1 (RFC 5737) has no hosts.
    let request = ProbeRequest {
        timeout_seconds: 1,
        question: Some(Question::TcpSocket(to)),
        resolver: Some(resolver(&["192.0.2.1"])),
    };
    let failure = run(&agent, request.clone()).await.failure.unwrap();
    assert!(failure.contains("no answer within 1 s") || failure.contains("cannot resolve db"), "{failure}");
    let odd = ProbeRequest { resolver: Some(resolver(&["ns.example"])), ..request };
    assert!(run(&agent, odd).await.fault.is_some());
}

fn wire_resolver(servers: &[&str]) -> vireo_proto::launcher::probe_request::Resolver {
    vireo_proto::launcher::probe_request::Resolver {
        servers: servers.iter().map(|server| (*server).to_owned()).collect(),
        search_domains: Vec::new(),
    }
}
