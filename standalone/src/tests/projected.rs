//! Files that are projected from objects, as the user of a whole server that does it instead of a kubelet.

use uuid::Uuid;
use vireo_api::spec::{DownwardContent, DownwardFile, Field, ObjectKind, ObjectSource, ProjectedSource};
use vireo_handler::cluster::Projector;
use vireo_handler::storage::iso::File;
use vireo_handler::storage::projected::ProjectedError;
use vireo_install::policy::{LOCAL_KUBELET, VIRT_HANDLER};

use super::*;
use crate::compose::client;

const CORE: &str = "/api/v1/namespaces/default";
const VMI: &str = "5d307ca9-b3ef-428c-8861-06e72d69f223";

fn projector(world: &World, account: (&str, &str)) -> Projector {
    Projector::new(
        client(&world.server, account, "local-kubelet"),
        tokio::sync::watch::channel("authority".to_owned()).1,
    )
}

async fn create(world: &World, plural: &str, object: Value) {
    let (code, made) = world.ask("POST", &format!("{CORE}/{plural}"), object).await;
    assert_eq!(code, 201, "{made}");
}

fn object(kind: ObjectKind, name: &str, optional: bool) -> ProjectedSource {
    ProjectedSource::Object(ObjectSource { kind, name: name.to_owned(), optional })
}

async fn files(projector: &Projector, source: &ProjectedSource) -> Result<Vec<File>, ProjectedError> {
    projector.files(("default", VMI.parse::<Uuid>().unwrap()), source).await
}

#[tokio::test]
async fn objects_are_read_and_waited_for() {
    let world = World::new();
    let kubelet = projector(&world, LOCAL_KUBELET);
    let map = object(ObjectKind::ConfigMap, "app", false);
    assert_eq!(files(&kubelet, &object(ObjectKind::ConfigMap, "app", true)).await.unwrap(), []);
    let Err(ProjectedError::Absent(absent)) = files(&kubelet, &map).await else { panic!("it is there") };
    let awaited = {
        let (kubelet, absent) = (kubelet.clone(), absent.clone());
        tokio::spawn(async move { kubelet.appears(&absent).await })
    };
    create(&world, "configmaps", json!({"metadata": {"name": "other"}})).await;
    create(&world, "configmaps", json!({"metadata": {"name": "app"}, "data": {"b": "2", "a": "1"}})).await;
    tokio::time::timeout(LIMIT, awaited).await.expect("it appears").unwrap();
    assert_eq!(files(&kubelet, &map).await.unwrap(), [File::new("a", "1"), File::new("b", "2")]);

    create(&world, "secrets", json!({"metadata": {"name": "key"}, "stringData": {"password": "x"}})).await;
    let secret = object(ObjectKind::Secret, "key", false);
    assert_eq!(files(&kubelet, &secret).await.unwrap(), [File::new("password", "x")]);
    // Whoever may not read Secrets gets none this way.
    let denied = files(&projector(&world, VIRT_HANDLER), &secret).await.unwrap_err();
    assert!(matches!(denied, ProjectedError::Api(_)), "{denied}");
}

#[tokio::test]
async fn a_token_is_of_its_account() {
    let world = World::new();
    let kubelet = projector(&world, LOCAL_KUBELET);
    let source = ProjectedSource::ServiceAccount { name: "robot".to_owned() };
    let absent = files(&kubelet, &source).await.unwrap_err();
    let text = "ServiceAccount default/robot does not exist, waiting for it to appear";
    assert_eq!(absent.to_string(), text);
    create(&world, "serviceaccounts", json!({"metadata": {"name": "robot"}})).await;
    let made = files(&kubelet, &source).await.unwrap();
    let [authority, namespace, token] = made.as_slice() else { panic!("{made:?}") };
    assert_eq!(authority, &File::new("ca.crt", "authority"));
    assert_eq!(namespace, &File::new("namespace", "default"));
    assert_eq!(token.path, "token");
    let user = world.server.tokens.user_of(std::str::from_utf8(&token.content).unwrap()).unwrap();
    assert_eq!(user.name, User::service_account("default", "robot").name);
}

#[tokio::test]
async fn fields_are_those_of_the_launcher_pod() {
    let world = World::new();
    let kubelet = projector(&world, LOCAL_KUBELET);
    let content = DownwardContent::Field { path: "metadata.labels".to_owned(), key: Some("tier".to_owned()) };
    let field = Field::new("spec.volumes[0].downwardAPI.fields[0]");
    let file = DownwardFile { path: "tier".to_owned(), content, field };
    let source = ProjectedSource::DownwardApi { files: vec![file] };
    assert!(matches!(files(&kubelet, &source).await, Err(ProjectedError::NoPod)));
    for (name, of, tier) in [("other", "another", "db"), ("launcher", VMI, "web")] {
        let pod = json!({
            "metadata": {"name": name, "labels": {
                "kubevirt.io": "virt-launcher", "kubevirt.io/created-by": of, "tier": tier}},
            "spec": {"containers": [{"name": "compute", "image": "x"}]},
        });
        let (code, made) = world.create_pod(&pod).await;
        assert_eq!(code, 201, "{made}");
    }
    assert_eq!(files(&kubelet, &source).await.unwrap(), [File::new("tier", "web")]);
}
