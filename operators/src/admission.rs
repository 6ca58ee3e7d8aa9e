//! Admission of KubeVirt's objects: functions that complete and validate them, by kind, and [`Admission`], which reads what
//! else there must be. The API server of standalone calls them before it stores an object, as webhooks do in a cluster.

pub mod cluster;
pub mod data_volumes;
mod eviction;
mod gates;
mod host_devices;
pub mod host_paths;
pub mod instancetype;
pub mod kubevirt;
pub mod luns;
pub mod networks;
pub mod pod;
pub mod pool;
pub mod replicaset;
pub mod reserved;
pub mod vm;
pub mod vmi;
mod warnings;

use kube::Client;
use kube::api::ListParams;
use serde_json::Value;
use vireo_client::Kind;

use crate::Problem;
use crate::config::{ClusterConfig, LiveConfig};
use crate::defaults::Identity;
use crate::instancetype::reads::{Reads, read_for};
use host_paths::Instance;

/// Admission by other objects of the API server. It sees the writes before the one that it decides on.
#[derive(Clone)]
pub struct Admission {
    client: Client,
    config: LiveConfig,
    is_single_host: bool,
}

/// What is found when an object is completed.
#[derive(Debug, Default)]
pub struct Completed {
    /// Why it is not accepted.
    pub problems: Vec<Problem>,
    /// Warnings for its author, if it is.
    pub warnings: Vec<String>,
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Admission").finish_non_exhaustive()
    }
}

impl Admission {
    /// Reads as the user of a client, and completes objects by a configuration.
    pub fn new(client: Client, config: LiveConfig) -> Self {
        Self { client, config, is_single_host: false }
    }

    /// Warns also of what has its effect in clusters alone.
    #[must_use]
    pub fn for_single_host(self) -> Self {
        Self { is_single_host: true, ..self }
    }

    /// Completes an object before its kind does. `old` is the stored object that it replaces.
    ///
    /// # Errors
    /// When other objects cannot be read.
    pub async fn mutate(
        &self,
        kind: Kind,
        new: &mut Value,
        old: Option<&Value>,
    ) -> Result<Completed, kube::Error> {
        // Defaults are none of the author's.
        let single_host =
            if self.is_single_host { warnings::of_single_host(kind, new, old) } else { Vec::new() };
        let mut completed = self.complete(kind, new, old).await?;
        completed.warnings.extend(single_host);
        Ok(completed)
    }

    async fn complete(
        &self,
        kind: Kind,
        new: &mut Value,
        old: Option<&Value>,
    ) -> Result<Completed, kube::Error> {
        let config = self.config.current();
        match kind {
            Kind::VMI => Ok(Completed { warnings: vmi::complete(new, old, &config), ..Completed::default() }),
            Kind::VM => self.complete_vm(new, old, &config).await,
            Kind::REPLICA_SET | Kind::POOL => {
                Ok(Completed { warnings: warnings::of_template(kind, new, old), ..Completed::default() })
            }
            _ => Ok(Completed::default()),
        }
    }

    async fn complete_vm(
        &self,
        new: &mut Value,
        old: Option<&Value>,
        config: &ClusterConfig,
    ) -> Result<Completed, kube::Error> {
        let (given, identity) = (&*new, Identity::new(old));
        let complete = |reads: &Reads| {
            let mut vm = given.clone();
            let problems = vm::infer(&mut vm, old, |namespace, claim| reads.labels(namespace, claim));
            let mut completed = Completed { problems, ..Completed::default() };
            if completed.problems.is_empty() {
                completed.warnings = vm::complete(reads, &mut vm, old, (config, &identity));
            }
            (vm, completed)
        };
        let (vm, completed) = read_for(&self.client, complete).await?;
        *new = vm;
        Ok(completed)
    }

    /// Validates an object that is otherwise valid.
    ///
    /// # Errors
    /// When other objects cannot be read.
    pub async fn validate(
        &self,
        kind: Kind,
        new: &Value,
        old: Option<&Value>,
    ) -> Result<Vec<Problem>, kube::Error> {
        let config = self.config.current();
        let mut problems: Vec<Problem> = machine_type(kind, new, old, &config).into_iter().collect();
        if !config.permit_bridge_on_pod_network {
            problems.extend(networks::bridge_on_pod_network(kind, new, old));
        }
        problems.extend(gates::disabled(kind, new, old, &config));
        problems.extend(host_devices::not_permitted(kind, new, old, &config.permitted));
        if kind == Kind::VM {
            problems.extend(read_for(&self.client, |reads| vm::validate_expanded(reads, new, old)).await?);
        }
        Ok(problems)
    }

    /// Whether there is a KubeVirt object.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn has_installation(&self) -> Result<bool, kube::Error> {
        is_any(&self.client, Kind::KUBEVIRT).await
    }

    /// Whether there can be DataVolumes.
    ///
    /// # Errors
    /// When the API server does not say so.
    pub async fn serves_data_volumes(&self) -> Result<bool, kube::Error> {
        Kind::DATA_VOLUME.is_served(&self.client).await
    }

    /// A kind of workloads of which there are objects.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn workload(&self) -> Result<Option<Kind>, kube::Error> {
        workload(&self.client).await
    }

    /// A Pod, if it is there.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Value>, kube::Error> {
        let found = Kind::POD.namespaced(&self.client, namespace).get_opt(name).await?;
        found.map(serde_json::to_value).transpose().map_err(kube::Error::SerdeError)
    }

    /// Decides on a request to evict a Pod. Unless it is a dry run, the VMI of a launcher Pod is marked for evacuation where
    /// its eviction strategy says so.
    ///
    /// # Errors
    /// The message of the denial, which is to be answered with the status 429: evictions are tried again.
    pub async fn evict(&self, pod: &Value, dry_run: bool) -> Result<(), String> {
        eviction::admit(&self.client, pod, dry_run).await.map_or(Ok(()), Err)
    }
}

/// A machine type that the configuration does not allow.
fn machine_type(kind: Kind, new: &Value, old: Option<&Value>, config: &ClusterConfig) -> Option<Problem> {
    let instance = Instance::of(kind, new, old)?;
    let machine = instance.changed("/domain/machine/type")?.as_str()?;
    let is_allowed = machine.is_empty() || config.allows_machine(machine);
    let supported: Vec<&str> = config.emulated_machines.iter().map(String::as_str).collect();
    let field = instance.field("domain.machine.type");
    (!is_allowed).then(|| Problem::unsupported_value(field, machine, &supported))
}

/// A kind of workloads of which there are objects.
///
/// # Errors
/// When they cannot be read.
pub async fn workload(client: &Client) -> Result<Option<Kind>, kube::Error> {
    for kind in [Kind::VMI, Kind::VM, Kind::REPLICA_SET] {
        if is_any(client, kind).await? {
            return Ok(Some(kind));
        }
    }
    Ok(None)
}

/// Whether there is an object of a kind; there is none of a kind that the API server does not know.
async fn is_any(client: &Client, kind: Kind) -> Result<bool, kube::Error> {
    match kind.all(client).list(&ListParams::default().limit(1)).await {
        Ok(list) => Ok(!list.items.is_empty()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}
