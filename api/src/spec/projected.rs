//! Volumes whose files Kubernetes projects from its objects.

use std::collections::BTreeSet;

use super::report::Findings;
use super::syntax::{DNS_SUBDOMAIN, is_dns_subdomain};
use super::{Field, VolumeSource};
use crate::v1;

/// The volume label of a disk that gives none; KubeVirt's.
const LABEL: &str = "cfgdata";
/// The volume label of answer files; KubeVirt's.
const SYSPREP_LABEL: &str = "unattendCD";
/// The longest volume label, as ISO 9660 has it.
const LONGEST_LABEL: usize = 32;
/// The longest name of a file.
const LONGEST_NAME: usize = 253;
/// The most files that fields become.
const MOST_FIELDS: usize = 256;
/// The fields of a Pod that a volume may have; Kubernetes'.
const FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
/// The fields of which one entry may be selected.
const MAPS: [&str; 2] = ["metadata.annotations", "metadata.labels"];

/// A read-only disk with files that are projected from objects of the VMI's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projected {
    source: ProjectedSource,
    label: String,
    is_sysprep: bool,
}

impl Projected {
    /// Where the files come from.
    pub fn source(&self) -> &ProjectedSource {
        &self.source
    }

    /// The label of the volume: ASCII, at most 32 bytes.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Whether the files are answers for the setup of Windows, and one of them has to be for it.
    pub fn is_sysprep(&self) -> bool {
        self.is_sysprep
    }

    /// The field of the volume that it is.
    pub(super) fn field(&self) -> &'static str {
        match &self.source {
            _ if self.is_sysprep => "sysprep",
            ProjectedSource::Object(ObjectSource { kind: ObjectKind::ConfigMap, .. }) => "configMap",
            ProjectedSource::Object(ObjectSource { kind: ObjectKind::Secret, .. }) => "secret",
            ProjectedSource::ServiceAccount { .. } => "serviceAccount",
            ProjectedSource::DownwardApi { .. } => "downwardAPI",
        }
    }
}

/// Where projected files come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProjectedSource {
    /// The entries of an object.
    Object(ObjectSource),
    /// A token of a ServiceAccount, with what one needs to use it.
    ServiceAccount {
        /// Its name.
        name: String,
    },
    /// Fields of the launcher Pod.
    DownwardApi {
        /// The files.
        files: Vec<DownwardFile>,
    },
}

/// An object whose entries are files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectSource {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its name.
    pub name: String,
    /// Whether the object may be missing.
    pub optional: bool,
}

/// The kinds of objects whose entries can be files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

/// A file with a field of the launcher Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DownwardFile {
    /// Relative, without `.` and `..`.
    pub path: String,
    /// What it has.
    pub content: DownwardContent,
    /// The field of the manifest.
    pub field: Field,
}

/// What a file with a field of the launcher Pod has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DownwardContent {
    /// A field: `metadata.labels`, or an entry of it where a key is given.
    Field {
        /// The path of the field.
        path: String,
        /// The key of the entry.
        key: Option<String>,
    },
    /// A request or a limit of a container.
    Resource,
}

/// Reads the source of a volume that is of this kind.
pub(super) fn read(volume: &v1::Volume, at: &Field, found: &mut Findings) -> Option<VolumeSource> {
    let before = found.problems.len();
    let (source, label, is_sysprep) = if let Some(map) = &volume.config_map {
        let at = at.at("configMap");
        let source = object(ObjectKind::ConfigMap, (&map.name, &at.at("name")), map.optional, found);
        (source, label(&map.volume_label, &at, found), false)
    } else if let Some(secret) = &volume.secret {
        let at = at.at("secret");
        let name = (secret.secret_name.as_str(), &at.at("secretName"));
        let source = object(ObjectKind::Secret, name, secret.optional, found);
        (source, label(&secret.volume_label, &at, found), false)
    } else if let Some(account) = &volume.service_account {
        let at = at.at("serviceAccount").at("serviceAccountName");
        let name = name((&account.service_account_name, &at), "ServiceAccount", found);
        (ProjectedSource::ServiceAccount { name }, LABEL.to_owned(), false)
    } else if let Some(downward) = &volume.downward_api {
        let at = at.at("downwardAPI");
        let files = downward_files(&downward.fields, &at.at("fields"), found);
        (ProjectedSource::DownwardApi { files }, label(&downward.volume_label, &at, found), false)
    } else {
        let sysprep = volume.sysprep.as_deref()?;
        (answers(sysprep, &at.at("sysprep"), found)?, SYSPREP_LABEL.to_owned(), true)
    };
    let projected = Projected { source, label, is_sysprep };
    (found.problems.len() == before).then_some(VolumeSource::Projected(projected))
}

/// Checks what volumes with tokens have in common: a Pod has one ServiceAccount.
pub(super) fn check_accounts(spec: &v1::VirtualMachineInstanceSpec, found: &mut Findings) {
    let at = Field::new("spec.volumes");
    let volumes = spec.volumes.iter().enumerate();
    let mut accounts = volumes.filter_map(|(index, volume)| {
        let name = &volume.service_account.as_deref()?.service_account_name;
        Some((name, at.index(index).at("serviceAccount")))
    });
    let Some((first, field)) = accounts.next() else { return };
    let own = &spec.service_account_name;
    if !own.is_empty() && own != first {
        let text = format!("must be {own:?}, as spec.serviceAccountName is: a VMI has one ServiceAccount");
        found.invalid_value(&field.at("serviceAccountName"), first, text);
    }
    for (_, field) in accounts {
        found.invalid(&field, "a VMI can have one volume of this kind: keep one");
    }
}

