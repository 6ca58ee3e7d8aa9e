//! Where a test of what every Kubernetes API has works: on a server of its own, or in a namespace of its own on the server
//! that `VIREO_TEST_KUBECONFIG` names.

use std::panic::{AssertUnwindSafe, resume_unwind};

use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use crate::server::Server;

/// Names the kubeconfig of the server to test.
const KUBECONFIG: &str = "VIREO_TEST_KUBECONFIG";

/// Runs a test whose default namespace is its own. Nothing of it stays on a server that others use.
pub(crate) async fn in_a_place(test: impl AsyncFnOnce(&Client)) {
    let Some(path) = std::env::var_os(KUBECONFIG) else {
        let server = Server::start();
        return test(&server.client().await).await;
    };
    eprintln!("on the server of {}", path.display());
    let kubeconfig = Kubeconfig::read_from(path).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.default_namespace = format!("vireo-test-{:08x}", fastrand::u32(..));
    let name = config.default_namespace.clone();
    let client = Client::try_from(config).unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let done = AssertUnwindSafe(test(&client)).catch_unwind().await;
    let gone = namespaces.delete(&name, &DeleteParams::default()).await;
    done.unwrap_or_else(|panic| resume_unwind(panic));
    gone.unwrap();
}
