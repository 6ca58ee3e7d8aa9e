//! The record of one VMI, in memory and on disk.

use std::path::Path;

use jiff::Timestamp;
use thiserror::Error;
use uuid::Uuid;
use vireo_api::names::MANIFEST_ANNOTATION;
use vireo_api::spec::{Report, Vm};
use vireo_api::v1::VirtualMachineInstance;

use super::decide;
use super::status::{self, Phase};
use crate::manifests::document::Accepted;
use crate::manifests::{Key, Origin};
use crate::network::Plan;
use crate::network::bridge::Bridged;
use crate::state::{StateDir, StateError, VmiDir, read_json, write_json};

/// An accepted VMI.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) uid: Uuid,
    pub(super) dir: VmiDir,
    pub(super) vmi: VirtualMachineInstance,
    pub(super) plan: Option<Plan>,
    /// The interfaces of its Pod that its guest takes over, by the names of its NICs.
    pub(super) bridged: Bridged,
}

/// Why the record of a VMI cannot be loaded.
#[derive(Debug, Error)]
pub(super) enum RecordError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("{0} has another UID than its directory, or no name")]
    Mismatch(String),
}

impl Record {
    /// Creates a record, with a new UID for a manifest from a file. Nothing is written yet.
    pub(super) fn new(state: &StateDir, manifest: &Accepted, origin: &Origin, now: &str) -> Self {
        let mut vmi = manifest.vmi.clone();
        let uid = match origin {
            Origin::Object(uid) => *uid,
            Origin::File(file) => {
                let uid = Uuid::new_v4();
                vmi.metadata.uid = uid.to_string();
                vmi.metadata.creation_timestamp = Some(now.to_owned());
                vmi.metadata.generation = Some(1);
                vmi.metadata.annotations.insert(MANIFEST_ANNOTATION.to_owned(), file.clone());
                uid
            }
        };
        Self { uid, dir: state.vmi_dir(uid), vmi, plan: None, bridged: Bridged::new() }
    }

    /// Reads a VMI's directory. Returns `None` when no VMI was accepted there.
    pub(super) fn load(uid: Uuid, dir: VmiDir) -> Result<Option<Self>, RecordError> {
        let Some(vmi) = read_json::<VirtualMachineInstance>(&dir.vmi())? else { return Ok(None) };
        if vmi.metadata.uid != uid.to_string() || vmi.metadata.name.is_empty() {
            return Err(RecordError::Mismatch(dir.vmi().display().to_string()));
        }
        let plan = read_json(&dir.network())?;
        let bridged = read_json(&dir.pod_interfaces())?.unwrap_or_default();
        Ok(Some(Self { uid, dir, vmi, plan, bridged }))
    }

    pub(super) fn key(&self) -> Key {
        Key { namespace: self.vmi.metadata.namespace.clone(), name: self.vmi.metadata.name.clone() }
    }

    /// The manifest it came from.
    pub(super) fn file(&self) -> Option<&str> {
        self.vmi.metadata.annotations.get(MANIFEST_ANNOTATION).map(String::as_str)
    }

    pub(super) fn phase(&self) -> Phase {
        Phase::parse(&self.vmi.status.phase)
    }

    pub(super) fn deleting(&self) -> bool {
        self.vmi.metadata.deletion_timestamp.is_some()
    }

    /// Why its livenessProbe failed, if it did.
    pub(super) fn unhealthy(&self) -> Option<&str> {
        status::unhealthy(&self.vmi.status)
    }

    /// Whether its launcher Pod is being deleted.
    pub(super) fn stopped(&self) -> bool {
        status::stopped_since(&self.vmi.status).is_some()
    }

    /// The input of decisions. The caller sets `outdated`, since it knows the manifest.
    pub(super) fn facts(&self) -> decide::Record {
        decide::Record {
            is_final: self.phase().is_final(),
            deleting: self.deleting(),
            unhealthy: self.unhealthy().is_some(),
            stopped: self.stopped(),
            started: self.started(),
            has_network: self.plan.is_some(),
            outdated: false,
        }
    }

    /// Whether its guest has run.
    pub(super) fn started(&self) -> bool {
        let mut noted = self.vmi.status.phase_transition_timestamps.iter();
        self.phase() == Phase::Running || noted.any(|entry| entry.phase == Phase::Running.as_str())
    }

    /// Whether its guest is to be shut down.
    pub(super) fn ends(&self) -> bool {
        self.facts().ends()
    }

    /// Since when its guest is to be shut down, if that is recorded.
    pub(super) fn ends_since(&self) -> Option<Timestamp> {
        let since = match &self.vmi.metadata.deletion_timestamp {
            Some(since) => since.as_str(),
            None => status::unhealthy_since(&self.vmi.status)
                .or_else(|| status::stopped_since(&self.vmi.status))?,
        };
        since.parse().ok()
    }

    /// Parses the spec. It was valid when it was accepted; a later release may reject it.
    pub(super) fn vm(&self) -> Result<Vm, Report> {
        Vm::try_from(&self.vmi)
    }

    /// The grace period in seconds.
    pub(super) fn grace(&self) -> u64 {
        grace(&self.vmi)
    }

    /// Whether a manifest differs from this VMI.
    pub(super) fn differs(&self, manifest: &Accepted) -> bool {
        let mut annotations = self.vmi.metadata.annotations.clone();
        annotations.remove(MANIFEST_ANNOTATION);
        self.vmi.spec != manifest.vmi.spec
            || annotations != manifest.vmi.metadata.annotations
            || self.vmi.metadata.labels != manifest.vmi.metadata.labels
    }

    /// Writes the VMI to disk.
    pub(super) fn write(&self) -> Result<(), StateError> {
        write_json(&self.dir.vmi(), &self.vmi)
    }

    /// Writes what the guest takes over to disk, before it is taken from the Pod.
    pub(super) fn write_bridged(&self) -> Result<(), StateError> {
        write_json(&self.dir.pod_interfaces(), &self.bridged)
    }

    /// Writes the network plan to disk, before any of the network is created.
    pub(super) fn write_plan(&self) -> Result<(), StateError> {
        match &self.plan {
            Some(plan) => write_json(&self.dir.network(), plan),
            None => Ok(remove_file(&self.dir.network())?),
        }
    }
}

/// The grace period in seconds. It is read from the API object, so that it is known for every VMI.
pub(crate) fn grace(vmi: &VirtualMachineInstance) -> u64 {
    let given = vmi.spec.termination_grace_period_seconds;
    given.map_or(30, |seconds| u64::try_from(seconds).unwrap_or(0))
}

fn remove_file(path: &Path) -> Result<(), StateError> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(StateError::Io { verb: "remove", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// The current time as the API writes it: RFC 3339, in seconds.
pub(super) fn now() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}