fn answers(sysprep: &v1::SysprepSource, at: &Field, found: &mut Findings) -> Option<ProjectedSource> {
    let (kind, reference, field) = match (&sysprep.config_map, &sysprep.secret) {
        (Some(map), None) => (ObjectKind::ConfigMap, map, at.at("configMap")),
        (None, Some(secret)) => (ObjectKind::Secret, secret, at.at("secret")),
        (None, None) => {
            found.required_value(at, "name a configMap or a secret with the answer files");
            return None;
        }
        (Some(_), Some(_)) => {
            found.invalid(at, "has a configMap and a secret: keep one");
            return None;
        }
    };
    Some(object(kind, (&reference.name, &field.at("name")), None, found))
}

fn object(
    kind: ObjectKind,
    named: (&str, &Field),
    optional: Option<bool>,
    found: &mut Findings,
) -> ProjectedSource {
    let what = match kind {
        ObjectKind::ConfigMap => "ConfigMap",
        ObjectKind::Secret => "Secret",
    };
    let name = name(named, what, found);
    ProjectedSource::Object(ObjectSource { kind, name, optional: optional == Some(true) })
}

/// The name of an object.
pub(super) fn name((name, at): (&str, &Field), what: &str, found: &mut Findings) -> String {
    if name.is_empty() {
        found.required_value(at, format_args!("name the {what}"));
    } else if !is_dns_subdomain(name) {
        found.invalid_value(at, name, DNS_SUBDOMAIN);
    }
    name.to_owned()
}

fn label(label: &str, at: &Field, found: &mut Findings) -> String {
    let is_plain = label.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if label.len() > LONGEST_LABEL || !is_plain {
        let text = format!("must be at most {LONGEST_LABEL} printable ASCII characters");
        found.invalid_value(&at.at("volumeLabel"), label, text);
    }
    if label.is_empty() { LABEL.to_owned() } else { label.to_owned() }
}

fn downward_files(
    fields: &[v1::DownwardApiVolumeFile],
    at: &Field,
    found: &mut Findings,
) -> Vec<DownwardFile> {
    if fields.len() > MOST_FIELDS {
        found.too_many(at, fields.len(), MOST_FIELDS, "");
    }
    let mut paths = BTreeSet::new();
    let mut files = Vec::new();
    for (index, file) in fields.iter().enumerate().take(MOST_FIELDS) {
        let at = at.index(index);
        relative_path(&file.path, &at.at("path"), found);
        if !paths.insert(&file.path) {
            found.duplicate_value(&at.at("path"), &file.path);
        }
        if file.mode.is_some_and(|mode| !(0..=0o777).contains(&mode)) {
            found.invalid_value(&at.at("mode"), file.mode, "must be a number between 0 and 0777 (octal)");
        }
        found.notice_if(
            file.mode.is_some(),
            &at.at("mode"),
            "all of the guest can read the files of its disk",
        );
        let content = match (&file.field_ref, &file.resource_field_ref) {
            (Some(field), None) => pod_field(field, &at.at("fieldRef"), found),
            (None, Some(resource)) => {
                let at = at.at("resourceFieldRef");
                if resource.container_name.is_empty() {
                    found.required_value(&at.at("containerName"), "name the container, such as compute");
                }
                if resource.resource.is_empty() {
                    found.required_value(&at.at("resource"), "name the resource, such as requests.memory");
                }
                Some(DownwardContent::Resource)
            }
            (None, None) => {
                found.required_value(&at, "one of fieldRef and resourceFieldRef is required");
                None
            }
            (Some(_), Some(_)) => {
                found.invalid(&at, "has a fieldRef and a resourceFieldRef: keep one");
                None
            }
        };
        files.extend(content.map(|content| DownwardFile { path: file.path.clone(), content, field: at }));
    }
    files
}

fn relative_path(path: &str, at: &Field, found: &mut Findings) {
    if path.is_empty() {
        found.required_value(at, "name the file");
        return;
    }
    let is_name = |name: &str| {
        !matches!(name, "" | ".")
            && !name.starts_with("..")
            && name.len() <= LONGEST_NAME
            && !name.contains(|character: char| character.is_control() || character == '\\')
    };
    if !path.split('/').all(is_name) {
        let text = format!(
            "must be a relative path without '.', '..' and control characters, of names of at most {LONGEST_NAME} bytes"
        );
        found.invalid_value(at, path, text);
    }
}

fn pod_field(
    selector: &v1::ObjectFieldSelector,
    at: &Field,
    found: &mut Findings,
) -> Option<DownwardContent> {
    if !matches!(selector.api_version.as_str(), "" | "v1") {
        found.unsupported_value(&at.at("apiVersion"), &selector.api_version, &["v1"]);
    }
    let at = at.at("fieldPath");
    let path = selector.field_path.as_str();
    if path.is_empty() {
        found.required_value(&at, "name the field, such as metadata.labels");
        return None;
    }
    let (field, key) = match path.strip_suffix("']").and_then(|rest| rest.split_once("['")) {
        Some((map, key)) => (map, Some(key).filter(|key| !key.is_empty() && MAPS.contains(&map))),
        None => (path, None),
    };
    let is_entry = field.len() != path.len();
    if !FIELDS.contains(&field) || (is_entry && key.is_none()) {
        found.unsupported_value(&at, path, &FIELDS);
        return None;
    }
    Some(DownwardContent::Field { path: field.to_owned(), key: key.map(str::to_owned) })
}
