//! Commands that read and write objects: their requests, and what they print, before a server played by the test.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

use crate::handler::{TIMEOUT, finish};

pub(crate) const VM: &str = "/apis/kubevirt.io/v1/namespaces/prod/virtualmachines/web";
const SECRETS: &str = "/api/v1/namespaces/prod/secrets";

/// A request: its method and path, and its body.
async fn request(stream: &mut TcpStream) -> (String, Value) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a whole request"));
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or_default()];
    stream.read_exact(&mut body).await.expect("a whole body");
    let line = head.lines().next().unwrap_or_default();
    let line = line.strip_suffix(" HTTP/1.1").unwrap_or(line).to_owned();
    (line, if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).expect("JSON") })
}

/// What `virtctl` sends while it gets these answers, its exit code, and what it prints.
pub(crate) async fn virtctl(
    args: &[&str],
    answers: &[(u16, Value)],
) -> (Vec<(String, Value)>, Option<i32>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let server = format!("http://{}", listener.local_addr().expect("a port"));
    let child = Command::new(env!("CARGO_BIN_EXE_virtctl"))
        .args(["--server", &server, "-n", "prod"])
        .args(args)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("virtctl starts");
    let mut requests = Vec::new();
    for (code, answer) in answers {
        let accepted = tokio::time::timeout(TIMEOUT, listener.accept()).await;
        let mut stream = accepted.expect("virtctl connects").expect("a connection").0;
        requests.push(request(&mut stream).await);
        let body = answer.to_string();
        let head = format!("HTTP/1.1 {code} X\r\ncontent-length: {}\r\nconnection: close", body.len());
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.expect("virtctl reads");
    }
    let output = finish(child).await;
    let printed = [output.stdout, output.stderr].concat();
    (requests, output.status.code(), String::from_utf8_lossy(&printed).into_owned())
}

pub(crate) fn status(code: u16, message: &str) -> (u16, Value) {
    (code, json!({"kind": "Status", "message": message, "code": code}))
}

pub(crate) fn lines(requests: &[(String, Value)]) -> Vec<&str> {
    requests.iter().map(|(line, _)| line.as_str()).collect()
}

#[tokio::test]
async fn a_service_selects_the_launcher_of_a_vm() {
    let args =
        ["expose", "vm", "web", "--name=web-ssh", "--port=5555", "--target-port=22", "--type=NodePort"];
    let (requests, code, printed) = virtctl(
        &[&args[..], &["--node-port=30001", "--ip-family=IPv6,IPv4"]].concat(),
        &[(200, json!({})), (201, json!({}))],
    )
    .await;
    assert_eq!((code, printed.as_str()), (Some(0), "Service web-ssh successfully exposed for vm web\n"));
    assert_eq!(lines(&requests), [format!("GET {VM}"), "POST /api/v1/namespaces/prod/services".to_owned()]);
    let port = json!({"protocol": "TCP", "port": 5555, "targetPort": 22, "nodePort": 30001});
    assert_eq!(
        requests[1].1,
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web-ssh"}, "spec": {
            "ports": [port], "selector": {"vmi.kubevirt.io/id": "web"}, "type": "NodePort",
            "ipFamilies": ["IPv6", "IPv4"]}})
    );
}

#[tokio::test]
async fn without_a_port_all_ports_of_the_interfaces_are_exposed() {
    let interfaces =
        json!([{"name": "default", "ports": [{"name": "web", "port": 80}, {"port": 53, "protocol": "UDP"}]}]);
    let vmi = json!({"spec": {"domain": {"devices": {"interfaces": interfaces}}}});
    let expose = ["expose", "vmi", "web", "--name=s"];
    let (requests, code, _) = virtctl(&expose, &[(200, vmi), (201, json!({}))]).await;
    assert_eq!(code, Some(0));
    let ports = json!([{"name": "web", "protocol": "TCP", "port": 80}, {"name": "port-2", "protocol": "UDP", "port": 53}]);
    assert_eq!(requests[1].1["spec"]["ports"], ports);
    let (_, code, printed) = virtctl(&expose, &[(200, json!({}))]).await;
    assert!(code == Some(1) && printed.contains("couldn't find port via --port flag"), "{printed}");
}

#[tokio::test]
async fn a_replica_set_is_exposed_by_its_labels_alone() {
    let set = |selector: Value| (200, json!({"spec": {"selector": selector}}));
    let expose = ["expose", "vmirs", "web", "--name=s", "--port=80"];
    let labels = json!({"matchLabels": {"app": "web"}});
    let (requests, ..) = virtctl(&expose, &[set(labels), (201, json!({}))]).await;
    assert_eq!(requests[1].1["spec"]["selector"], json!({"app": "web"}));
    for (selector, why) in [
        (json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), "match expressions"),
        (json!({}), "missing label information for vmirs: web"),
    ] {
        let (_, code, printed) = virtctl(&expose, &[set(selector)]).await;
        assert!(code == Some(1) && printed.contains(why), "{printed}");
    }
    let (_, code, printed) = virtctl(&["expose", "pod", "web", "--name=s", "--port=80"], &[]).await;
    assert!(code == Some(1) && printed.contains("unsupported resource type: pod"), "{printed}");
}

