//! The volumes of an instance whose files Kubernetes projects from objects: the kubelet waits for the objects and mounts the
//! files into the container `compute`, where the node agent reads them for the disks. No component of ours reads the objects.

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, ConfigMapVolumeSource, DownwardAPIProjection, DownwardAPIVolumeFile,
    DownwardAPIVolumeSource, KeyToPath, ObjectFieldSelector, PodSpec, ProjectedVolumeSource,
    ResourceFieldSelector, SecretVolumeSource, ServiceAccountTokenProjection, Volume, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use vireo_api::names::{access_credential, network_data_secret, projected_files, user_data_secret};
use vireo_api::v1::{self, CloudInitSource, VirtualMachineInstance};

use super::volumes::mount;

/// Seconds that a token is valid. With exactly as many as Kubernetes' own admission asks for, API servers accept the token
/// as long as the Pod exists, up to a year: the disk of a guest does not change.
const TOKEN_SECONDS: i64 = 3607;
/// The ConfigMap with the certificate of the API server's authority, which every namespace has.
const AUTHORITY: (&str, &str) = ("kube-root-ca.crt", "ca.crt");

/// The ServiceAccount of an instance's launcher Pod: that whose token the guest gets, where it gets one.
pub(super) fn service_account(vmi: &VirtualMachineInstance) -> &str {
    let mut accounts = vmi.spec.volumes.iter().filter_map(|volume| volume.service_account.as_deref());
    accounts.next().map_or(&*vmi.spec.service_account_name, |account| &*account.service_account_name)
}

/// Adds an instance's projected files to its launcher Pod, whose first container is the launcher.
pub(super) fn add(spec: &mut PodSpec, vmi: &VirtualMachineInstance) {
    let Some(container) = spec.containers.first_mut() else { return };
    let all = vmi.spec.volumes.iter().flat_map(volumes).chain(credentials(vmi));
    for (number, (directory, volume)) in all.enumerate() {
        // The name of the instance's volume may be one of the Pod's other volumes.
        let name = format!("projected-{number}");
        container.volume_mounts.get_or_insert_default().push(mount(&name, &directory, true));
        spec.volumes.get_or_insert_default().push(Volume { name, ..volume });
    }
}

/// The volumes of a Pod for a volume of an instance, with the directories where the launcher has them.
fn volumes(volume: &v1::Volume) -> Vec<(String, Volume)> {
    let name = &volume.name;
    let cloud_init = volume.cloud_init_no_cloud.iter().chain(&volume.cloud_init_config_drive);
    let secrets = cloud_init.flat_map(|source| secrets(name, source));
    let files = files(volume).map(|volume| (projected_files(name), volume));
    files.into_iter().chain(secrets).collect()
}

/// The Secrets of the access credentials of an instance.
fn credentials(vmi: &VirtualMachineInstance) -> impl Iterator<Item = (String, Volume)> {
    vmi.spec.access_credentials.iter().enumerate().filter_map(|(index, credential)| {
        let of_key = credential.ssh_public_key.as_ref().map(|key| &key.source);
        let source = of_key.or_else(|| Some(&credential.user_password.as_ref()?.source))?;
        Some((access_credential(index), secret(&source.secret.as_ref()?.secret_name, None)))
    })
}

fn secrets(name: &str, source: &CloudInitSource) -> impl Iterator<Item = (String, Volume)> {
    let user = source.secret_ref.as_ref().map(|secret| (user_data_secret(name), &secret.name));
    let network =
        source.network_data_secret_ref.as_ref().map(|secret| (network_data_secret(name), &secret.name));
    let volume = |(directory, name): (String, &String)| (directory, secret(name, None));
    user.into_iter().chain(network).map(volume)
}

fn secret(name: &str, optional: Option<bool>) -> Volume {
    let secret =
        SecretVolumeSource { secret_name: Some(name.to_owned()), optional, ..SecretVolumeSource::default() };
    Volume { secret: Some(secret), ..Volume::default() }
}

