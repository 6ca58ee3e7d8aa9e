use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::json;

use super::*;

/// What a registry does wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// It ends each answer with a blob after so many bytes.
    CutsOff(usize),
    /// And it knows no ranges.
    CutsOffWithoutRanges(usize),
    /// It sends another blob.
    OtherBlob,
    /// It sends more.
    MoreBlob,
    /// It sends another manifest than the one of the digest.
    OtherManifest,
    /// It asks for a user, and sends who wants a blob elsewhere.
    Redirects,
    /// It sends a byte of a manifest now and then.
    SlowManifest,
    /// It sends so many bytes of a blob, and no more.
    Silent(usize),
}

struct Served {
    documents: HashMap<String, Vec<u8>>,
    fault: Fault,
    /// The ranges that were asked for.
    ranges: Mutex<Vec<String>>,
    /// The credentials that came with requests for blobs.
    credentials: Mutex<Vec<Option<String>>>,
    /// Where it sends others.
    elsewhere: Mutex<String>,
}

/// A registry on this host, whose images are `a:index`, `a:image` and what else is given.
struct World {
    served: Arc<Served>,
    port: u16,
    digest: String,
    directory: tempfile::TempDir,
}

const LAYER: [u8; 10_000] = [7; 10_000];

async fn world(fault: Fault) -> World {
    let layer = digest_of(&LAYER);
    let descriptor = |media_type: &str, digest: &str, size: usize| json!({"mediaType": media_type, "digest": digest, "size": size});
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &digest_of(b"{}"), 2),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer, LAYER.len())],
    });
    let manifest = manifest.to_string().into_bytes();
    let digest = digest_of(&manifest);
    let mut of_platforms = Vec::new();
    for (architecture, digest) in [("arm64", digest_of(b"other")), ("amd64", digest.clone())] {
        let mut one = descriptor("application/vnd.oci.image.manifest.v1+json", &digest, manifest.len());
        one["platform"] = json!({"os": "linux", "architecture": architecture});
        of_platforms.push(one);
    }
    let index = |manifests: &[serde_json::Value]| {
        let media_type = "application/vnd.oci.image.index.v1+json";
        json!({"schemaVersion": 2, "mediaType": media_type, "manifests": manifests}).to_string().into_bytes()
    };
    let documents = HashMap::from([
        ("index".to_owned(), index(&of_platforms)),
        ("arm".to_owned(), index(&of_platforms[..1])),
        ("image".to_owned(), manifest.clone()),
        (digest.clone(), manifest),
        ("text".to_owned(), b"[]".to_vec()),
        ("large".to_owned(), vec![b' '; LARGEST_DOCUMENT + 1]),
    ]);
    let served = Arc::new(Served {
        documents,
        fault,
        ranges: Mutex::default(),
        credentials: Mutex::default(),
        elsewhere: Mutex::default(),
    });
    let routes = Router::new()
        .route("/v2/", get(version))
        .route("/v2/a/manifests/{name}", get(manifest_of))
        .route("/v2/a/blobs/{digest}", get(blob_of))
        .with_state(Arc::clone(&served));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    World { served, port, digest, directory: tempfile::tempdir().unwrap() }
}

async fn version(State(served): State<Arc<Served>>) -> Response {
    match served.fault {
        Fault::Redirects => {
            (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Basic realm=a")]).into_response()
        }
        _ => "{}".into_response(),
    }
}

async fn manifest_of(State(served): State<Arc<Served>>, UrlPath(name): UrlPath<String>) -> Response {
    let unknown = r#"{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "no such tag"}]}"#;
    match served.documents.get(&name) {
        Some(_) if served.fault == Fault::SlowManifest => {
            let drops = futures_util::stream::repeat(()).then(async |()| {
                tokio::time::sleep(Duration::from_secs(5)).await;
                Ok::<_, std::io::Error>(" ")
            });
            Body::from_stream(drops).into_response()
        }
        Some(_) if served.fault == Fault::OtherManifest && name.starts_with("sha256:") => {
            "{\"layers\": []}".into_response()
        }
        Some(document) => document.clone().into_response(),
        None => (StatusCode::NOT_FOUND, unknown).into_response(),
    }
}

async fn blob_of(
    State(served): State<Arc<Served>>,
    UrlPath(_): UrlPath<String>,
    headers: HeaderMap,
) -> Response {
    let range = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    served.ranges.lock().unwrap().extend(range.map(str::to_owned));
    let credentials = headers.get(header::AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
    served.credentials.lock().unwrap().push(credentials);
    if served.fault == Fault::Redirects {
        let elsewhere = served.elsewhere.lock().unwrap().clone();
        return (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, elsewhere)]).into_response();
    }
    let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let (status, content) = match (served.fault, from) {
        (Fault::OtherBlob, _) => (StatusCode::OK, vec![8; LAYER.len()]),
        (Fault::MoreBlob, _) => (StatusCode::OK, vec![7; LAYER.len() + 1]),
        (Fault::CutsOffWithoutRanges(_), _) | (_, None) => (StatusCode::OK, LAYER.to_vec()),
        (_, Some(from)) => (StatusCode::PARTIAL_CONTENT, LAYER[from..].to_vec()),
    };
    let length = content.len();
    let body = match served.fault {
        Fault::CutsOff(after) | Fault::CutsOffWithoutRanges(after) if after < length => {
            let chunk = futures_util::stream::iter([Ok(content[..after].to_vec())]);
            let end = futures_util::stream::once(async {
                // Until the chunk is sent: the clock of these tests stands still until all have to wait.
                tokio::time::sleep(Duration::from_millis(1)).await;
                Err(std::io::Error::other("the server ends"))
            });
            Body::from_stream(chunk.chain(end))
        }
        Fault::Silent(after) => {
            let chunk =
                futures_util::stream::iter([Ok::<_, std::io::Error>(content[..after.min(length)].to_vec())]);
            Body::from_stream(chunk.chain(futures_util::stream::pending()))
        }
        _ => Body::from(content),
    };
    let length = match served.fault {
        // The length is known to be wrong only where it is sent.
        Fault::MoreBlob => None,
        _ => Some((header::CONTENT_LENGTH, length.to_string())),
    };
    (status, axum::response::AppendHeaders(length), body).into_response()
}