fn vm(credentials: Value) -> (u16, Value) {
    let metadata = json!({"name": "web", "uid": "u", "resourceVersion": "7"});
    let spec = json!({"template": {"spec": {"accessCredentials": credentials}}});
    (200, json!({"metadata": metadata, "spec": spec}))
}

fn of_user(secret: &str) -> Value {
    json!({"sshPublicKey": {"source": {"secret": {"secretName": secret}},
        "propagationMethod": {"qemuGuestAgent": {"users": ["ada"]}}}})
}

fn secret(owner: &str, data: Value) -> (u16, Value) {
    let owners = json!([{"kind": "VirtualMachine", "name": "web", "uid": owner}]);
    (200, json!({"metadata": {"ownerReferences": owners, "resourceVersion": "9"}, "data": data}))
}

const ADD: [&str; 5] = ["credentials", "add-ssh-key", "--user=ada", "--value=ssh-rsa A", "web"];

#[tokio::test]
async fn a_key_is_added_to_the_secret_of_its_user() {
    let vm = || vm(json!([of_user("keys")]));
    let (requests, code, printed) = virtctl(&ADD, &[vm(), secret("u", json!({})), (200, json!({}))]).await;
    assert_eq!((code, printed.as_str()), (Some(0), "Successfully added the key to secret \"keys\"\n"));
    let path = format!("{SECRETS}/keys");
    assert_eq!(lines(&requests), [format!("GET {VM}"), format!("GET {path}"), format!("PATCH {path}")]);
    let data = requests[2].1["data"].as_object().expect("data");
    let (name, value) = data.iter().next().expect("an entry");
    assert!(data.len() == 1 && name.starts_with("ssh-key-") && value == "c3NoLXJzYSBB", "{data:?}");

    let has = secret("u", json!({"a": "c3NoLXJzYSBB"}));
    let (_, code, printed) = virtctl(&ADD, &[vm(), has]).await;
    assert_eq!((code, printed.as_str()), (Some(0), "Secret \"keys\" already contains this SSH key.\n"));

    let (_, code, printed) = virtctl(&ADD, &[vm(), secret("other", json!({}))]).await;
    let why = "secret keys does not have an owner reference pointing to VM web";
    assert!(code == Some(1) && printed.contains(why), "{printed}");
}

#[tokio::test]
async fn a_secret_is_created_for_a_user_who_has_none() {
    let (requests, code, printed) = virtctl(
        &ADD,
        &[
            vm(json!([of_user("other")["x"]])),
            status(404, "not found"),
            (201, json!({"metadata": {"name": "web-ssh-key-x"}})),
            (200, json!({})),
        ],
    )
    .await;
    assert_eq!((code, printed.as_str()), (Some(0), ""));
    assert_eq!(requests[2].0, format!("POST {SECRETS}"));
    assert_eq!(requests[2].1["metadata"]["generateName"], "web-ssh-key-");
    assert_eq!(requests[2].1["metadata"]["ownerReferences"][0]["uid"], "u");
    assert_eq!(requests[3].0, format!("PATCH {VM}"));
    let patch = &requests[3].1;
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    assert_eq!(patch["spec"]["template"]["spec"]["accessCredentials"][1], of_user("web-ssh-key-x"));

    let (_, code, printed) = virtctl(&ADD, &[vm(json!([])), (200, json!({}))]).await;
    assert!(code == Some(1) && printed.contains("Use --force flag to update a running VM"), "{printed}");
}

#[tokio::test]
async fn a_key_is_removed_and_a_password_set() {
    let remove = ["credentials", "remove-ssh-key", "-u", "ada", "--value=ssh-rsa A", "web"];
    let keys = secret("u", json!({"a": "c3NoLXJzYSBB"}));
    let (requests, code, _) = virtctl(
        &remove,
        &[vm(json!([of_user("keys")])), keys.clone(), status(409, "stale"), keys, (200, json!({}))],
    )
    .await;
    assert_eq!(code, Some(0));
    assert_eq!(requests[4].1, json!({"metadata": {"resourceVersion": "9"}, "data": {"a": null}}));
    let (_, code, printed) = virtctl(&remove, &[vm(json!([]))]).await;
    assert_eq!((code, printed.as_str()), (Some(0), "No secrets associated with user ada\n"));

    let set = ["credentials", "set-password", "-u", "ada", "-p", "x", "web"];
    let password = json!([{"userPassword": {"source": {"secret": {"secretName": "passwords"}},
        "propagationMethod": {"qemuGuestAgent": {}}}}]);
    let (requests, code, printed) =
        virtctl(&set, &[vm(password), secret("u", json!({})), (200, json!({}))]).await;
    assert_eq!((code, printed.as_str()), (Some(0), "Successfully set password in secret \"passwords\"\n"));
    assert_eq!(requests[2].1, json!({"data": {"ada": "eA=="}}));
    let (_, code, printed) = virtctl(&set, &[vm(json!([]))]).await;
    assert!(code == Some(1) && printed.contains("no secrets assigned to UserPassword"), "{printed}");
}

