//! Disks that CDI fills: for each a template of a DataVolume, and a volume with it.

use serde_json::{Map, Value, json};
use vireo_api::v1::{DataVolumeSource, DataVolumeTemplateSpec, ObjectMeta, Volume};

use super::params::Params;
use super::volumes::Storage;
use super::{FlagError, quantity, random_name};
use crate::cli::Filled;

const IMPORT: &str = "volume-import";
const DATA_SOURCE: &str = "volume-datasource";
const CLONE: &str = "volume-clone-pvc";
const BLANK: &str = "volume-blank";
/// What a clone of a claim, a snapshot or a DataSource may have.
const CLONE_KEYS: [&str; 4] = ["src", "name", "size", "bootorder"];
/// The prefix of names that are generated; upstream's.
const PREFIX: &str = "imported-volume";

/// Adds the disks of these flags. Returns the templates of their DataVolumes.
pub(super) fn add(
    storage: &mut Storage,
    vm: &str,
    args: &Filled,
) -> Result<Vec<DataVolumeTemplateSpec>, FlagError> {
    let mut templates = Vec::new();
    for text in &args.volume_import {
        let kind = import_type(text)?;
        let mut keys = kind.keys();
        keys.extend(["type", "name", "size", "bootorder"]);
        let params = Params::read(IMPORT, text, &keys)?;
        let source = kind.source(&params)?;
        templates.push(add_one(storage, &params, IMPORT, (random_name(PREFIX), source))?);
    }
    for text in &args.volume_datasource {
        let params = Params::read(DATA_SOURCE, text, &CLONE_KEYS)?;
        let source = Import::DataSource.source(&params)?;
        let (_, name) = params.object("src")?;
        templates.push(add_one(storage, &params, DATA_SOURCE, (format!("{vm}-ds-{name}"), source))?);
    }
    for text in &args.volume_clone_pvc {
        let params = Params::read(CLONE, text, &CLONE_KEYS)?;
        let source = Import::Pvc.source(&params)?;
        let (_, name) = params.object("src")?;
        templates.push(add_one(storage, &params, CLONE, (format!("{vm}-pvc-{name}"), source))?);
    }
    for (index, text) in args.volume_blank.iter().enumerate() {
        let params = Params::read(BLANK, text, &["name", "size", "bootorder"])?;
        let source = Import::Blank.source(&params)?;
        templates.push(add_one(storage, &params, BLANK, (format!("{vm}-blank-{index}"), source))?);
    }
    Ok(templates)
}

fn add_one(
    storage: &mut Storage,
    params: &Params<'_>,
    flag: &'static str,
    (default, source): (String, Map<String, Value>),
) -> Result<DataVolumeTemplateSpec, FlagError> {
    let name = params.get("name").map_or(default, str::to_owned);
    let mut spec = source;
    let size = params.get("size").map(|size| quantity(flag, size)).transpose()?;
    let resources = size.map(|size| json!({"resources": {"requests": {"storage": size}}}));
    spec.insert("storage".to_owned(), resources.unwrap_or_else(|| json!({})));
    let data_volume = DataVolumeSource { name: name.clone(), ..DataVolumeSource::default() };
    let volume = Volume { name: name.clone(), data_volume: Some(Box::new(data_volume)), ..Volume::default() };
    storage.add(flag, volume, params.number("bootorder")?)?;
    Ok(DataVolumeTemplateSpec {
        metadata: ObjectMeta { name, ..ObjectMeta::default() },
        spec: Value::Object(spec),
        ..DataVolumeTemplateSpec::default()
    })
}

/// What a DataVolume is filled from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Import {
    Blank,
    DataSource,
    Gcs,
    Http,
    ImageIo,
    Pvc,
    Registry,
    S3,
    Snapshot,
    Vddk,
}

/// By the word in a flag.
const TYPES: [(&str, Import); 10] = [
    ("blank", Import::Blank),
    ("ds", Import::DataSource),
    ("gcs", Import::Gcs),
    ("http", Import::Http),
    ("imageio", Import::ImageIo),
    ("pvc", Import::Pvc),
    ("registry", Import::Registry),
    ("s3", Import::S3),
    ("snapshot", Import::Snapshot),
    ("vddk", Import::Vddk),
];