impl World {
    fn request(&self, image: &str, action: Action) -> Request {
        let host = format!("localhost:{}", self.port);
        let endpoint = Endpoint {
            host: host.clone(),
            is_plain: true,
            skip_verify: false,
            authorities: None,
            credentials: Vec::new(),
        };
        Request { image: format!("{host}/{image}"), endpoints: vec![endpoint], action }
    }

    async fn resolve(&self, image: &str) -> Answer {
        run(self.request(image, Action::Resolve), Path::new(""), &mut |_| {}).await
    }

    async fn pull(&self, most_bytes: u64) -> (Answer, Vec<Answer>) {
        self.pull_as(Vec::new(), most_bytes).await
    }

    async fn pull_as(&self, credentials: Vec<Credentials>, most_bytes: u64) -> (Answer, Vec<Answer>) {
        let digest = self.digest.clone();
        let mut said = Vec::new();
        let mut request = self.request("a:image", Action::Pull { digest, layout: 0, most_bytes });
        request.endpoints[0].credentials = credentials;
        (run(request, self.directory.path(), &mut |answer| said.push(answer)).await, said)
    }

    fn blob(&self) -> std::path::PathBuf {
        let name = digest_of(&LAYER);
        self.directory.path().join("blobs/sha256").join(hex_of(&name).unwrap())
    }
}

fn kind(answer: &Answer) -> Option<FailureKind> {
    match answer {
        Answer::Failed(failure) => Some(failure.kind),
        _ => None,
    }
}