#[tokio::test]
async fn settings_of_the_installation_are_shown_and_set() {
    let configuration = json!({
        "developerConfiguration": {"logVerbosity": {"virtHandler": 5}},
        "permittedHostDevices": {"pciHostDevices": [{"resourceName": "a/nic"}], "mediatedDevices": [{"resourceName": "a/gpu"}]},
    });
    let kubevirt =
        json!({"metadata": {"name": "kv", "namespace": "vireo"}, "spec": {"configuration": configuration}});
    let list = || (200, json!({"items": [kubevirt]}));
    let (requests, code, printed) = virtctl(&["permitted-devices"], &[list()]).await;
    assert_eq!(lines(&requests), ["GET /apis/kubevirt.io/v1/namespaces/prod/kubevirts"]);
    let expected = "Permitted Devices: \nHost Devices: \na/nic \nGPU Devices: \na/gpu\n";
    assert_eq!((code, printed.as_str()), (Some(0), expected));
    let (_, code, printed) = virtctl(&["permitted-devices"], &[(200, json!({"items": []}))]).await;
    assert!(code == Some(1) && printed.contains("No KubeVirt resource in \"prod\" namespace"), "{printed}");

    let verbosity = ["adm", "log-verbosity"];
    let show = [&verbosity[..], &["--virt-handler", "--virt-api"]].concat();
    let (_, code, printed) = virtctl(&show, &[list()]).await;
    assert_eq!((code, printed.as_str()), (Some(0), "virt-api = 2\nvirt-handler = 5\n"));
    let set = [&verbosity[..], &["--virt-api=3"]].concat();
    let (requests, code, printed) = virtctl(&set, &[list(), (200, json!({}))]).await;
    assert_eq!(
        (code, printed.as_str()),
        (Some(0), "successfully set the verbosity of the KubeVirt component(s)\n")
    );
    assert_eq!(requests[1].0, "PATCH /apis/kubevirt.io/v1/namespaces/vireo/kubevirts/kv");
    let patch =
        json!({"spec": {"configuration": {"developerConfiguration": {"logVerbosity": {"virtAPI": 3}}}}});
    assert_eq!(requests[1].1, patch);
    let (_, code, printed) = virtctl(&show, &[status(404, "no such path")]).await;
    assert!(code == Some(1) && printed.contains("could not list KubeVirt CRs"), "{printed}");
}

#[tokio::test]
async fn what_a_vm_depends_on_is_printed() {
    let args = ["objectgraph", "web", "--exclude-optional", "--selector=a=b"];
    let (requests, code, printed) = virtctl(&args, &[(200, json!({"children": []}))]).await;
    assert_eq!((code, printed.as_str()), (Some(0), "{\n  \"children\": []\n}\n"));
    let path = VM.replace("/kubevirt.io/", "/subresources.kubevirt.io/");
    assert_eq!(lines(&requests), [format!("GET {path}/objectgraph")]);
    let options = json!({"includeOptionalNodes": false, "labelSelector": {"matchLabels": {"a": "b"}}});
    assert_eq!(requests[0].1, options);
}

#[tokio::test]
async fn what_a_server_lacks_is_reported_with_its_reason() {
    let why = "is not available: for a reason";
    for (line, request) in [
        ("guestfs data --kvm", "GET /apis/subresources.kubevirt.io/v1/guestfs"),
        (
            "memory-dump get web --claim-name=c",
            "PUT /apis/subresources.kubevirt.io/v1/namespaces/prod/virtualmachines/web/memorydump",
        ),
        (
            "memory-dump get web",
            "PUT /apis/subresources.kubevirt.io/v1/namespaces/prod/virtualmachines/web/memorydump",
        ),
        (
            "memory-dump remove web",
            "PUT /apis/subresources.kubevirt.io/v1/namespaces/prod/virtualmachines/web/removememorydump",
        ),
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let (requests, code, printed) = virtctl(&args, &[status(400, why)]).await;
        assert_eq!(lines(&requests), [request], "{line}");
        assert!(code == Some(1) && printed.contains(why), "{line}: {printed}");
    }
    let export = ["vmexport", "create", "one", "--vm=web"];
    let (requests, code, printed) = virtctl(&export, &[status(404, "no such path")]).await;
    assert_eq!(lines(&requests), ["GET /apis/export.kubevirt.io"]);
    assert!(code == Some(1) && printed.contains("the server has no VirtualMachineExports"), "{printed}");
    let (_, code, printed) = virtctl(&["memory-dump", "download", "web"], &[]).await;
    assert!(code == Some(1) && printed.contains("needs a VirtualMachineExport"), "{printed}");
}
