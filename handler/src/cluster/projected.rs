//! Projects the files of volumes where there is no kubelet that does.

use std::collections::BTreeMap;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Client, Error};
use tokio::sync::watch;
use tracing::warn;
use uuid::Uuid;
use vireo_api::names::CREATED_BY_LABEL;
use vireo_api::spec::{DownwardContent, DownwardFile, ObjectKind, ObjectSource, ProjectedSource};
use vireo_client::Kind;

use crate::storage::PullSecret;
use crate::storage::iso::File;
use crate::storage::projected::{AbsentObject, Collected, ProjectedError};

/// How long a token is valid, in seconds: the disk is made when the guest starts and does not change.
const TOKEN_SECONDS: i64 = 24 * 60 * 60;

/// Reads objects with the rights of a kubelet.
#[derive(Clone)]
pub struct Projector {
    client: Client,
    /// The certificates of the API server's authorities, in PEM.
    authority: watch::Receiver<String>,
}

impl std::fmt::Debug for Projector {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Projector").finish_non_exhaustive()
    }
}

impl Projector {
    /// A projector that reads with a client, of an API server whose authorities have these certificates.
    pub fn new(client: Client, authority: watch::Receiver<String>) -> Self {
        Self { client, authority }
    }

    /// The files of a volume of the VMI with this UID.
    ///
    /// # Errors
    /// When an object is absent, or the files are more than a volume may have.
    pub async fn files(
        &self,
        (namespace, vmi): (&str, Uuid),
        source: &ProjectedSource,
    ) -> Result<Vec<File>, ProjectedError> {
        match source {
            ProjectedSource::Object(object) => self.entries(namespace, object).await,
            ProjectedSource::ServiceAccount { name } => self.token(namespace, name).await,
            ProjectedSource::DownwardApi { files } => {
                let its = ListParams::default().labels(&format!("{CREATED_BY_LABEL}={vmi}"));
                let pods = Api::<Pod>::namespaced(self.client.clone(), namespace).list(&its).await?;
                let pod = pods.items.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none());
                downward(&pod.ok_or(ProjectedError::NoPod)?, files)
            }
        }
    }

    async fn entries(&self, namespace: &str, object: &ObjectSource) -> Result<Vec<File>, ProjectedError> {
        let name = &object.name;
        let entries = match object.kind {
            ObjectKind::ConfigMap => {
                let map = Api::<ConfigMap>::namespaced(self.client.clone(), namespace).get_opt(name).await?;
                map.map(map_entries)
            }
            ObjectKind::Secret => {
                let secret = Api::<Secret>::namespaced(self.client.clone(), namespace).get_opt(name).await?;
                secret.map(secret_entries)
            }
        };
        let absent = || match object.kind {
            ObjectKind::ConfigMap => absent(Kind::CONFIG_MAP, namespace, name),
            ObjectKind::Secret => absent(Kind::SECRET, namespace, name),
        };
        let entries = match entries {
            None if object.optional => BTreeMap::new(),
            entries => entries.ok_or_else(absent)?,
        };
        collect(entries)
    }

    /// Returns once a Secret has other entries than these files. Never returns where that cannot be known.
    pub async fn differs(&self, namespace: &str, name: &str, known: &[File]) {
        let secrets = Api::<Secret>::namespaced(self.client.clone(), namespace);
        // One that is deleted is not there to follow.
        let differs = |secret: Option<&Secret>| {
            let entries = secret.map(|secret| collect(secret_entries(secret.clone())));
            entries.is_some_and(|files| files.is_ok_and(|files| files != known))
        };
        if let Err(error) = await_condition(secrets, name, differs).await {
            warn!(%error, namespace, name, "a Secret cannot be watched");
            std::future::pending::<()>().await;
        }
    }

    /// The credentials in a Secret.
    ///
    /// # Errors
    /// When it is absent, or has none.
    pub async fn pull_secret(&self, namespace: &str, name: &str) -> Result<PullSecret, ProjectedError> {
        let secret = Api::<Secret>::namespaced(self.client.clone(), namespace).get_opt(name).await?;
        let data = secret.ok_or_else(|| absent(Kind::SECRET, namespace, name))?.data.unwrap_or_default();
        PullSecret::read(|key| data.get(key).map(|bytes| bytes.0.as_slice()))
            .map_err(|source| ProjectedError::Credentials { name: name.to_owned(), source })
    }

    /// The credentials in the Secrets that a ServiceAccount names for images, of those that can be read.
    pub async fn pull_secrets_of(&self, namespace: &str, account: &str) -> Vec<PullSecret> {
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), namespace);
        let account = match accounts.get_opt(account).await {
            Ok(account) => account,
            Err(error) => {
                warn!(%error, namespace, account, "the ServiceAccount cannot be read: its imagePullSecrets are not used");
                None
            }
        };
        let mut secrets = Vec::new();
        for reference in account.and_then(|account| account.image_pull_secrets).unwrap_or_default() {
            match self.pull_secret(namespace, &reference.name).await {
                Ok(secret) => secrets.push(secret),
                Err(error) => {
                    warn!(%error, namespace, secret = reference.name, "a Secret for images is not used");
                }
            }
        }
        secrets
    }

    async fn token(&self, namespace: &str, name: &str) -> Result<Vec<File>, ProjectedError> {
        let spec =
            TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), namespace);
        let made = accounts.create_token_request(name, &PostParams::default(), &request).await;
        let made = made.map_err(|error| match error {
            Error::Api(status) if status.code == 404 => absent(Kind::SERVICE_ACCOUNT, namespace, name),
            other => other.into(),
        })?;
        let token = made.status.map(|status| status.token).unwrap_or_default();
        let authority = self.authority.borrow().clone();
        let entries = [("ca.crt", authority.as_str()), ("namespace", namespace), ("token", &token)];
        collect(entries.map(|(name, content)| (name.to_owned(), content.as_bytes().to_vec())))
    }

    /// Returns once an object exists. Never returns where that cannot be known.
    pub async fn appears(&self, AbsentObject { kind, namespace, name }: &AbsentObject) {
        let exists = |object: Option<&DynamicObject>| object.is_some();
        let awaited = await_condition(kind.namespaced(&self.client, namespace), name, exists).await;
        if let Err(error) = awaited {
            warn!(%error, namespace, name, "an object cannot be watched, and is looked for again later");
            std::future::pending::<()>().await;
        }
    }
}