fn message(answer: &Answer) -> &str {
    match answer {
        Answer::Failed(failure) => &failure.message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_image_is_found_by_its_tag_and_its_digest() {
    let world = world(Fault::None).await;
    let expected = Answer::Resolved(world.digest.clone());
    for image in ["a:index".to_owned(), "a:image".to_owned(), format!("a@{}", world.digest)] {
        assert_eq!(world.resolve(&image).await, expected, "{image}");
    }
    let absent = world.resolve("a:absent").await;
    assert_eq!(kind(&absent), Some(FailureKind::NotFound));
    assert!(message(&absent).ends_with(": no such tag"), "{absent:?}");
    for image in ["a:arm", "a:text", "a:large"] {
        assert_eq!(kind(&world.resolve(image).await), Some(FailureKind::Invalid), "{image}");
    }
    let request = Request { image: "a/b c".to_owned(), ..world.request("", Action::Resolve) };
    assert_eq!(kind(&run(request, Path::new(""), &mut |_| {}).await), Some(FailureKind::Reference));
}

#[tokio::test]
async fn the_next_server_is_asked_where_one_does_not_answer() {
    let world = world(Fault::None).await;
    let mut request = world.request("a:image", Action::Resolve);
    let closed = Endpoint { host: "localhost:1".to_owned(), ..request.endpoints[0].clone() };
    request.endpoints.insert(0, closed.clone());
    assert_eq!(
        run(request.clone(), Path::new(""), &mut |_| {}).await,
        Answer::Resolved(world.digest.clone())
    );
    request.endpoints = vec![closed];
    let unreachable = run(request, Path::new(""), &mut |_| {}).await;
    assert_eq!(kind(&unreachable), Some(FailureKind::Unreachable), "{unreachable:?}");
}

#[tokio::test]
async fn layers_are_downloaded_into_a_layout() {
    let world = world(Fault::None).await;
    let (answer, said) = world.pull(1 << 20).await;
    assert_eq!(answer, Answer::Pulled { bytes: 10_000 });
    assert_eq!(said.last(), Some(&Answer::Progress { done: 10_000, total: 10_000 }));
    assert_eq!(fs::read(world.blob()).unwrap(), LAYER);
    let index = fs::read_to_string(world.directory.path().join("index.json")).unwrap();
    assert!(index.contains(&world.digest), "{index}");
    let too_large = world.pull(9_999).await.0;
    assert_eq!(kind(&too_large), Some(FailureKind::TooLarge));
}

#[tokio::test(start_paused = true)]
async fn a_download_that_breaks_off_goes_on_where_it_was() {
    let world = world(Fault::CutsOff(4_000)).await;
    assert_eq!(world.pull(1 << 20).await.0, Answer::Pulled { bytes: 10_000 });
    assert_eq!(fs::read(world.blob()).unwrap(), LAYER);
    assert_eq!(*world.served.ranges.lock().unwrap(), ["bytes=4000-", "bytes=8000-"]);
}

#[tokio::test(start_paused = true)]
async fn a_download_that_never_gets_further_ends() {
    let world = world(Fault::CutsOffWithoutRanges(4_000)).await;
    let ended = world.pull(1 << 20).await.0;
    assert_eq!(kind(&ended), Some(FailureKind::Other), "{ended:?}");
}

#[tokio::test]
async fn what_does_not_have_its_digest_is_not_kept() {
    for fault in [Fault::OtherBlob, Fault::MoreBlob, Fault::OtherManifest] {
        let world = world(fault).await;
        let answer = world.pull(1 << 20).await.0;
        assert_eq!(kind(&answer), Some(FailureKind::Invalid), "{answer:?}");
        assert!(!world.blob().exists() && !Path::new(&world.directory.path().join("index.json")).exists());
    }
}

#[tokio::test]
async fn credentials_do_not_follow_a_redirect_to_another_server() {
    let (registry, other) = (world(Fault::Redirects).await, world(Fault::None).await);
    *registry.served.elsewhere.lock().unwrap() = format!("http://localhost:{}/v2/a/blobs/x", other.port);
    let user = Credentials { username: "ada".to_owned(), password: "secret".to_owned() };
    assert_eq!(registry.pull_as(vec![user], 1 << 20).await.0, Answer::Pulled { bytes: 10_000 });
    let shown = registry.served.credentials.lock().unwrap().clone();
    assert!(matches!(&shown[..], [Some(basic)] if basic.starts_with("Basic ")), "{shown:?}");
    assert_eq!(*other.served.credentials.lock().unwrap(), [None]);
}

#[tokio::test(start_paused = true)]
async fn a_redirect_that_leads_nowhere_is_named() {
    for (elsewhere, expected, says) in [
        ("file:///etc/passwd", FailureKind::Invalid, "it redirects to what is not HTTP"),
        ("http://localhost:1/v2/a/blobs/x", FailureKind::Unreachable, "onnection refused"),
        // Itself.
        ("", FailureKind::Invalid, "too many redirects"),
    ] {
        let world = world(Fault::Redirects).await;
        *world.served.elsewhere.lock().unwrap() = elsewhere.to_owned();
        let answer = world.pull(1 << 20).await.0;
        assert_eq!(kind(&answer), Some(expected), "{elsewhere}: {answer:?}");
        assert!(message(&answer).contains(says), "{elsewhere}: {answer:?}");
        assert!(message(&answer).starts_with(&format!("localhost:{}: ", world.port)), "{answer:?}");
        assert!(!world.blob().exists());
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_slow_with_a_manifest_does_not_keep_others_from_being_asked() {
    let (slow, other) = (world(Fault::SlowManifest).await, world(Fault::None).await);
    let started = tokio::time::Instant::now();
    let late = slow.resolve("a:image").await;
    assert_eq!(kind(&late), Some(FailureKind::Unreachable), "{late:?}");
    assert!(message(&late).ends_with(": it does not answer within 20 s"), "{late:?}");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());

    let mut request = slow.request("a:image", Action::Resolve);
    request.endpoints.extend(other.request("a:image", Action::Resolve).endpoints);
    let found = run(request, Path::new(""), &mut |_| {}).await;
    assert_eq!(found, Answer::Resolved(other.digest.clone()));
}

#[tokio::test(start_paused = true)]
async fn a_download_of_which_no_more_comes_goes_on_and_ends() {
    let world = world(Fault::Silent(4_000)).await;
    assert_eq!(world.pull(1 << 20).await.0, Answer::Pulled { bytes: 10_000 });
    assert_eq!(*world.served.ranges.lock().unwrap(), ["bytes=4000-", "bytes=8000-"]);

    let world = self::world(Fault::Silent(0)).await;
    let ended = world.pull(1 << 20).await.0;
    assert_eq!(kind(&ended), Some(FailureKind::Other), "{ended:?}");
    assert!(message(&ended).contains(": the download broke off: "), "{ended:?}");
    assert!(message(&ended).contains("timed out"), "{ended:?}");
}
