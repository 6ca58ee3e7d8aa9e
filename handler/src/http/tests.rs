mod portforward;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::*;
use crate::manifests::Problem;

fn vmi(namespace: &str, name: &str) -> (Key, VirtualMachineInstance) {
    let mut vmi = VirtualMachineInstance::default();
    vmi.metadata.namespace = namespace.to_owned();
    vmi.metadata.name = name.to_owned();
    (Key { namespace: namespace.to_owned(), name: name.to_owned() }, vmi)
}

/// Asks the endpoint as curl would; gives the code and the JSON body.
async fn ask(node: &Arc<Node>, path: &str) -> (u16, serde_json::Value) {
    request(node, "GET", path).await
}

async fn request(node: &Arc<Node>, method: &str, path: &str) -> (u16, serde_json::Value) {
    let socket = node.state.endpoint();
    let listener = bind(&socket).unwrap();
    let server = tokio::spawn(serve(listener, Arc::clone(node)));
    let mut stream = UnixStream::connect(&socket).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    server.abort();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, serde_json::from_str(body).unwrap())
}

#[tokio::test]
async fn vmis_are_served_as_kubevirt_does() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of_a_test(dir.path());
    for (namespace, name) in [("default", "one"), ("prod", "two")] {
        let (key, vmi) = vmi(namespace, name);
        node.show(&key, Some(vmi));
    }
    let (code, all) = ask(&node, "/apis/kubevirt.io/v1/virtualmachineinstances").await;
    assert_eq!((code, all["kind"].as_str()), (200, Some("VirtualMachineInstanceList")));
    assert_eq!(all["items"].as_array().map(Vec::len), Some(2));
    let (_, some) = ask(&node, "/apis/kubevirt.io/v1/namespaces/prod/virtualmachineinstances").await;
    assert_eq!(some["items"][0]["metadata"]["name"], "two");
    let (code, one) = ask(&node, "/apis/kubevirt.io/v1/namespaces/prod/virtualmachineinstances/two").await;
    assert_eq!((code, one["metadata"]["namespace"].as_str()), (200, Some("prod")));
}

#[tokio::test]
async fn errors_are_status_objects() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of_a_test(dir.path());
    let (key, vmi) = vmi("default", "one");
    node.show(&key, Some(vmi));
    node.set_rejections(vec![Rejection {
        file: "bad.yaml".to_owned(),
        document: Some(1),
        namespace: "default".to_owned(),
        name: "bad".to_owned(),
        problems: vec![Problem { field: "spec.domain.memory".to_owned(), message: "is needed".to_owned() }],
    }])
    .unwrap();
    let console = |name: &str| format!("/v1/namespaces/default/virtualmachineinstances/{name}/console");
    let rows = [
        (
            "/apis/kubevirt.io/v1/namespaces/prod/virtualmachineinstances/one".to_owned(),
            404,
            "\"one\" not found",
        ),
        (
            "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances/bad".to_owned(),
            404,
            "spec.domain.memory: is needed",
        ),
        ("/nonsense".to_owned(), 404, "/nonsense"),
        (console("none"), 404, "not found"),
        (console("one"), 400, "VMI is not running"),
    ];
    let (code, status) = request(&node, "DELETE", &rows[0].0).await;
    assert_eq!((code, status["reason"].as_str()), (405, Some("MethodNotAllowed")));
    for (path, expected, said) in rows {
        let (code, status) = ask(&node, &path).await;
        assert_eq!((code, status["code"].as_u64()), (expected, Some(expected.into())), "{path}");
        assert_eq!((status["kind"].as_str(), status["status"].as_str()), (Some("Status"), Some("Failure")));
        let message = status["message"].as_str().unwrap();
        assert!(message.contains(said), "{path}: {message}");
    }
}

#[tokio::test]
async fn vsock_ports_are_of_running_guests_with_the_device() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of_a_test(dir.path());
    let answers = async |phase: &str, attached: bool, query: &str| {
        let (key, mut vmi) = vmi("default", "one");
        vmi.spec.domain.devices.autoattach_vsock = attached.then_some(true);
        // No guest has it: it would have to be the VMI's.
        (vmi.status.phase, vmi.status.vsock_cid) = (phase.to_owned(), Some(u32::MAX - 1));
        node.show(&key, Some(vmi));
        let path = format!("/v1/namespaces/default/virtualmachineinstances/one/vsock{query}");
        let (code, status) = ask(&node, &path).await;
        (code, status["message"].as_str().unwrap().to_owned())
    };
    assert_eq!(answers("Running", false, "").await, (400, "VSOCK is not attached.".to_owned()));
    assert_eq!(answers("Scheduled", true, "").await, (400, "VMI is not running".to_owned()));
    for (query, said) in [
        ("", "port: Invalid value: \"\": "),
        ("?port=0&tls=false", "port: Invalid value: \"0\": "),
        ("?port=4294967296&tls=false", "port: Invalid value: \"4294967296\": "),
        ("?port=7000", "tls: Unsupported value: \"true\": "),
        ("?port=7000&tls=false", "a VSOCK connection is a websocket: "),
    ] {
        let (code, message) = answers("Running", true, query).await;
        assert!(code == 400 && message.starts_with(said), "{query}: {code} {message}");
    }
    let server = tokio::spawn(serve(bind(&node.state.endpoint()).unwrap(), Arc::clone(&node)));
    let Err(tokio_tungstenite::tungstenite::Error::Http(answer)) =
        try_open(&node, "vsock?port=7000&tls=false").await
    else {
        panic!("a guest answers that there is not");
    };
    let message = String::from_utf8_lossy(answer.body().as_deref().unwrap_or_default()).into_owned();
    assert_eq!(answer.status(), 500);
    assert!(message.contains("cannot connect to VSOCK port 7000 of the guest: "), "{message}");
    server.abort();
}