fn config_map(name: &str, optional: Option<bool>) -> Volume {
    let map = ConfigMapVolumeSource { name: name.to_owned(), optional, ..ConfigMapVolumeSource::default() };
    Volume { config_map: Some(map), ..Volume::default() }
}

fn files(volume: &v1::Volume) -> Option<Volume> {
    if let Some(map) = &volume.config_map {
        return Some(config_map(&map.name, map.optional));
    }
    if let Some(source) = &volume.secret {
        return Some(secret(&source.secret_name, source.optional));
    }
    if let Some(sysprep) = &volume.sysprep {
        let map = sysprep.config_map.as_ref().map(|map| config_map(&map.name, None));
        return map.or_else(|| Some(secret(&sysprep.secret.as_ref()?.name, None)));
    }
    if volume.service_account.is_some() {
        return Some(Volume { projected: Some(token()), ..Volume::default() });
    }
    let items = volume.downward_api.as_ref()?.fields.iter().map(downward_file).collect();
    let downward = DownwardAPIVolumeSource { items: Some(items), ..DownwardAPIVolumeSource::default() };
    Some(Volume { downward_api: Some(downward), ..Volume::default() })
}

/// What containers usually have of their ServiceAccount.
fn token() -> ProjectedVolumeSource {
    let (map, key) = AUTHORITY;
    let item = KeyToPath { key: key.to_owned(), path: key.to_owned(), mode: None };
    let namespace = DownwardAPIVolumeFile {
        path: "namespace".to_owned(),
        field_ref: Some(ObjectFieldSelector {
            field_path: "metadata.namespace".to_owned(),
            ..ObjectFieldSelector::default()
        }),
        ..DownwardAPIVolumeFile::default()
    };
    let sources = vec![
        VolumeProjection {
            service_account_token: Some(ServiceAccountTokenProjection {
                path: "token".to_owned(),
                expiration_seconds: Some(TOKEN_SECONDS),
                ..ServiceAccountTokenProjection::default()
            }),
            ..VolumeProjection::default()
        },
        VolumeProjection {
            config_map: Some(ConfigMapProjection {
                name: map.to_owned(),
                items: Some(vec![item]),
                ..ConfigMapProjection::default()
            }),
            ..VolumeProjection::default()
        },
        VolumeProjection {
            downward_api: Some(DownwardAPIProjection { items: Some(vec![namespace]) }),
            ..VolumeProjection::default()
        },
    ];
    ProjectedVolumeSource { sources: Some(sources), ..ProjectedVolumeSource::default() }
}

