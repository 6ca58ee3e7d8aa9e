use serde_json::{Map, Value, json};
use vireo_api::v1::ObjectMeta;

use super::params::Params;
use super::{FlagError, metadata, quantity};
use crate::cli::{CreateInstancetype, CreatePreference};

/// The group of both.
const API_VERSION: &str = "instancetype.kubevirt.io/v1beta1";

/// One of a namespace's, or one of all.
fn object(
    name: Option<&str>,
    what: &str,
    namespace: Option<Option<&str>>,
    spec: Map<String, Value>,
) -> Value {
    let (scope, prefix) = match namespace {
        Some(_) => ("", ""),
        None => ("Cluster", "cluster"),
    };
    let ObjectMeta { name, namespace, .. } =
        metadata(name, &format!("{prefix}{}", what.to_lowercase()), namespace.flatten());
    let mut metadata = json!({ "name": name });
    if !namespace.is_empty() {
        metadata["namespace"] = json!(namespace);
    }
    let kind = format!("VirtualMachine{scope}{what}");
    json!({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})
}

/// Which scope is meant: that of a namespace, which may be left open.
fn scope(namespaced: bool, namespace: Option<&str>) -> Option<Option<&str>> {
    (namespaced || namespace.is_some()).then_some(namespace)
}

/// An instance type of these flags.
pub(super) fn instancetype(args: &CreateInstancetype, namespace: Option<&str>) -> Result<Value, FlagError> {
    let mut spec = Map::new();
    spec.insert("cpu".to_owned(), json!({"guest": args.cpu}));
    spec.insert("memory".to_owned(), json!({"guest": quantity("memory", &args.memory)?}));
    for (field, flag, given) in [("gpus", "gpu", &args.gpu), ("hostDevices", "hostdevice", &args.hostdevice)]
    {
        let device = |text: &String| {
            let params = Params::read(flag, text, &["name", "devicename"])?;
            Ok(json!({"name": params.needed("name")?, "deviceName": params.needed("devicename")?}))
        };
        let devices: Vec<Value> = given.iter().map(device).collect::<Result<_, FlagError>>()?;
        if !devices.is_empty() {
            spec.insert(field.to_owned(), json!(devices));
        }
    }
    if let Some(policy) = &args.iothreadspolicy {
        spec.insert("ioThreadsPolicy".to_owned(), json!(policy));
    }
    Ok(object(args.name.as_deref(), "Instancetype", scope(args.namespaced, namespace), spec))
}

/// A preference of these flags.
pub(super) fn preference(args: &CreatePreference, namespace: Option<&str>) -> Value {
    let mut spec = Map::new();
    for (section, field, given) in [
        ("cpu", "preferredCPUTopology", &args.cpu_topology),
        ("machine", "preferredMachineType", &args.machine_type),
        ("volumes", "preferredStorageClassName", &args.volume_storage_class),
    ] {
        if let Some(given) = given {
            spec.insert(section.to_owned(), json!({ field: given }));
        }
    }
    object(args.name.as_deref(), "Preference", scope(args.namespaced, namespace), spec)
}