/// A running VMI whose console is a socket of the test's own.
async fn with_console()
-> (tempfile::TempDir, Arc<Node>, UnixListener, tokio::task::JoinHandle<io::Result<()>>) {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of_a_test(dir.path());
    let uid = uuid::Uuid::from_u128(7);
    let (key, mut vmi) = vmi("default", "one");
    vmi.metadata.uid = uid.to_string();
    vmi.status.phase = "Running".to_owned();
    node.show(&key, Some(vmi));
    node.state.vmi_dir(uid).create().unwrap();
    let console = UnixListener::bind(node.state.vmi_dir(uid).console_socket()).unwrap();
    let server = tokio::spawn(serve(bind(&node.state.endpoint()).unwrap(), Arc::clone(&node)));
    (dir, node, console, server)
}

type Opened = tokio_tungstenite::WebSocketStream<UnixStream>;

/// Opens one of the streams of the VMI.
async fn open(node: &Node, part: &str) -> Opened {
    try_open(node, part).await.unwrap()
}

async fn try_open(node: &Node, part: &str) -> Result<Opened, tokio_tungstenite::tungstenite::Error> {
    use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
    let url = format!("ws://handler/v1/namespaces/default/virtualmachineinstances/one/{part}");
    let mut request = url.into_client_request().unwrap();
    request.headers_mut().insert("Sec-WebSocket-Protocol", "plain.kubevirt.io".parse().unwrap());
    let stream = UnixStream::connect(node.state.endpoint()).await.unwrap();
    let (socket, answer) = tokio_tungstenite::client_async(request, stream).await?;
    assert_eq!(answer.headers()["sec-websocket-protocol"], "plain.kubevirt.io");
    Ok(socket)
}

#[tokio::test]
async fn a_console_begins_with_history_for_who_asks() {
    use futures_util::StreamExt as _;
    use tokio_tungstenite::tungstenite::Message;

    let (_dir, node, live, server) = with_console().await;
    let vmi_dir = node.state.vmi_dir(uuid::Uuid::from_u128(7));
    let mut old = open(&node, "console?history=true").await;
    let (mut guest, _) = live.accept().await.unwrap();
    guest.write_all(b"a launcher of an earlier release").await.unwrap();
    let said = Message::binary(b"a launcher of an earlier release".to_vec());
    assert_eq!(old.next().await.unwrap().unwrap(), said);

    let with_history = UnixListener::bind(vmi_dir.console_history_socket()).unwrap();
    let mut client = open(&node, "console?history=true").await;
    let (mut guest, _) = with_history.accept().await.unwrap();
    guest.write_all(b"\0\0\0\x04boot").await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap(), Message::text(r#"{"historyBytes":4}"#));
    assert_eq!(client.next().await.unwrap().unwrap(), Message::binary(b"boot".to_vec()));
    for live_only in ["console", "console?history=false"] {
        let mut client = open(&node, live_only).await;
        let (mut guest, _) = live.accept().await.unwrap();
        guest.write_all(b"now").await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap(), Message::binary(b"now".to_vec()));
    }
    server.abort();
}

#[tokio::test]
async fn a_console_is_binary_frames_both_ways_and_ends_with_a_normal_close() {
    use futures_util::{SinkExt as _, StreamExt as _};
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

    let (_dir, node, console, server) = with_console().await;
    let (mut client, mut other) = (open(&node, "console").await, open(&node, "console").await);
    let (mut guest, _) = console.accept().await.unwrap();
    let (mut guest_of_other, _) = console.accept().await.unwrap();
    guest.write_all(b"login: \xff\x00").await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap(), Message::binary(b"login: \xff\x00".to_vec()));

    client.send(Message::text("not for the guest")).await.unwrap();
    client.send(Message::binary(b"root\r".to_vec())).await.unwrap();
    let mut typed = [0; 5];
    guest.read_exact(&mut typed).await.unwrap();
    assert_eq!(&typed, b"root\r");

    // The guest's last words arrive before the end does.
    guest.write_all(b"Power down").await.unwrap();
    drop(guest);
    assert_eq!(client.next().await.unwrap().unwrap(), Message::binary(b"Power down".to_vec()));
    let Message::Close(Some(frame)) = client.next().await.unwrap().unwrap() else { panic!("no close") };
    assert_eq!(frame.code, CloseCode::Normal);

    // Another client is not disturbed, and the console learns that it left.
    guest_of_other.write_all(b"still here").await.unwrap();
    assert_eq!(other.next().await.unwrap().unwrap(), Message::binary(b"still here".to_vec()));
    other.close(None).await.unwrap();
    assert_eq!(guest_of_other.read(&mut typed).await.unwrap(), 0);
    server.abort();
}