fn absent(kind: Kind, namespace: &str, name: &str) -> ProjectedError {
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    ProjectedError::Absent(Box::new(AbsentObject { kind, namespace, name }))
}

fn collect(entries: impl IntoIterator<Item = (String, Vec<u8>)>) -> Result<Vec<File>, ProjectedError> {
    let mut files = Collected::default();
    for (name, content) in entries {
        files.add(&name, content)?;
    }
    Ok(files.into_files())
}

fn map_entries(map: ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = map.data.unwrap_or_default().into_iter().map(|(name, text)| (name, text.into_bytes()));
    let binary = map.binary_data.unwrap_or_default().into_iter().map(|(name, bytes)| (name, bytes.0));
    text.chain(binary).collect()
}

fn secret_entries(secret: Secret) -> BTreeMap<String, Vec<u8>> {
    secret.data.unwrap_or_default().into_iter().map(|(name, bytes)| (name, bytes.0)).collect()
}

/// The files with fields of a Pod.
fn downward(pod: &Pod, files: &[DownwardFile]) -> Result<Vec<File>, ProjectedError> {
    let metadata = &pod.metadata;
    let map = |path: &str| match path {
        "metadata.labels" => metadata.labels.as_ref(),
        _ => metadata.annotations.as_ref(),
    };
    let mut entries = Vec::new();
    for DownwardFile { path, content, field } in files {
        let text = match content {
            DownwardContent::Resource => {
                return Err(ProjectedError::Resource(field.at("resourceFieldRef")));
            }
            DownwardContent::Field { path, key: Some(key) } => {
                map(path).and_then(|map| map.get(key)).cloned().unwrap_or_default()
            }
            DownwardContent::Field { path, key: None } => match path.as_str() {
                "metadata.name" => metadata.name.clone().unwrap_or_default(),
                "metadata.namespace" => metadata.namespace.clone().unwrap_or_default(),
                "metadata.uid" => metadata.uid.clone().unwrap_or_default(),
                path => map(path).map(lines).unwrap_or_default(),
            },
        };
        entries.push((path.clone(), text.into_bytes()));
    }
    collect(entries)
}

/// A map as the kubelet writes it: a line `key="value"` for each entry, with Go's escapes.
fn lines(map: &BTreeMap<String, String>) -> String {
    let line = |(key, value): (&String, &String)| format!("{key}={}", quoted(value));
    map.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            other if other.is_ascii_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(other))),
            other if other.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(other))),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_api::spec::Field;

    use super::*;

    fn file(path: &str, of: &str, key: Option<&str>) -> DownwardFile {
        let content = DownwardContent::Field { path: of.to_owned(), key: key.map(str::to_owned) };
        DownwardFile {
            path: path.to_owned(),
            content,
            field: Field::new("spec.volumes[0].downwardAPI.fields[0]"),
        }
    }

    #[test]
    fn fields_are_written_as_a_kubelet_writes_them() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {
            "name": "virt-launcher-x", "namespace": "n", "uid": "u", "labels": {"b": "2", "app": "web"},
            "annotations": {"note": "a \"b\"\\\n\tc\u{1}\u{e4}"},
        }}))
        .unwrap();
        let written = |wanted: DownwardFile| {
            let mut files = downward(&pod, &[wanted]).unwrap();
            String::from_utf8(files.remove(0).content).unwrap()
        };
        assert_eq!(written(file("a", "metadata.labels", None)), "app=\"web\"\nb=\"2\"");
        let note = "note=\"a \\\"b\\\"\\\\\\n\\tc\\x01\u{e4}\"";
        assert_eq!(written(file("a", "metadata.annotations", None)), note);
        assert_eq!(written(file("a", "metadata.labels", Some("app"))), "web");
        assert_eq!(written(file("a", "metadata.annotations", Some("absent"))), "");
        assert_eq!(written(file("a", "metadata.name", None)), "virt-launcher-x");
        assert_eq!(written(file("a", "metadata.namespace", None)), "n");
        assert_eq!(written(file("a/b", "metadata.uid", None)), "u");
        let resource = DownwardFile { content: DownwardContent::Resource, ..file("a", "", None) };
        let refused = downward(&pod, &[resource]).unwrap_err().to_string();
        let field = "spec.volumes[0].downwardAPI.fields[0].resourceFieldRef: without a kubelet";
        assert!(refused.starts_with(field), "{refused}");
    }

    #[test]
    fn entries_of_objects_are_files() {
        let map = json!({"data": {"b": "text"}, "binaryData": {"a": "AP8="}});
        let files = collect(map_entries(serde_json::from_value(map).unwrap())).unwrap();
        assert_eq!(files, [File::new("a", [0, 255]), File::new("b", "text")]);
        let secret = json!({"data": {"key": "AP8="}});
        let files = collect(secret_entries(serde_json::from_value(secret).unwrap())).unwrap();
        assert_eq!(files, [File::new("key", [0, 255])]);
    }
}
