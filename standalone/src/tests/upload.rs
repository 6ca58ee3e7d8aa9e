//! Images that come for claims.

use std::convert::Infallible;

use futures_util::stream;
use vireo_apiserver::store::Change;

use super::*;

const TOKENS: &str = "/apis/upload.cdi.kubevirt.io/v1beta1/namespaces/default/uploadtokenrequests";

/// A claim that waits for an image, and its disk of 1 MiB.
async fn world() -> (World, String) {
    let world = World::new();
    let annotations = json!({"cdi.kubevirt.io/storage.upload.target": ""});
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "annotations": annotations},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}});
    let (code, made) = world.ask("POST", "/api/v1/namespaces/default/persistentvolumeclaims", claim).await;
    assert_eq!(code, 201, "{made}");
    change(&world, |claim| claim["status"]["phase"] = json!("Bound"));
    world.cdi.uploads.files.provide("default", "data", 1 << 20).unwrap();
    let (code, token) = world.ask("POST", TOKENS, json!({"spec": {"pvcName": "data"}})).await;
    assert_eq!((code, &token["kind"]), (201, &json!("UploadTokenRequest")));
    (world, token["status"]["token"].as_str().unwrap().to_owned())
}

fn change(world: &World, change: impl FnOnce(&mut Value)) {
    let key = crate::resource::storage::CLAIMS.key("default", "data");
    let mut value = world.server.store.get(&key).unwrap().to_value();
    change(&mut value);
    world.server.store.write(&key, |_, _| Ok::<_, Infallible>(Change::Put(value))).unwrap();
}

fn request(token: &str, body: Body) -> Request<Body> {
    let request = Request::post("/v1beta1/upload").header("Authorization", format!("Bearer {token}"));
    request.body(body).unwrap()
}

async fn send(world: &World, token: &str, body: Body) -> (u16, String) {
    let request = request(token, body);
    let response = Arc::clone(&world.cdi).answer(request).unwrap().answer.await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8(body.to_vec()).unwrap())
}

fn files(world: &World) -> Vec<String> {
    let disk = world.cdi.uploads.files.path("default", "data");
    let entries = std::fs::read_dir(disk.parent().unwrap()).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn an_image_comes_through_the_door_once() {
    let (world, token) = world().await;
    let config = world.ask("GET", "/apis/cdi.kubevirt.io/v1beta1/cdiconfigs/config", Value::Null).await.1;
    assert_eq!(config["status"]["uploadProxyURL"], "https://127.0.0.1:6443");
    assert_eq!(world.ask("GET", TOKENS, Value::Null).await.0, 405);
    for none in ["none", "../persistentvolumeclaims/data", "data?x=y"] {
        assert_eq!(world.ask("POST", TOKENS, json!({"spec": {"pvcName": none}})).await.0, 404, "{none}");
    }
    assert_eq!(world.ask("POST", TOKENS, json!({"spec": {}})).await.0, 422);
    assert!(Arc::clone(&world.cdi).answer(request("wrong", Body::empty())).is_none());
    assert_eq!(send(&world, &token, Body::from("an image")).await, (200, String::new()));
    let disk = std::fs::read(world.cdi.uploads.files.path("default", "data")).unwrap();
    assert_eq!(
        (disk.len(), &disk[..8], files(&world)),
        (1 << 20, &b"an image"[..], vec!["disk.img".to_owned()])
    );
    let claim =
        world.ask("GET", "/api/v1/namespaces/default/persistentvolumeclaims/data", Value::Null).await.1;
    assert_eq!(claim["metadata"]["annotations"]["cdi.kubevirt.io/storage.pod.phase"], "Succeeded");
    let (code, why) = send(&world, &token, Body::from("another")).await;
    assert!(code == 409 && why.contains("has its image already"), "{why}");
}

#[tokio::test]
async fn what_is_not_taken_leaves_nothing() {
    let (world, token) = world().await;
    let broken = stream::iter([Ok(axum::body::Bytes::from_static(b"half")), Err("the line is cut")]);
    for (body, code) in [
        (Body::from_stream(broken), 400),
        (Body::from("KDMV...."), 400),
        (Body::empty(), 400),
        (Body::from(vec![1; (1 << 20) + 1]), 413),
        (
            Body::from_stream(stream::repeat(Ok::<_, Infallible>(axum::body::Bytes::from(vec![1; 1 << 16])))),
            413,
        ),
    ] {
        assert_eq!(send(&world, &token, body).await.0, code);
        assert_eq!(files(&world), ["disk.img"]);
    }
    change(&world, |claim| claim["metadata"]["uid"] = json!("another"));
    assert_eq!(send(&world, &token, Body::from("x")).await.0, 404, "another of its name");
}

#[tokio::test]
async fn a_claim_in_use_keeps_its_disk() {
    let (world, token) = world().await;
    let mut instance = vmi("x");
    instance["spec"]["volumes"] = json!([{"name": "root", "persistentVolumeClaim": {"claimName": "data"}}]);
    instance["spec"]["domain"]["devices"]["disks"] = json!([{"name": "root", "disk": {"bus": "virtio"}}]);
    let subject =
        crate::uploads::token::read(world.server.tokens.signer(), &token, jiff::Timestamp::now()).unwrap();
    let mut upload = world.cdi.uploads.files.begin_upload("default", "data").unwrap();
    upload.write(b"an image").unwrap();
    let filled = upload.finish(&vireo_handler::jobs::JobContext::default()).unwrap();
    assert_eq!(world.ask("POST", VMIS, instance).await.0, 201);
    let late = world.cdi.uploads.put(&subject, filled).await.unwrap_err();
    assert!(late.to_string().contains("is used by"), "{late}");
    assert_eq!(files(&world), ["disk.img"]);
    let (code, why) = send(&world, &token, Body::from("x")).await;
    assert!(code == 409 && why.contains("is used by"), "{why}");
    // Unless it waits for the image.
    world.cdi.uploads.files.await_image("default", "data", true).unwrap();
    let (code, why) = send(&world, &token, Body::from("x")).await;
    assert_eq!(code, 200, "{why}");
}
