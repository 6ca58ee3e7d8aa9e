//! Vireo on a Kubernetes that somebody else made: of it nothing is known but its API. Its administrator's kubeconfig is named
//! by `VIREO_TEST_CLUSTER`; the images are on its nodes, or in the registry `VIREO_TEST_REGISTRY`. Nodes are left alone.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use vireo_tests::{HostBuilder, HostError, programs};

use super::volumes::Storage;
use super::{EMULATED, LIMIT, Vireo, guest, installation, machine, refused, volumes};
use crate::scenarios::client::Client;

/// All of it, where images have to be pulled.
const ALL: Duration = Duration::from_secs(1800);
const KUBECONFIG: &str = "VIREO_TEST_CLUSTER";
const NAMESPACE: &str = "vireo-test";
const CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// A kubeconfig whose namespace is that of the test.
fn kubeconfig(client: &Client<'_>) -> Result<PathBuf, HostError> {
    let file = client.host.work("kubeconfig");
    client.kubectl(&format!("config view --raw --flatten >{file}"), None)?.ok();
    client
        .kubectl(&format!("--kubeconfig {file} config set-context --current --namespace={NAMESPACE}"), None)?
        .ok();
    Ok(file.into())
}

/// Whether a node may have guests that are not emulated.
fn has_kvm(vireo: &Vireo<'_>) -> Result<bool, HostError> {
    let has = |node: &Value| {
        let count = node["status"]["allocatable"]["devices.kubevirt.io/kvm"].as_str().unwrap_or_default();
        !matches!(count, "" | "0")
    };
    Ok(vireo.items("nodes")?.iter().any(has))
}

#[test]
fn kubevirt_on_a_cluster_of_others() -> Result<(), HostError> {
    let begun = Instant::now();
    let given = std::env::var(KUBECONFIG).unwrap_or_else(|_| {
        panic!("{KUBECONFIG} names no kubeconfig: run KUBECONFIG=FILE hack/test cluster --existing")
    });
    let registry = std::env::var("VIREO_TEST_REGISTRY").ok().filter(|registry| !registry.is_empty());
    let registry = registry.map(|registry| format!("{}/", registry.trim_end_matches('/')));
    let programs = programs::directory(env!("CARGO_BIN_EXE_nested"));
    let builder = HostBuilder::new(env!("CARGO_BIN_EXE_nested")).deadline(ALL);
    let host = builder.file(programs.join("virtctl")).on_this_network().here()?;
    let client = Client::elsewhere(&host, given);
    client.shell(&format!("mkdir -p {}", host.work("state")))?;
    let kubeconfig = kubeconfig(&client)?;
    let client = Client::elsewhere(&host, kubeconfig.to_string_lossy().into_owned());
    let vireo = Vireo::with(client, NAMESPACE.to_owned(), registry, begun);
    vireo.step("a cluster");
    eprintln!("{}", vireo.ok("get nodes -o wide"));
    let installed = vireo.ok("get crd -o name");
    assert!(
        !installed.contains("kubevirts.kubevirt.io"),
        "KubeVirt is installed in this cluster: nothing was changed"
    );
    vireo.ok(&format!("create namespace {NAMESPACE}"));
    vireo.step("install");
    installation::install(&vireo);
    if !has_kvm(&vireo)? {
        eprintln!("cluster: no node has KVM: guests are emulated");
        installation::configure(&vireo, EMULATED)?;
    }
    guest::is_used(&vireo)?;
    refused::fields(&vireo)?;
    refused::images(&vireo)?;
    let is_default = |class: &Value| class["metadata"]["annotations"][CLASS] == "true";
    match vireo.items("storageclasses")?.iter().any(is_default) {
        true => volumes::are_kept(&vireo, Storage::Class)?,
        false => eprintln!("cluster: skipped: claims, since the cluster has no default StorageClass"),
    }
    machine::starts_and_stops(&vireo)?;
    machine::returns(&vireo)?;
    installation::is_removed(&vireo, "")?;
    installation::is_deleted(&vireo);
    vireo.ok(&format!("delete namespace {NAMESPACE} {LIMIT}"));
    vireo.step("end");
    Ok(())
}