fn import_type(text: &str) -> Result<Import, FlagError> {
    let words = TYPES.map(|(word, _)| word).join(", ");
    let given = text.split(',').find_map(|part| part.strip_prefix("type:"));
    let given =
        given.ok_or_else(|| FlagError::new(IMPORT, format!("type: required value: one of {words}")))?;
    let found = TYPES.iter().find(|(word, _)| *word == given);
    found
        .map(|(_, import)| *import)
        .ok_or_else(|| FlagError::new(IMPORT, format!("type: {given:?} is none of {words}")))
}

/// The parameters of an import, with the fields of CDI that they are. Several values of one have semicolons between.
type Fields = &'static [(&'static str, &'static str)];

impl Import {
    /// The field of `source` and its fields.
    fn fields(self) -> (&'static str, Fields) {
        match self {
            Self::Blank => ("blank", &[]),
            Self::DataSource => ("sourceRef", &[]),
            Self::Gcs => ("gcs", &[("url", "url"), ("secretref", "secretRef")]),
            Self::Http => (
                "http",
                &[
                    ("url", "url"),
                    ("secretref", "secretRef"),
                    ("certconfigmap", "certConfigMap"),
                    ("extraheaders", "extraHeaders"),
                    ("secretextraheaders", "secretExtraHeaders"),
                ],
            ),
            Self::ImageIo => (
                "imageio",
                &[
                    ("url", "url"),
                    ("diskid", "diskId"),
                    ("secretref", "secretRef"),
                    ("certconfigmap", "certConfigMap"),
                ],
            ),
            Self::Pvc => ("pvc", &[]),
            Self::Registry => (
                "registry",
                &[
                    ("url", "url"),
                    ("imagestream", "imageStream"),
                    ("pullmethod", "pullMethod"),
                    ("secretref", "secretRef"),
                    ("certconfigmap", "certConfigMap"),
                ],
            ),
            Self::S3 => {
                ("s3", &[("url", "url"), ("secretref", "secretRef"), ("certconfigmap", "certConfigMap")])
            }
            Self::Snapshot => ("snapshot", &[]),
            Self::Vddk => (
                "vddk",
                &[
                    ("url", "url"),
                    ("uuid", "uuid"),
                    ("backingfile", "backingFile"),
                    ("thumbprint", "thumbprint"),
                    ("secretref", "secretRef"),
                    ("initimageurl", "initImageURL"),
                ],
            ),
        }
    }

    /// Its own parameters.
    fn keys(self) -> Vec<&'static str> {
        match self {
            Self::DataSource | Self::Pvc | Self::Snapshot => vec!["src"],
            _ => self.fields().1.iter().map(|(key, _)| *key).collect(),
        }
    }

    /// Those without which CDI refuses it.
    fn needed(self) -> &'static [&'static str] {
        match self {
            Self::DataSource | Self::Pvc | Self::Snapshot => &["src"],
            Self::Blank => &["size"],
            Self::Gcs | Self::Http | Self::S3 => &["size", "url"],
            Self::ImageIo => &["size", "url", "diskid"],
            Self::Registry => &["size"],
            Self::Vddk => &["size", "url", "uuid", "backingfile", "thumbprint", "secretref"],
        }
    }

    /// The spec of a DataVolume without its storage.
    fn source(self, params: &Params<'_>) -> Result<Map<String, Value>, FlagError> {
        self.needed().iter().try_for_each(|key| params.needed(key).map(drop))?;
        let (field, fields) = self.fields();
        let of = |name: &str, value: Value| Map::from_iter([(name.to_owned(), value)]);
        match self {
            Self::DataSource => {
                let (namespace, name) = params.object("src")?;
                let mut reference = json!({"kind": "DataSource", "name": name});
                if let Some(namespace) = namespace {
                    reference["namespace"] = json!(namespace);
                }
                return Ok(of(field, reference));
            }
            Self::Pvc | Self::Snapshot => {
                let (namespace, name) = params.object("src")?;
                let namespace =
                    namespace.ok_or_else(|| params.wrong("src: required value: NAMESPACE/NAME"))?;
                return Ok(of("source", json!({field: {"namespace": namespace, "name": name}})));
            }
            Self::Registry if params.get("url").is_some() == params.get("imagestream").is_some() => {
                return Err(params.wrong("name one of url and imagestream"));
            }
            _ => {}
        }
        let given = fields.iter().filter_map(|(key, field)| {
            let value = params.get(key)?;
            let value = match field.ends_with("Headers") {
                true => json!(value.split(';').collect::<Vec<_>>()),
                false => json!(value),
            };
            Some(((*field).to_owned(), value))
        });
        Ok(of("source", json!({field: given.collect::<Map<_, _>>()})))
    }
}
