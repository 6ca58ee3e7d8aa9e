use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::*;
use crate::manifests::Problem;
use crate::settings::Settings;

fn node(dir: &Path) -> Arc<Node> {
    Arc::new(Node::new(Settings {
        manifests: dir.join("manifests"),
        state_dir: dir.to_owned(),
        hypervisor: vireo_api::spec::HypervisorChoice::Auto,
        vm_cidr: "10.201.0.0/16".parse().unwrap(),
        launcher: "virt-launcher".into(),
        qemu: None,
        node_name: "node1".to_owned(),
    }))
}

fn vmi(namespace: &str, name: &str) -> (Key, VirtualMachineInstance) {
    let mut vmi = VirtualMachineInstance::default();
    vmi.metadata.namespace = namespace.to_owned();
    vmi.metadata.name = name.to_owned();
    (Key { namespace: namespace.to_owned(), name: name.to_owned() }, vmi)
}

/// Asks the endpoint as curl would; gives the code and the JSON body.
async fn ask(node: &Arc<Node>, path: &str) -> (u16, serde_json::Value) {
    let socket = node.state.endpoint();
    let listener = bind(&socket).unwrap();
    let server = tokio::spawn(serve(listener, Arc::clone(node)));
    let mut stream = UnixStream::connect(&socket).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
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
    let node = node(dir.path());
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
    let node = node(dir.path());
    let (key, vmi) = vmi("default", "one");
    node.show(&key, Some(vmi));
    node.refuse(vec![Refusal {
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
    for (path, expected, said) in rows {
        let (code, status) = ask(&node, &path).await;
        assert_eq!((code, status["code"].as_u64()), (expected, Some(expected.into())), "{path}");
        assert_eq!((status["kind"].as_str(), status["status"].as_str()), (Some("Status"), Some("Failure")));
        let message = status["message"].as_str().unwrap();
        assert!(message.contains(said), "{path}: {message}");
    }
}
