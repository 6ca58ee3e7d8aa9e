//! `virtctl expose`: a Service for the ports of a virtual machine.

use serde_json::{Map, Value, json};
use vireo_api::names::{VMI_ID_LABEL, vmi_id};

use super::Failure;
use crate::cli::{Expose, Server};
use crate::client::{Client, ClientError};

#[derive(Debug, thiserror::Error)]
enum ExposeError {
    #[error("unsupported resource type: {0}")]
    Kind(String),
    #[error("error fetching {0}")]
    Fetch(&'static str, #[source] ClientError),
    #[error("cannot expose VirtualMachineInstanceReplicaSet with match expressions")]
    Expressions,
    #[error("missing label information for {0}: {1}")]
    NoLabels(String, String),
    #[error("couldn't find port via --port flag or introspection")]
    NoPort,
    #[error("service creation failed")]
    Create(#[source] ClientError),
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Vm,
    Vmi,
    ReplicaSet,
}

impl Kind {
    fn parse(text: &str) -> Result<Self, ExposeError> {
        match text.to_lowercase().as_str() {
            "vmi" | "vmis" | "virtualmachineinstance" | "virtualmachineinstances" => Ok(Self::Vmi),
            "vm" | "vms" | "virtualmachine" | "virtualmachines" => Ok(Self::Vm),
            "vmirs" | "vmirss" | "virtualmachineinstancereplicaset" | "virtualmachineinstancereplicasets" => {
                Ok(Self::ReplicaSet)
            }
            _ => Err(ExposeError::Kind(text.to_owned())),
        }
    }

    /// Its plural, its kind, and where it has the spec of its instances.
    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Vm => ("virtualmachines", "VirtualMachine", "/spec/template/spec"),
            Self::Vmi => ("virtualmachineinstances", "VirtualMachineInstance", "/spec"),
            Self::ReplicaSet => (
                "virtualmachineinstancereplicasets",
                "VirtualMachineInstanceReplicaSet",
                "/spec/template/spec",
            ),
        }
    }
}

/// Creates the Service.
pub(crate) async fn run(server: &Server, args: &Expose) -> Result<(), Failure> {
    let kind = Kind::parse(&args.kind)?;
    let client = Client::new(server).await?;
    let (plural, name, spec) = kind.names();
    let object = client.get(&client.kubevirt(&format!("{plural}/{}", args.object))?).await;
    let object = object.map_err(|error| ExposeError::Fetch(name, error))?;
    let selector = selector(kind, args, &object)?;
    let ports = ports(args, object.pointer(spec).unwrap_or(&Value::Null))?;
    let service = service(args, &selector, &ports);
    client.post(&client.core("services")?, &service).await.map_err(ExposeError::Create)?;
    println!("Service {} successfully exposed for {} {}", args.name, args.kind, args.object);
    Ok(())
}

/// The labels of the launcher Pods.
fn selector(kind: Kind, args: &Expose, object: &Value) -> Result<Value, ExposeError> {
    let Kind::ReplicaSet = kind else { return Ok(json!({VMI_ID_LABEL: vmi_id(&args.object)})) };
    let selector = &object["spec"]["selector"];
    if selector["matchExpressions"].as_array().is_some_and(|all| !all.is_empty()) {
        return Err(ExposeError::Expressions);
    }
    match selector["matchLabels"].as_object() {
        Some(labels) if !labels.is_empty() => Ok(json!(labels)),
        _ => Err(ExposeError::NoLabels(args.kind.clone(), args.object.clone())),
    }
}

/// The one that is given, else those of the interfaces.
fn ports(args: &Expose, spec: &Value) -> Result<Vec<Value>, ExposeError> {
    if let Some(port) = args.port {
        let mut one = json!({"protocol": args.protocol, "port": port});
        if let Some(name) = &args.port_name {
            one["name"] = json!(name);
        }
        if let Some(target) = &args.target_port {
            one["targetPort"] = target.parse::<u16>().map_or_else(|_| json!(target), |number| json!(number));
        }
        if let Some(port) = args.node_port {
            one["nodePort"] = json!(port);
        }
        return Ok(vec![one]);
    }
    let interfaces = spec["domain"]["devices"]["interfaces"].as_array();
    let ports = interfaces.into_iter().flatten().filter_map(|interface| interface["ports"].as_array());
    let known = ports.flatten().enumerate().map(|(index, port)| {
        let name = port["name"].as_str().filter(|name| !name.is_empty()).map(str::to_owned);
        let name = name.unwrap_or_else(|| format!("port-{}", index + 1));
        let protocol = port["protocol"].as_str().filter(|protocol| !protocol.is_empty()).unwrap_or("TCP");
        json!({"name": name, "protocol": protocol, "port": port["port"]})
    });
    let known: Vec<Value> = known.collect();
    if known.is_empty() { Err(ExposeError::NoPort) } else { Ok(known) }
}

fn service(args: &Expose, selector: &Value, ports: &[Value]) -> Value {
    let mut spec = Map::new();
    spec.insert("ports".to_owned(), json!(ports));
    spec.insert("selector".to_owned(), selector.clone());
    spec.insert("type".to_owned(), json!(args.service_type));
    let families = args.ip_family.as_ref().map(|text| text.split(',').collect::<Vec<_>>());
    let given = [
        ("clusterIP", args.cluster_ip.as_ref().map(|address| json!(address))),
        ("externalIPs", args.external_ip.map(|address| json!([address]))),
        ("loadBalancerIP", args.load_balancer_ip.map(|address| json!(address))),
        ("ipFamilies", families.map(|families| json!(families))),
        ("ipFamilyPolicy", args.ip_family_policy.as_ref().map(|policy| json!(policy))),
    ];
    spec.extend(given.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?))));
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": args.name}, "spec": spec})
}