fn downward_file(file: &v1::DownwardApiVolumeFile) -> DownwardAPIVolumeFile {
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    DownwardAPIVolumeFile {
        path: file.path.clone(),
        mode: file.mode,
        field_ref: file.field_ref.as_ref().map(|field| ObjectFieldSelector {
            api_version: text(&field.api_version),
            field_path: field.field_path.clone(),
        }),
        resource_field_ref: file.resource_field_ref.as_ref().map(|resource| ResourceFieldSelector {
            container_name: text(&resource.container_name),
            resource: resource.resource.clone(),
            divisor: resource.divisor.as_ref().map(|divisor| Quantity(divisor.0.clone())),
        }),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Container;
    use serde_json::{Value, json};

    use super::*;

    fn pod(volumes: &Value) -> Value {
        let vmi = serde_json::from_value(json!({"spec": {"volumes": volumes}})).unwrap();
        let mut spec = PodSpec { containers: vec![Container::default()], ..PodSpec::default() };
        add(&mut spec, &vmi);
        json!(spec)
    }

    /// The only volume of the Pod, with the directory where the launcher has it.
    fn one(volume: Value) -> (Value, Value) {
        let mut volume = volume;
        volume["name"] = json!("sockets");
        let mut pod = pod(&json!([volume]));
        let mount = pod["containers"][0]["volumeMounts"][0].take();
        assert_eq!((&mount["name"], &mount["readOnly"]), (&json!("projected-0"), &json!(true)));
        let mut volume = pod["volumes"][0].take();
        assert_eq!(volume["name"].take(), "projected-0");
        volume.as_object_mut().unwrap().remove("name");
        (mount["mountPath"].clone(), volume)
    }

    #[test]
    fn volumes_are_of_the_same_kind() {
        let files = "/var/run/kubevirt-private/projected/files/sockets";
        let fields = json!([
            {"path": "a/labels", "fieldRef": {"fieldPath": "metadata.labels", "apiVersion": "v1"}, "mode": 256},
            {"path": "memory", "resourceFieldRef": {"containerName": "compute", "resource": "requests.memory",
                "divisor": "1Mi"}}]);
        for (given, expected) in [
            (
                json!({"configMap": {"name": "a", "optional": true, "volumeLabel": "x"}}),
                json!({"configMap": {"name": "a", "optional": true}}),
            ),
            (json!({"secret": {"secretName": "a"}}), json!({"secret": {"secretName": "a"}})),
            (json!({"sysprep": {"configMap": {"name": "a"}}}), json!({"configMap": {"name": "a"}})),
            (json!({"sysprep": {"secret": {"name": "a"}}}), json!({"secret": {"secretName": "a"}})),
            (
                json!({"downwardAPI": {"fields": fields, "volumeLabel": "x"}}),
                json!({"downwardAPI": {"items": fields}}),
            ),
            (
                json!({"serviceAccount": {"serviceAccountName": "robot"}}),
                json!({"projected": {"sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {"downwardAPI": {"items": [
                        {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
                ]}}),
            ),
        ] {
            assert_eq!(one(given.clone()), (json!(files), expected), "{given}");
        }
    }

    #[test]
    fn secrets_for_cloud_init_are_volumes_of_their_own() {
        let pod = pod(&json!([
            {"name": "plain", "cloudInitNoCloud": {"userData": "x"}},
            {"name": "seed", "cloudInitNoCloud": {"secretRef": {"name": "user"},
                "networkDataSecretRef": {"name": "net"}}},
            {"name": "drive", "cloudInitConfigDrive": {"userData": "x", "networkDataSecretRef": {"name": "net"}}},
        ]));
        let volume = |number: usize, name: &str| json!({"name": format!("projected-{number}"), "secret": {"secretName": name}});
        assert_eq!(pod["volumes"], json!([volume(0, "user"), volume(1, "net"), volume(2, "net")]));
        let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
        let paths: Vec<_> = mounts.iter().map(|mount| mount["mountPath"].as_str().unwrap()).collect();
        let below = "/var/run/kubevirt-private/projected";
        let expected = ["user-data/seed", "network-data/seed", "network-data/drive"];
        assert_eq!(paths, expected.map(|path| format!("{below}/{path}")));
    }

    #[test]
    fn access_credentials_are_mounted_by_their_numbers() {
        let source = json!({"source": {"secret": {"secretName": "keys"}}});
        let vmi =
            json!({"spec": {"accessCredentials": [{"sshPublicKey": source}, {"userPassword": source}]}});
        let vmi = serde_json::from_value(vmi).unwrap();
        let mut spec = PodSpec { containers: vec![Container::default()], ..PodSpec::default() };
        add(&mut spec, &vmi);
        let pod = json!(spec);
        for (number, name) in ["projected-0", "projected-1"].iter().enumerate() {
            assert_eq!(pod["volumes"][number], json!({"name": name, "secret": {"secretName": "keys"}}));
            let mount = &pod["containers"][0]["volumeMounts"][number];
            let path = format!("/var/run/kubevirt-private/projected/access-credentials/{number}");
            assert_eq!(mount, &json!({"name": name, "mountPath": path, "readOnly": true}));
        }
    }

    #[test]
    fn a_token_is_of_the_account_of_the_pod() {
        let account = |spec: Value| {
            let vmi = serde_json::from_value(json!({ "spec": spec })).unwrap();
            service_account(&vmi).to_owned()
        };
        let volume = json!([{"name": "a", "serviceAccount": {"serviceAccountName": "robot"}}]);
        assert_eq!(account(json!({ "volumes": volume })), "robot");
        assert_eq!(account(json!({"serviceAccountName": "own"})), "own");
        assert_eq!(account(json!({})), "");
    }
}
